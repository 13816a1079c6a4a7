// Package plot draws the README's picture from the queue's own numbers:
//
//	go test ./docs/plot -update
//
// Without -update its test fails when the picture no longer shows what the
// code does.
package plot

import (
	"flag"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

var update = flag.Bool("update", false, "draw the picture anew")

const picture = "../queue.svg"

func TestQueuePicture(t *testing.T) {
	r := shaped(t, run{length: 8 * time.Second, capacity: 40}, stream())

	// What the words in the picture promise.
	last := -time.Second
	for _, a := range r.arrivals {
		if a.refused {
			continue
		}
		if a.departed-last < 100*time.Millisecond {
			t.Errorf("one leaves at %v, the next at %v", last, a.departed)
		}
		last = a.departed
	}
	if last >= r.length {
		t.Errorf("the last leaves at %v, outside of the picture", last)
	}

	svg := r.svg("A queue at work: rate 10/s, 40 places")
	if *update {
		if err := os.WriteFile(picture, []byte(svg), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	if string(committed) != svg {
		t.Errorf("%s is not what the queue does now; go test ./docs/plot -update draws it anew", picture)
	}
}

// stream is a calm second, a burst that the queue takes, and one on top of it
// that it does not.
func stream() []time.Duration {
	var at []time.Duration
	evenly := func(from, to time.Duration, n int) {
		for i := range n {
			at = append(at, from+(to-from)*time.Duration(i)/time.Duration(n))
		}
	}
	const ms = time.Millisecond
	evenly(100*ms, 1100*ms, 5)
	evenly(1200*ms, 1500*ms, 30)
	evenly(1700*ms, 2600*ms, 5)
	evenly(2650*ms, 2950*ms, 32)
	evenly(3430*ms, 7930*ms, 8)
	return at
}

// shaped sends the stream through a queue of 10 a second, in virtual time, and
// completes r with what became of it.
func shaped(t *testing.T, r run, stream []time.Duration) run {
	rate, err := limiter.NewRate(10, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		shaper, err := shaping.New(shaping.Policy{Name: "steady", Rate: rate, Burst: 1, Queue: r.capacity})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		r.arrivals = make([]arrival, len(stream))
		var all sync.WaitGroup
		for i, at := range stream {
			all.Go(func() {
				time.Sleep(at)
				d, err := shaper.Acquire(t.Context(), shaping.Request{})
				if err != nil {
					t.Error(err)
				}
				r.arrivals[i] = arrival{at: at, refused: !d.Allowed, departed: d.At.Sub(start)}
			})
		}
		all.Wait()
	})
	r.depth = depth(r.arrivals)
	return r
}

// depth counts those who have come and not yet left, after each of these.
func depth(arrivals []arrival) []sample {
	changes := make(map[time.Duration]int)
	for _, a := range arrivals {
		if !a.refused && a.departed > a.at {
			changes[a.at]++
			changes[a.departed]--
		}
	}
	var samples []sample
	for at, change := range changes {
		samples = append(samples, sample{at, change})
	}
	slices.SortFunc(samples, func(a, b sample) int { return int(a.at - b.at) })
	for i := range samples[1:] {
		samples[i+1].depth += samples[i].depth
	}
	return samples
}
