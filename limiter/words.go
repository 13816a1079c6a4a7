package limiter

import "time"

// A Meter is the arithmetic of one Policy for states that are kept elsewhere,
// such as on a server that several processes share. It takes the decisions that
// a Limit takes, and holds nothing: a Meter is safe for concurrent use.
//
// A state is a list of numbers, nil for a key never seen. Instants are in
// nanoseconds of Unix time.
//
//   - TokenBucket and LeakyBucket, which decide alike: the instant at which all
//     is back, and the fraction beyond it in 1 ÷ Rate.Count nanoseconds.
//   - FixedWindow: the start of a window, and the count in it.
//   - SlidingWindowCounter: the start of a window, the count in it, and the
//     count of the window before.
//   - SlidingWindowLog: instants and counts in turn, the oldest first.
type Meter struct {
	policy Policy
	on     words
}

// words is a meter of any algorithm on states in the form of numbers.
type words interface {
	decide(state []int64, now, cost int64) (wait int64, q quota, ok bool)
	move(to words, state []int64, at int64) (moved []int64, ok bool)
	window(now int64) interval
}

// NewMeter returns a Meter that follows p, or says what is wrong with p.
func NewMeter(p Policy) (*Meter, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	m := &Meter{policy: p}
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		m.on = &wordsOf[tokenState, *tokenBucket]{newTokenBucket(p), p}
	case FixedWindow:
		m.on = &wordsOf[fixedState, *fixedWindow]{newFixedWindow(p), p}
	case SlidingWindowLog:
		m.on = &wordsOf[logState, *slidingLog]{newSlidingLog(p), p}
	case SlidingWindowCounter:
		m.on = &wordsOf[counterState, *slidingCounter]{newSlidingCounter(p), p}
	}
	return m, nil
}

// Policy returns what the Meter follows.
func (m *Meter) Policy() Policy { return m.policy }

// Decide says what a Limit with that state says at now about cost, without
// taking it. It is not ok if the policy's decisions cannot have left the state.
func (m *Meter) Decide(state []int64, now, cost int64) (d Decision, ok bool) {
	wait, q, ok := m.on.decide(state, now, cost)
	d.RetryAfter = time.Duration(wait)
	m.policy.describe(&d, &q, time.Unix(0, now))
	return d, ok
}

// Adopt returns what a state that was counted by another Meter of the same
// algorithm becomes when this one takes its place at an instant, as of
// Limit.Adopt. It is not ok if was cannot have left the state.
func (m *Meter) Adopt(was *Meter, state []int64, at int64) (moved []int64, ok bool) {
	return was.on.move(m.on, state, at)
}

// Window returns the start and the end of the window that now is in, for a
// policy that has windows aligned to the clock; otherwise zeros.
func (m *Meter) Window(now int64) (start, end int64) {
	i := m.on.window(now)
	return i.start, i.end
}

type wordsOf[S any, M meter[S, M]] struct {
	meter  M
	policy Policy
}

func (w *wordsOf[S, M]) decide(state []int64, now, cost int64) (wait int64, q quota, ok bool) {
	var s S
	if state != nil && !setState(any(&s), state, w.policy) {
		return never, q, false
	}
	if cost > 0 {
		wait = w.meter.wait(s, now, cost)
	}
	return wait, quotaOf(w.meter, s, now), true
}

func (w *wordsOf[S, M]) move(to words, state []int64, at int64) ([]int64, bool) {
	target, ok := to.(*wordsOf[S, M])
	var s S
	if !ok || state != nil && !setState(any(&s), state, w.policy) {
		return nil, false
	}
	target.meter.adopt(w.meter, &s, at)
	return stateWords(nil, any(&s)), true
}

func (w *wordsOf[S, M]) window(now int64) (i interval) {
	switch m := any(w.meter).(type) {
	case *fixedWindow:
		return m.at(now)
	case *slidingCounter:
		start := m.grid.start(now)
		return interval{start, start + m.grid.length}
	}
	return interval{}
}
