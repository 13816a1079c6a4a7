package shaping_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func shaper(b *testing.B, p shaping.Policy) *shaping.Shaper {
	b.Helper()
	s, err := shaping.New(p)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// A request that passes at once: the price of a limit that is not reached.
func BenchmarkAcquirePasses(b *testing.B) {
	for _, keys := range []int{1, 100_000} {
		b.Run("keys="+strconv.Itoa(keys), func(b *testing.B) {
			p := tb(b, "1/s", 1_000_000_000, 1, time.Second) // what is used stays so, and no key goes
			p.MaxKeys = 2 * keys
			s := shaper(b, p)
			names := make([]string, keys)
			for i := range names {
				names[i] = "client" + strconv.Itoa(i)
				s.Acquire(b.Context(), shaping.Request{Key: names[i]})
			}
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					if d, err := s.Acquire(context.Background(), shaping.Request{Key: names[i%keys]}); err != nil || !d.Allowed {
						b.Errorf("%+v, %v", d, err)
						return
					}
				}
			})
		})
	}
}

func BenchmarkAcquireRefused(b *testing.B) {
	s := shaper(b, q(b, "1/d", 1, time.Second))
	s.Acquire(b.Context(), shaping.Request{})
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := s.Acquire(context.Background(), shaping.Request{}); d.Reason != limiter.ReasonMaxWait {
			b.Fatalf("%+v", d)
		}
	}
}

// Coming and giving up take the same time however many wait.
func BenchmarkEnqueueCancel(b *testing.B) {
	for _, waiting := range []int{10, 100_000} {
		b.Run("waiting="+strconv.Itoa(waiting), func(b *testing.B) {
			line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(b, "1/s"), Burst: 1, Queue: waiting + 2, MaxWait: time.Duration(waiting+2) * time.Second})
			fill(&line, epoch, waiting+1)
			// One in the middle, so that leaving is not from an end.
			_, middle := line.Arrive(epoch, 0)
			b.ReportAllocs()
			for b.Loop() {
				_, w := line.Arrive(epoch, 0)
				if w == nil || !line.Cancel(middle) {
					b.Fatal("no place")
				}
				middle = w
			}
		})
	}
}

// The whole way of a waiter: place, channel, and back out.
func BenchmarkAcquireWaitsAndGivesUp(b *testing.B) {
	s := shaper(b, q(b, "1/d", 10, 48*time.Hour))
	s.Acquire(b.Context(), shaping.Request{})
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		stop := make(chan struct{})
		go func() {
			s.Acquire(ctx, shaping.Request{})
			close(stop)
		}()
		cancel()
		<-stop
	}
}
