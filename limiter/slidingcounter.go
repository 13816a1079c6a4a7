package limiter

// A slidingCounter keeps two counters, of this window and the one before, and
// assumes that the requests of the window before came evenly. A request passes
// when
//
//	previous × (share of the window still to come) + current + cost <= limit
//
// compared without rounding. It may take up to two windows until a request
// fits: current becomes previous and then has to fade.
type slidingCounter struct {
	limit int64
	grid  grid
}

// A counterState is the counts of the window that begins at start and of the
// one before.
type counterState struct{ start, current, previous int64 }

func newSlidingCounter(p Policy) *slidingCounter {
	return &slidingCounter{p.Limit, newGrid(int64(p.Window))}
}

// at is the state in the window of now. Counts of a window to come, seen after
// the clock was set back, count for this one.
func (w *slidingCounter) at(s counterState, now int64) counterState {
	switch start := w.grid.start(now); {
	case s.start >= start:
		return counterState{start, s.current, s.previous}
	case s.start == start-w.grid.length:
		return counterState{start, 0, s.current}
	default:
		return counterState{start: start}
	}
}

func (w *slidingCounter) settle(s *counterState, now int64) { *s = w.at(*s, now) }

func (w *slidingCounter) wait(s counterState, now, cost int64) int64 {
	if cost > w.limit {
		return never
	}
	s = w.at(s, now)
	if s.current <= w.limit-cost {
		// In this window, or at the start of the next, where current takes
		// the place of previous.
		return max(0, s.start+w.grid.length-w.share(w.limit-cost-s.current, s.previous)-now)
	}
	return s.start + 2*w.grid.length - w.share(w.limit-cost, s.current) - now
}

// share is the longest remaining time of a window in which the faded previous
// is at most room.
func (w *slidingCounter) share(room, previous int64) int64 {
	if previous <= room {
		return w.grid.length
	}
	ns, _ := mulDiv(room, w.grid.length, previous)
	return ns
}

// used is the faded previous and the current count, rounded up, and no more
// than the limit, which a clock set back or an Adopt may leave behind.
func (w *slidingCounter) used(s counterState, now int64) int64 {
	faded := ceilMulDiv(s.previous, s.start+w.grid.length-now, w.grid.length)
	return s.current + min(faded, w.limit-s.current)
}

func (w *slidingCounter) remaining(s counterState, now int64) int64 {
	return w.limit - w.used(w.at(s, now), now)
}

func (w *slidingCounter) rank(s counterState, now int64) int64 {
	s = w.at(s, now)
	idle := s.start + w.grid.length - now
	if s.current > 0 {
		idle += w.grid.length
	}
	return ceilMulDiv(idle, w.used(s, now), w.limit)
}

func (w *slidingCounter) take(s *counterState, now, cost int64) {
	*s = w.at(*s, now)
	s.current += cost
}

func (w *slidingCounter) giveBack(s *counterState, at, now, cost int64) {
	*s = w.at(*s, now)
	switch w.grid.start(at) {
	case s.start:
		s.current = max(0, s.current-cost)
	case s.start - w.grid.length:
		s.previous = max(0, s.previous-cost)
	}
}

func (w *slidingCounter) adopt(old *slidingCounter, s *counterState, now int64) {
	*s = old.at(*s, now)
	if w.grid == old.grid {
		s.current, s.previous = min(s.current, w.limit), min(s.previous, w.limit)
		return
	}
	// What the old windows held counts as if it had come now.
	*s = counterState{start: w.grid.start(now), current: min(old.used(*s, now), w.limit)}
}

func (w *slidingCounter) quota(int64) (limit, window int64) { return w.limit, w.grid.length }
