//go:build race

package proxy_test

// The race detector makes each several times as long.
const seeds = 2
