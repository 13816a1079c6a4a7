package shaping_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A chance picks what happens.
type chance struct {
	pick source
	cost int // the highest; 0: every request is one
}

func (c chance) in(n int) bool { return c.pick(n) == 0 }

func (c chance) terms(t testing.TB, places bool) shaping.Terms {
	terms := shaping.Terms{
		Rate: mustRate(t, ledgerRates[c.pick(len(ledgerRates))]), Burst: int64(1 + c.pick(4)), Queue: c.pick(10),
	}
	terms.MaxWait = max(1, time.Duration(c.pick(120))*terms.Rate.Interval()/10)
	if places {
		terms.MaxInFlight = c.pick(4)
		if terms.MaxInFlight > 0 && c.in(3) {
			terms.Rate, terms.Burst = limiter.Rate{}, 0
		}
	}
	if c.in(2) {
		terms.ReserveHigh = []float64{0.2, 0.5, 0.25, 0.9}[c.pick(4)]
		if terms.MaxInFlight == 1 {
			terms.MaxInFlight = 2 // of one place nothing can be reserved
		}
	}
	if c.in(2) {
		terms.PromoteAfter = terms.MaxWait/time.Duration(1+c.pick(8)) + 1
	}
	return terms
}

func (c chance) entrant(classes, flows int, maxWait time.Duration) shaping.Entrant {
	e := shaping.Entrant{Class: queue.Class(c.pick(classes)), Flow: string(rune('A' + c.pick(flows)))}
	if c.cost > 0 {
		e.Cost = int64(c.pick(c.cost + 1))
	}
	if c.in(4) {
		e.MaxWait = 1 + time.Duration(c.pick(130))*maxWait/100
	}
	return e
}

// A lineWalk takes a Line and the reference the same random way.
type lineWalk struct {
	chance
	t        testing.TB
	line     shaping.Line[int]
	ref      *ref
	ledger   *ledger
	terms    shaping.Terms
	now      int64
	waiters  map[int]*shaping.Waiter[int]
	placed   map[int]bool // could not be foreseen: places, or a machine that stalled
	inFlight []int        // who holds a place
	classes  map[int]queue.Class
	counts   map[string]int
}

func (w *lineWalk) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("at %d, under %+v: %s", w.now, w.terms, fmt.Sprintf(format, args...))
}

func (w *lineWalk) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.fail("%v", err)
	}
}

func (w *lineWalk) pass(d int64) {
	w.now += d
	w.ledger.passes(d, w.terms)
}

func (w *lineWalk) step() int64 {
	if w.terms.Rate.Count == 0 {
		return 100 * ms
	}
	return int64(w.terms.Rate.Interval())
}

// serve does what a driver does when something is due. Now and then the client
// of the head has left, which only then comes to light.
func (w *lineWalk) serve() {
	for {
		if head := w.line.Head(w.now); head != nil && w.line.Due(w.now) <= w.now && w.in(12) {
			w.ref.look(w.now)
			if next := w.ref.next(); next.id != head.Value || !w.line.Cancel(head) || !w.ref.remove(next) {
				w.fail("the head is %d, want %d", head.Value, next.id)
			}
			w.ok(w.ledger.ends(head.Value, "gone"))
			w.counts["found gone"]++
			continue
		}
		got, want := w.line.Leave(w.now), w.ref.leave(w.now)
		if got == nil && want == nil {
			break
		}
		if got == nil || want == nil || got.Value != want.id {
			w.fail("Leave took %+v, want %+v", got, want)
		}
		if w.line.Cancel(got) {
			w.fail("%d gave up after it had left", got.Value)
		}
		w.ledger.left(w.terms, want.cost, want.e.Class)
		w.ok(w.ledger.ends(got.Value, "left"))
		w.ok(w.ledger.ordered(got.Value, want.e))
		w.goes(got.Value)
		w.counts["left after waiting"]++
	}
	waiter, why := w.line.Expire(w.now)
	want, whyNot := w.ref.expire(w.now)
	switch {
	case waiter == nil && want == nil:
		return
	case waiter == nil || want == nil || waiter.Value != want.id || why != whyNot:
		w.fail("Expire took %+v, %q, want %+v, %q", waiter, why, want, whyNot)
	case why == limiter.ReasonMaxWait && !w.placed[waiter.Value]:
		w.fail("%d was let in, was not overtaken, and waited for nothing", waiter.Value)
	}
	w.ok(w.ledger.ends(waiter.Value, string(why)))
	w.counts["later "+string(why)]++
	w.serve() // a cheaper one may have become the head by it
}

