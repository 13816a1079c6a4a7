package shaping

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// A server works on so many requests at full speed, and on more of them the
// slower.
type server struct {
	slots func(at int64) int
	work  []float64 // milliseconds left, by request
	sent  []int64
}

// find lets AutoPlaces drive a server that always has more to do, and returns
// the share of its capacity that was used and how long requests took, as a
// multiple of a quiet one, both after half a minute.
func find(random *rand.Rand, s *server, least, most int, lasts time.Duration) (used, slower float64, places func(time.Duration) int) {
	a := NewAutoPlaces(least, most)
	const tick = int64(time.Millisecond)
	var done, capacity, took float64
	var ended int
	var trace []int
	for now := int64(0); now < int64(lasts); now += tick {
		for len(s.work) < a.Places() {
			s.work = append(s.work, 40+random.Float64()*20)
			s.sent = append(s.sent, now)
		}
		if now%int64(100*time.Millisecond) == 0 {
			trace = append(trace, a.Places())
		}
		slots := float64(s.slots(now))
		speed := min(1, slots/float64(len(s.work)))
		warm := now > int64(30*time.Second)
		if warm {
			capacity += slots
			done += speed * float64(len(s.work))
		}
		for i := 0; i < len(s.work); {
			if s.work[i] -= speed; s.work[i] > 0 {
				i++
				continue
			}
			if warm {
				took += time.Duration(now+tick-s.sent[i]).Seconds() / 0.050
				ended++
			}
			a.Done(now+tick, s.sent[i], time.Duration(now+tick-s.sent[i]), len(s.work), false)
			last := len(s.work) - 1
			s.work[i], s.sent[i] = s.work[last], s.sent[last]
			s.work, s.sent = s.work[:last], s.sent[:last]
		}
	}
	return done / capacity, took / float64(ended), func(at time.Duration) int { return trace[at/(100*time.Millisecond)] }
}

func TestAutoPlacesFindsAndFollows(t *testing.T) {
	for _, slots := range []int{4, 20, 100} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("%d, %d", slots, seed), func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, uint64(slots)))
				s := &server{slots: func(at int64) int {
					if at > int64(60*time.Second) && at < int64(90*time.Second) {
						return slots / 2
					}
					return slots
				}}
				used, slower, places := find(random, s, 1, 1000, 120*time.Second)
				t.Logf("used %.1f%%, took %.2f times as long, %d places at 20 s, %d at 59 s, %d at 85 s, %d at 119 s", 100*used, slower,
					places(20*time.Second), places(59*time.Second), places(85*time.Second), places(119*time.Second))
				if used < 0.9 {
					t.Errorf("%.1f%% of the server used", 100*used)
				}
				if slower > 1.6 {
					t.Errorf("requests take %.2f times as long as alone", slower)
				}
				if n := places(59 * time.Second); n < slots*3/4 || n > slots*3/2 {
					t.Errorf("%d places after 59 s", n)
				}
			})
		}
	}
}

// Without anybody who waits, the places that are not needed do not grow; with
// failures they shrink, once for all that were under way.
func TestAutoPlacesSteps(t *testing.T) {
	a := NewAutoPlaces(10, 100)
	const ms = int64(time.Millisecond)
	for i := range int64(100) {
		a.Done(i*100*ms+50*ms, i*100*ms, 50*time.Millisecond, 1, false)
	}
	if a.Places() != 10 {
		t.Errorf("%d places for one request at a time", a.Places())
	}
	a.places, a.began = 50, 20_000*ms
	for range 50 {
		a.Done(21_000*ms, 20_500*ms, 500*time.Millisecond, 50, true)
	}
	if a.Places() != 45 {
		t.Errorf("%d places after one failure of many", a.Places())
	}
}
