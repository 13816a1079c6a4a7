//go:build !race

package proxy_test

const seeds = 20