// goes notes who takes a place.
func (w *lineWalk) goes(id int) {
	w.inFlight = append(w.inFlight, id)
	if most := w.terms.MaxInFlight; most > 0 && len(w.inFlight) > most {
		w.fail("%d in flight", len(w.inFlight))
	}
	below := 0
	for _, id := range w.inFlight {
		if w.classes[id] != queue.High {
			below++
		}
	}
	if most := w.ref.restPlaces(); w.ref.held(w.classes[id]) && most > 0 && below > most {
		w.fail("%d in flight of classes below high", below)
	}
}

// done ends one that is in flight.
func (w *lineWalk) done(i int) {
	c := w.classes[w.inFlight[i]]
	w.inFlight = slices.Delete(w.inFlight, i, i+1)
	w.line.Done(w.now, c)
	w.ref.done(w.now, c)
}

func (w *lineWalk) arrive(id int, e shaping.Entrant) {
	want, wantOut := w.ref.enter(w.now, e, id)
	got, waiter, out := w.line.Enter(w.now, e, id)
	if got != want || (waiter != nil) != want.Queued || (out != nil) != (wantOut != nil) || out != nil && out.Value != wantOut.id {
		w.fail("Enter %+v: %+v and %v out, want %+v and %v out", e, got, out, want, wantOut)
	}
	w.ledger.came[id], w.classes[id] = "", e.Class
	if out != nil {
		w.ok(w.ledger.ends(out.Value, "put out"))
		w.counts["put out"]++
	}
	switch {
	case waiter != nil:
		// Who comes while a departure is overdue cannot know for how long it
		// goes on being so.
		w.waiters[id], w.placed[id] = waiter, w.terms.MaxInFlight > 0 || w.line.Due(w.now) <= w.now
	case want.Reason == limiter.ReasonNone:
		w.ledger.left(w.terms, w.ref.cost(e), e.Class)
		w.ok(w.ledger.ends(id, "left"))
		w.goes(id)
		w.counts["went at once"]++
	default:
		w.ok(w.ledger.ends(id, "refused"))
		w.counts["refused "+string(want.Reason)]++
	}
	if depth := w.line.Depth(w.now); waiter != nil && depth > w.terms.Queue && out == nil {
		w.fail("%d wait", depth)
	}
}

func (w *lineWalk) compare() {
	if got, want := w.line.Waiting(), len(w.ref.all); got != want {
		w.fail("%d wait, want %d", got, want)
	}
	if got, want := max(w.now, w.line.Due(w.now)), max(w.now, w.ref.due(w.now)); got != want {
		w.fail("due %d, want %d", got, want)
	}
	if got, want := max(w.now, w.line.Wake(w.now)), max(w.now, w.ref.wake(w.now)); got != want {
		w.fail("wake %d, want %d", got, want)
	}
	if got, want := w.line.Paused(w.now), w.ref.paused; got != want {
		w.fail("paused until %d, want %d", got, want)
	}
	if got := w.line.InFlight(); got != len(w.inFlight) || got != w.ref.taken {
		w.fail("%d in flight, want %d", got, len(w.inFlight))
	}
	for _, c := range [...]queue.Class{queue.High, queue.Low} {
		if n, more := w.line.Remaining(w.now, c); n < 0 || more < 0 {
			w.fail("%d remain, more after %v", n, more)
		}
	}
}

// jumps says which of what cannot happen to a live queue is to happen: late
// timers and a clock that steps.
type jumps struct{ late, clock bool }

