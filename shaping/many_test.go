//go:build !race

package shaping_test

// many is how many wait in tests of scale.
const many = 100_000
