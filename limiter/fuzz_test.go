package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/limiter/limitertest"
)

// FuzzMeters does to each algorithm what the input says, beside the reference.
func FuzzMeters(f *testing.F) {
	f.Add(int64(5), int64(10*time.Second), []byte("\x04\x00\x00\x04\x01\x01\x04\x02\x02\x01\x00\x00\x05\x00\x00"))
	f.Add(int64(1), int64(1), []byte("0123456789abcdef"))
	f.Add(int64(7), int64(time.Minute), []byte("\xff\xfe\xfd\x00\x03\x03\x03\x02\x01\x00\x07\x07\x00\x01\x04\x04\x04\x03\x02\x00\xff"))
	f.Add(int64(300), int64(365*24*time.Hour), []byte("a course of takes, returns and sleeps that nobody planned"))
	f.Fuzz(func(t *testing.T, limit, window int64, ops []byte) {
		limit = 1 + int64(uint64(limit)%1000)
		window = 1 + int64(uint64(window)%uint64(400*24*time.Hour))
		for _, a := range limiter.Algorithms {
			p := policy(a, limit, time.Duration(window))
			if p.Validate() != nil {
				continue // a bucket faster than a nanosecond
			}
			left := ops
			// The input's bytes are the walk's choices, as many for a number
			// as it needs; after them all are zero.
			next := func(n int64) int64 {
				v := uint64(0)
				for range 8 {
					if len(left) > 0 && n > 1 {
						v = v<<8 | uint64(left[0])
						left = left[1:]
					}
					if n < 1<<8 {
						break
					}
				}
				return int64(v % uint64(n))
			}
			synctest.Test(t, func(t *testing.T) {
				limitertest.Walk(t, newMemory(), 0, p, min(60, 1+len(ops)/4), next)
			})
		}
	})
}