func walkLedger(t testing.TB, steps int, pick source, j jumps) map[string]int {
	w := &lineWalk{
		chance: chance{pick: pick}, t: t, ledger: newLedger(), now: 3600 * second,
		waiters: map[int]*shaping.Waiter[int]{}, placed: map[int]bool{}, counts: map[string]int{},
		classes: map[int]queue.Class{},
	}
	classes, flows, places := 1+pick(3), 1+pick(4), w.in(2)
	w.cost = []int{0, 3, 9}[pick(3)]
	w.terms = w.terms0(places)
	w.line, w.ref = shaping.NewLine[int](w.terms), newRef(w.terms)
	for step := range steps {
		w.compare()
		e := w.entrant(classes, flows, w.terms.MaxWait)
		if got, want := w.line.LookFor(w.now, e), w.ref.verdict(w.now, e); got != want {
			w.fail("%+v is told %+v, want %+v", e, got, want)
		} else if n, cost := w.ref.really(e); !w.ref.passes(w.now, e) && got.Reason == limiter.ReasonNone && (got.Ahead < n || got.Wait < w.ref.wait(w.now, w.ref.lineup(cost), w.ref.cost(e), e.Class) && len(w.ref.all) > 0) {
			w.fail("%+v is told %+v, and ahead are %d that cost %d", e, got, n, cost)
		}
		switch op := pick(20); {
		case op < 6:
			if !j.late || w.in(2) {
				w.serve() // a driver does, before it asks
			}
			w.arrive(step, e)
		case op < 7:
			w.truth(e)
		case op < 9 && len(w.ref.all) > 0:
			r := w.ref.all[pick(len(w.ref.all))]
			waiter := w.waiters[r.id]
			if !w.line.Cancel(waiter) || w.line.Cancel(waiter) || !w.ref.remove(r) {
				w.fail("giving up must work once")
			}
			w.ok(w.ledger.ends(r.id, "gone"))
			w.counts["gave up"]++
		case op < 11 && len(w.inFlight) > 0:
			w.done(pick(len(w.inFlight)))
			if !j.late {
				w.serve()
			}
		case op < 15: // what is due next, or a while if that is nothing
			at := w.line.Wake(w.now)
			if at == shaping.Endless {
				w.until(w.now+int64(pick(300))*w.step()/100, j)
				break
			}
			if at > w.now && at-w.now < int64(48*time.Hour) {
				w.pass(at - 1 - w.now)
				if w.line.Leave(w.now) != nil || w.ref.leave(w.now) != nil {
					w.fail("left 1 ns before it was due")
				}
				w.pass(1)
			}
			if j.late {
				switch pick(4) {
				case 0:
					w.pass(int64(pick(int(shaping.Slack) + 1)))
				case 1:
					w.stall(int64(pick(1000)) * w.step() / 100)
				}
			}
			w.serve()
		case op < 17:
			w.until(w.now+int64(pick(200))*w.step()/100, j)
		case op < 18:
			until := w.now + int64(pick(400))*w.step()/100
			switch pick(4) {
			case 0:
				until = shaping.Endless
			case 1, 2:
				w.line.Resume(w.now)
				w.ref.resume(w.now)
				continue
			}
			w.line.Pause(w.now, until)
			w.ref.pause(w.now, until)
		case op < 19:
			was := w.terms
			w.terms = w.terms0(places)
			if w.in(3) { // only the rate
				rate := w.terms.Rate
				if w.terms = was; was.Rate.Count > 0 && rate.Count > 0 {
					w.terms.Rate = rate
				}
			}
			w.line.Adopt(w.now, w.terms)
			w.ref.adopt(w.now, w.terms)
			if w.terms.MaxInFlight > 0 {
				w.unforeseen()
			}
			w.ledger.changes(was, w.terms)
		case j.clock:
			by := int64(pick(3600)) * second
			if w.in(2) && w.now > 3*by {
				w.now -= by // and no time has passed
				w.unforeseen()
				break
			}
			w.now += by
			w.unforeseen()
			w.ledger.breaks()
		}
	}
	w.drain()
	w.ok(w.ledger.balance())
	return w.counts
}

func (w *lineWalk) terms0(places bool) shaping.Terms { return w.chance.terms(w.t, places) }

// unforeseen notes that who waits now may wait in vain for what no line can
// foresee.
func (w *lineWalk) unforeseen() {
	for _, r := range w.ref.all {
		w.placed[r.id] = true
	}
}

// stall lets time pass in which no timer comes.
func (w *lineWalk) stall(d int64) {
	w.pass(d)
	w.unforeseen()
}

// until lets time pass until then; what is due meanwhile is served in time, or if
// timers are late at the end.
func (w *lineWalk) until(to int64, j jumps) {
	for !j.late && !j.clock {
		at := w.line.Wake(w.now)
		if at > to {
			break
		}
		w.pass(max(0, at-w.now))
		w.serve()
	}
	if j.late || j.clock {
		w.unforeseen()
	}
	w.pass(to - w.now)
}

// drain ends everything, and sees that nothing is left.
func (w *lineWalk) drain() {
	w.line.Resume(w.now)
	w.ref.resume(w.now)
	for w.line.Waiting() > 0 {
		for len(w.inFlight) > 0 {
			w.done(0)
		}
		w.serve()
		if w.line.Waiting() == 0 {
			break
		}
		w.compare()
		at := w.line.Wake(w.now)
		if at <= w.now || at == shaping.Endless {
			w.fail("%d wait, and nothing is due", w.line.Waiting())
		}
		w.pass(at - w.now)
	}
	for len(w.inFlight) > 0 {
		w.done(0)
	}
	if w.line.InFlight() != 0 || w.line.Waiting() != 0 || w.line.Oldest() >= 0 || w.line.Head(w.now) != nil {
		w.fail("%d in flight, %d wait at the end", w.line.InFlight(), w.line.Waiting())
	}
	idle := w.line.Idle(w.now)
	if w.line.Idle(w.now+int64(idle)) != 0 {
		w.fail("not as good as new after %v", idle)
	}
}
