//go:build race

package limiter_test

// A million keys take minutes under the race detector, which looks at each
// access to memory.
const manyKeys = 50_000
