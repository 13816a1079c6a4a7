//go:build !race

package limiter_test

const manyKeys = 1_000_000
