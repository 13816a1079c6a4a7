package redisstore

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func places(t *testing.T, s *Store, name string, n int, down Down) *Places {
	t.Helper()
	l, err := s.NewPlaces(shaping.Policy{Name: name, MaxInFlight: n}, Definition{CountedBy: "global", Down: down})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Drop)
	return l
}

// take takes n places, of which so many must be free.
func (l *Places) take(t *testing.T, n, free int) (releases []func()) {
	t.Helper()
	for range n {
		d, release := l.Acquire("k")
		if d.Allowed != (release != nil) || d.Allowed == (d.RetryAfter > 0) {
			t.Fatalf("%+v, release %t", d, release != nil)
		}
		if release != nil {
			releases = append(releases, release)
		}
	}
	if len(releases) != free {
		t.Errorf("%d of %d got a place, want %d", len(releases), n, free)
	}
	return releases
}

func giveBack(releases []func()) {
	for _, release := range releases {
		release()
	}
}

// TestCase29_PlacesOfADeadProxy (BerriAI/litellm #20256, apache/apisix #11868): what
// a proxy held that was killed is free when its lease is over, and not before;
// what one holds that lives is kept for longer than that.
func TestCase29_PlacesOfADeadProxy(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	lives, _ := live(t, at(server))
	dies, _ := live(t, at(server))
	a, b := places(t, lives, "p", 5, Closed), places(t, dies, "p", 5, Closed)
	b.take(t, 3, 3)
	held := a.take(t, 5, 2)
	dies.circuit.stop() // as kill -9 does: nothing is given back, and nobody beats
	began := time.Now()
	for {
		if d, release := a.Acquire("k"); d.Allowed {
			held = append(held, release)
		}
		if len(held) == 5 {
			break
		}
		time.Sleep(20 * time.Millisecond)
		if time.Since(began) > 20*time.Second {
			t.Fatal("the places of a dead proxy do not come back")
		}
	}
	if took := time.Since(began); took < leaseFor-beatEvery-100*time.Millisecond {
		t.Errorf("free after %v, while a proxy that lives is believed for %v", took, leaseFor)
	}
	time.Sleep(leaseFor + beatEvery) // those of the living are kept
	a.take(t, 1, 0)
	giveBack(held)
	if n := a.InFlight(); n != 0 {
		t.Errorf("%d in flight at the end", n)
	}
	giveBack(a.take(t, 6, 5))
}

// TestPlacesOfTwo: never more are held than there are, however many ask at once.
func TestPlacesOfTwo(t *testing.T) { redistest.Each(t, placesOfTwo) }

func placesOfTwo(t *testing.T, engine redistest.Engine) {
	server := engine.Start(t)
	var all []*Places
	for range 2 {
		s, _ := live(t, at(server))
		all = append(all, places(t, s, "p", 7, Closed))
	}
	var inside, most, passed atomic.Int64
	var crowd sync.WaitGroup
	for i := range 60 {
		crowd.Go(func() {
			for range 20 {
				d, release := all[i%2].Acquire("k")
				if !d.Allowed {
					if d.Reason != limiter.ReasonLimit || d.Limit != 7 || d.Policy != "p" || d.Status != http.StatusTooManyRequests {
						t.Errorf("%+v", d)
					}
					continue
				}
				n := inside.Add(1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				passed.Add(1)
				inside.Add(-1)
				release()
			}
		})
	}
	crowd.Wait()
	if most.Load() > 7 || passed.Load() == 0 {
		t.Errorf("%d passed, %d at once", passed.Load(), most.Load())
	}
	giveBack(all[0].take(t, 9, 7))
	if keys := server.Must("KEYS", "*:p:p"); keys != "" {
		t.Errorf("left behind: %s", keys)
	}
	if n := all[0].Keys() + all[1].Keys(); n != 0 {
		t.Errorf("%d keys remembered", n)
	}
}

// TestPlacesWithoutTheServer: by store_down; and a server that comes back empty
// learns of the places that are held.
func TestPlacesWithoutTheServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, _ := live(t, at(server))
	await(t, "the store is found", s.Up)
	open, closed, local := places(t, s, "open", 2, Open), places(t, s, "closed", 2, Closed), places(t, s, "local", 3, Local)
	held := local.take(t, 2, 2)
	server.Kill()
	await(t, "the circuit opens", func() bool {
		if d, release := closed.Acquire("warm"); release != nil {
			release()
		} else if d.Reason != limiter.ReasonStoreDown || d.Status != http.StatusServiceUnavailable {
			t.Errorf("%+v", d)
		}
		return !s.Up()
	})
	closed.take(t, 3, 0)
	held = append(held, open.take(t, 5, 5)...)
	held = append(held, local.take(t, 3, 1)...) // two of three are held already
	server.Restart()
	await(t, "the server knows of those that are held", func() bool {
		d, ok := local.Look("k")
		return ok && d.Remaining == 0
	})
	local.take(t, 1, 0)
	giveBack(held)
	held = local.take(t, 4, 3)
	giveBack(held)
	// More or fewer places, and what is not a policy.
	if err := local.Adopt(shaping.Policy{Name: "local", MaxInFlight: 5}, Definition{Down: Local, CountedBy: "global"}); err != nil {
		t.Fatal(err)
	}
	giveBack(local.take(t, 6, 5))
	if err := local.Adopt(shaping.Policy{Name: "local"}, Definition{}); err == nil {
		t.Error("no places were adopted")
	}
}

// TestPlacesComeBackByNoMistake: a place is not kept that was given back meanwhile, and
// one of which nobody knows whether it was taken, or given back, is free with the next
// beat, not when its lease is over.
func TestPlacesComeBackByNoMistake(t *testing.T) {
	server := redistest.Start(t)
	s, _ := live(t, at(server))
	await(t, "the store is found", s.Up)
	l := places(t, s, "p", 3, Closed)
	set := l.now.Load()
	key := set.key(s, "k")
	// As of a beat that has looked just before they were given back.
	for _, name := range []string{"a", "b", "c"} {
		if taken, _, err := s.askPlaces("take", key, 3, name); err != nil || !taken {
			t.Fatal(taken, err)
		}
	}
	l.take(t, 1, 0)
	l.keep(key, []string{"a", "b", "c"})
	giveBack(l.take(t, 4, 3))

	server.Freeze() // it takes the place when it goes on
	await(t, "a call fails", func() bool {
		d, release := l.Acquire("k")
		if release != nil {
			release()
		}
		return d.Reason == limiter.ReasonStoreDown
	})
	server.Thaw()
	believed := 0.0 // until when, in microseconds
	await(t, "all places are free again", func() bool {
		words := strings.Fields(server.Must("ZRANGE", key, "0", "0", "WITHSCORES"))
		if len(words) == 2 {
			believed, _ = strconv.ParseFloat(words[1], 64)
		}
		return len(words) == 0 && s.Up()
	})
	if late := time.Now().UnixMicro() - int64(believed); believed > 0 && late > 0 {
		t.Errorf("free only when its lease was over, %d µs ago", late)
	}
}
