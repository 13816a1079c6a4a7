package limiter

// A fixedWindow counts the requests of each window and starts anew with the
// next. It is the cheapest to explain, and lets up to twice the limit through
// around a boundary.
type fixedWindow struct {
	limit int64
	windows
}

// A fixedState is the count of the window that begins at start.
type fixedState struct{ start, count int64 }

func newFixedWindow(p Policy) *fixedWindow {
	return &fixedWindow{p.Limit, newWindows(p)}
}

// current is the state in the window of now. The count of a window to come,
// seen after the clock was set back, counts for this one.
func (w *fixedWindow) current(s fixedState, now int64) fixedState {
	start := w.at(now).start
	if s.start < start {
		s.count = 0
	}
	s.start = start
	return s
}

func (w *fixedWindow) settle(s *fixedState, now int64) { *s = w.current(*s, now) }

func (w *fixedWindow) wait(s fixedState, now, cost int64) int64 {
	if cost > w.limit {
		return never
	}
	s = w.current(s, now)
	if s.count <= w.limit-cost {
		return 0
	}
	return w.at(now).end - now
}

func (w *fixedWindow) remaining(s fixedState, now int64) int64 {
	return w.limit - w.current(s, now).count
}

func (w *fixedWindow) rank(s fixedState, now int64) int64 {
	s = w.current(s, now)
	return ceilMulDiv(w.at(now).end-now, s.count, w.limit)
}

func (w *fixedWindow) take(s *fixedState, now, cost int64) {
	*s = w.current(*s, now)
	s.count += cost
}

func (w *fixedWindow) giveBack(s *fixedState, at, now, cost int64) {
	*s = w.current(*s, now)
	if w.at(at).start == s.start {
		s.count = max(0, s.count-cost)
	}
}

func (w *fixedWindow) adopt(old *fixedWindow, s *fixedState, now int64) {
	used := old.current(*s, now).count
	*s = fixedState{w.at(now).start, min(used, w.limit)}
}

func (w *fixedWindow) quota(now int64) (limit, window int64) { return w.limit, w.at(now).length() }
