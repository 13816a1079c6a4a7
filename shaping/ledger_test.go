package shaping_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A ledger notes how each request ended, and of each departure the instant and
// the terms in force, and holds that against the promise of the package comment.
type ledger struct {
	came, ended map[int]string
	stretches   [][]entry // of time through which there was a rate, and no clock was set forward
	budget      int64     // what the rate has allowed until now, in 1/units of a request
	last        map[string]int
	below       [][]otherEntry // what left of classes below High, by stretch of time with a reserve
	restBudget  float64        // what the rate that is not reserved has allowed
}

// An otherEntry is a departure of a class below High, in floats, as shares of rates
// have no common unit.
type otherEntry struct{ budget, perNS, burst, cost float64 }

// unreserved is what of t is for everybody.
func unreserved(t shaping.Terms) (perNS, burst float64) {
	share := 1 - t.ReserveHigh
	return share * float64(t.Rate.Count) / float64(t.Rate.Per), max(1, math.Floor(share*float64(t.Burst)+1e-9))
}

// An entry is one departure.
type entry struct{ budget, perNS, burst, cost int64 }

// units is a multiple of Per for every rate that a ledger is kept of, so that
// budgets are whole numbers. A budget of 400 million requests still is one.
const units = int64(21 * time.Second)

var ledgerRates = []string{"20/m", "2/s", "7/s", "3/7ms", "100/s", "1999/s"}

func newLedger() *ledger {
	return &ledger{came: map[int]string{}, ended: map[int]string{}, stretches: [][]entry{nil}, below: [][]otherEntry{nil}, last: map[string]int{}}
}

func perNS(r limiter.Rate) int64 { return r.Count * (units / int64(r.Per)) }

// passes lets time pass under terms t.
func (l *ledger) passes(d int64, t shaping.Terms) {
	if t.Rate.Count > 0 {
		l.budget += d * perNS(t.Rate)
		rate, _ := unreserved(t)
		l.restBudget += float64(d) * rate
	}
}

// breaks says that what left before and what leaves from here on are bound by
// nothing together.
func (l *ledger) breaks() { l.stretches, l.below = append(l.stretches, nil), append(l.below, nil) }

// changes notes other terms, under which more or less may be reserved.
func (l *ledger) changes(was, is shaping.Terms) {
	if (was.Rate.Count > 0) != (is.Rate.Count > 0) {
		l.breaks()
	}
	if (was.ReserveHigh > 0) != (is.ReserveHigh > 0) {
		l.below = append(l.below, nil)
	}
}

// left notes a departure.
func (l *ledger) left(t shaping.Terms, cost int64, c queue.Class) {
	if t.Rate.Count == 0 {
		return
	}
	last := len(l.stretches) - 1
	l.stretches[last] = append(l.stretches[last], entry{l.budget, perNS(t.Rate), t.Burst, cost})
	if n := len(l.below) - 1; t.ReserveHigh > 0 && c != queue.High { // else what binds all is all that does
		rate, burst := unreserved(t)
		l.below[n] = append(l.below[n], otherEntry{l.restBudget, rate, burst, float64(cost)})
	}
}

// reserved checks, for all pairs of departures of those below High, that they kept
// to what is not reserved.
func (l *ledger) reserved() error {
	for _, out := range l.below {
		for i := range out {
			rate, burst, n := 0.0, 0.0, 0.0
			for _, e := range out[i:] {
				rate, burst = max(rate, e.perNS), max(burst, e.burst)
				n += e.cost
				if most := e.budget - out[i].budget + float64(shaping.Slack)*rate + burst + max(0, e.cost-e.burst); n > most+1e-3 {
					return fmt.Errorf("%v left of classes below high where %.3f may", n, most)
				}
			}
		}
	}
	return nil
}

// ends notes that a request ended, which each does once.
func (l *ledger) ends(id int, how string) error {
	if was, twice := l.ended[id]; twice {
		return fmt.Errorf("request %d ended as %q and as %q", id, was, how)
	}
	l.ended[id] = how
	return nil
}

// ordered notes that a waiter left: of its class and flow none that came later
// has left before.
func (l *ledger) ordered(id int, e shaping.Entrant) error {
	key := fmt.Sprint(e.Class, e.Flow)
	if last, ok := l.last[key]; ok && id < last {
		return fmt.Errorf("request %d left after %d of the same class and flow", id, last)
	}
	l.last[key] = id
	return nil
}

// balance checks the rate for all pairs of departures, and that all who came
// have ended.
func (l *ledger) balance() error {
	for id := range l.came {
		if _, ok := l.ended[id]; !ok {
			return fmt.Errorf("request %d never ended", id)
		}
	}
	if err := l.reserved(); err != nil {
		return err
	}
	for _, out := range l.stretches {
		for i := range out {
			rate, burst, n := out[i].perNS, out[i].burst, int64(0)
			for j := i; j < len(out); j++ {
				rate, burst = max(rate, out[j].perNS), max(burst, out[j].burst)
				n += out[j].cost
				most := burst + max(0, out[j].cost-out[j].burst)
				if (n-most)*units > out[j].budget-out[i].budget+int64(shaping.Slack)*rate {
					return fmt.Errorf("%d left where the rate allows %.3f, the burst is %d and the last cost %d", n, float64(out[j].budget-out[i].budget)/float64(units), burst, out[j].cost)
				}
			}
		}
	}
	return nil
}

// The promise, and that line and reference agree in everything, over random
// arrivals of all classes and flows, own deadlines, cancellations, clients
// found gone, places given back, changes of all terms, pauses with and without
// end, late timers, stalls, and steps of the clock.
func TestLedger(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 11))
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			for what, n := range walkLedger(t, 150, rnd.IntN, jumps{late: seed%3 > 0, clock: seed%3 > 1}) {
				counts[what] += n
			}
		})
		if !ok {
			break
		}
	}
	for _, what := range []string{
		"went at once", "left after waiting", "found gone", "gave up", "put out", "refused queue_full", "refused max_wait",
		"refused paused", "later queue_full", "later paused", "later max_wait", "checked refusals",
	} {
		if counts[what] < 25 {
			t.Errorf("%s: only %d", what, counts[what])
		}
	}
	t.Log(counts)
}

func FuzzLedger(f *testing.F) {
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 12))
		b := make([]byte, 600)
		for i := range b {
			b[i] = byte(rnd.UintN(256))
		}
		f.Add(byte(seed), b)
	}
	f.Fuzz(func(t *testing.T, kind byte, data []byte) {
		walkLedger(t, min(len(data)/4, 150), func(n int) int {
			x := 0
			for range 2 {
				x <<= 8
				if len(data) > 0 {
					x, data = x|int(data[0]), data[1:]
				}
			}
			if n > 1<<16 {
				return x * (n >> 16)
			}
			return x % n
		}, jumps{late: kind%3 > 0, clock: kind%3 > 1})
	})
}
