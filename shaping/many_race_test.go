//go:build race

package shaping_test

// The race detector knows no more than 8128 goroutines at a time.
const many = 5000
