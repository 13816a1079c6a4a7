package shaping_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// The bounds on waiting that the package comment gives for classes and turns.

// A crowd is a Line under overload whose timers are never late.
type crowd struct {
	shaping.Line[int]
	now     int64
	waiting []*crowdWaiter
	all     []*crowdWaiter
}

type crowdWaiter struct {
	e    shaping.Entrant
	came int64
	w    *shaping.Waiter[int]
	left int64 // when; 0: waits

	flows  int // how many there were at most while it waited
	behind int // how many of its own flow wait before it
}

func (c *crowd) enter(e shaping.Entrant) {
	_, w, out := c.Enter(c.now, e, len(c.all))
	if out != nil {
		c.waiting = slices.DeleteFunc(c.waiting, func(o *crowdWaiter) bool { return o.w == out })
	}
	v := &crowdWaiter{e: e, came: c.now, w: w}
	c.all = append(c.all, v)
	if w == nil {
		return
	}
	for _, o := range c.waiting {
		if o.e.Flow == e.Flow {
			v.behind++
		}
	}
	c.waiting = append(c.waiting, v)
	flows := map[string]bool{}
	for _, o := range c.waiting {
		flows[o.e.Flow] = true
	}
	for _, o := range c.waiting {
		o.flows = max(o.flows, len(flows))
	}
}

// leave lets the next out, at its time.
func (c *crowd) leave() *crowdWaiter {
	if c.Waiting() == 0 {
		return nil
	}
	c.now = max(c.now, c.Due(c.now))
	v := c.all[c.Leave(c.now).Value]
	v.left = c.now
	c.waiting = slices.DeleteFunc(c.waiting, func(o *crowdWaiter) bool { return o == v })
	return v
}

// Low is overtaken by newcomers for 2 × PromoteAfter at most; then nobody who
// came later goes before it.
func TestBoundOfLow(t *testing.T) {
	const promote = 2 * time.Second
	overtaken := 0
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 17))
		c := &crowd{now: epoch, Line: shaping.NewLine[int](shaping.Terms{
			Rate: mustRate(t, "20/s"), Burst: 1, Queue: 1 << 20, MaxWait: 1000 * time.Hour, PromoteAfter: promote,
		})}
		for range 800 {
			// More than the rate of High alone.
			for range 1 + rnd.IntN(2) {
				c.enter(shaping.Entrant{Class: queue.High})
			}
			if rnd.IntN(8) == 0 {
				c.enter(shaping.Entrant{Class: queue.Class(1 + rnd.IntN(2))})
			}
			v := c.leave()
			for _, o := range c.waiting {
				if o.came >= v.came || o.e.Class == queue.High {
					continue
				}
				overtaken++
				if c.now > o.came+int64(promote)*int64(o.e.Class) {
					t.Fatalf("seed %d: one of class %d that had waited %v was overtaken", seed, o.e.Class, time.Duration(c.now-o.came))
				}
			}
		}
	}
	if overtaken < 1000 {
		t.Fatalf("only %d overtaken, which proves nothing", overtaken)
	}
}

// With n flows at most, the k-th waiter of a flow waits for no more than k × n
// departures, whatever the others pour in.
func TestBoundOfTurns(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 18))
		rate := mustRate(t, "20/s")
		c := &crowd{now: epoch, Line: shaping.NewLine[int](shaping.Terms{
			Rate: rate, Burst: 1, Queue: 200, MaxWait: 1000 * time.Hour,
		})}
		flows := 2 + rnd.IntN(8)
		longest := 0
		for range 600 {
			switch rnd.IntN(3) {
			case 0:
				for range rnd.IntN(100) { // a flood
					c.enter(shaping.Entrant{Flow: "A"})
				}
			case 1:
				c.enter(shaping.Entrant{Flow: fmt.Sprint(rnd.IntN(flows))})
			}
			if v := c.leave(); v != nil {
				waited := int((v.left - v.came + int64(rate.Interval()) - 1) / int64(rate.Interval()))
				if most := (v.behind + 1) * v.flows; waited > most {
					t.Fatalf("seed %d: the waiter %d of %q waited for %d departures with %d flows at most", seed, v.behind+1, v.e.Flow, waited, v.flows)
				}
				longest = max(longest, waited)
			}
		}
		if longest < 20 {
			t.Fatalf("seed %d: nobody waited long", seed)
		}
	}
}

// Behind the aged waiters of a flood a newcomer waits for its own age, and then
// for one turn of each flow.
func TestBoundOfTurnsWithAgeing(t *testing.T) {
	rate := mustRate(t, "10/s")
	for class := range queue.Low + 1 {
		c := &crowd{now: epoch, Line: shaping.NewLine[int](shaping.Terms{
			Rate: rate, Burst: 1, Queue: 1000, MaxWait: 1000 * time.Hour, PromoteAfter: 2 * time.Second,
		})}
		c.enter(shaping.Entrant{})
		longest := time.Duration(0)
		for i := range 3000 {
			c.enter(shaping.Entrant{Class: class, Flow: "flood"})
			c.enter(shaping.Entrant{Class: class, Flow: "flood"})
			if i%50 == 49 {
				c.enter(shaping.Entrant{Class: class, Flow: "small"})
			}
			if v := c.leave(); v.e.Flow == "small" {
				longest = max(longest, time.Duration(v.left-v.came))
			}
		}
		least := 2 * time.Second * time.Duration(class)
		if most := least + 2*rate.Interval(); longest < least || longest > most {
			t.Errorf("class %d: the newcomer waited for %v, want %v to %v", class, longest, least, most)
		}
	}
}
