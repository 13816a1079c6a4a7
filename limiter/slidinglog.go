package limiter

import "sort"

// A slidingLog remembers when each request came: never more than limit in any
// window, exactly. It pays with memory: an entry of 16 bytes for each instant
// with requests, up to limit of them a key, for as long as they count.
type slidingLog struct{ limit, window int64 }

func newSlidingLog(p Policy) *slidingLog { return &slidingLog{p.Limit, int64(p.Window)} }

// A logState is the log of a key. One that has nothing to remember has none and
// takes a word.
type logState struct{ *log }

// A log is a ring of entries, the oldest at head, that grows as it fills.
type log struct {
	ring    []logEntry
	head, n int
	used    int64 // sum of all entries
}

type logEntry struct{ at, n int64 } // of equal instants there is one entry

// nothing stands for the log of a key that has none, where it is only read.
var nothing log

func (s logState) read() *log {
	if s.log == nil {
		return &nothing
	}
	return s.log
}

// nth is the entry in place i from the oldest.
func (l *log) nth(i int) *logEntry {
	if i += l.head; i >= len(l.ring) {
		i -= len(l.ring)
	}
	return &l.ring[i]
}

func (l *log) push(at, n, limit int64) {
	if l.used += n; l.n > 0 && l.nth(l.n-1).at == at {
		l.nth(l.n - 1).n += n
		return
	}
	if l.n == len(l.ring) {
		l.resize(int(min(limit, max(1, 2*int64(l.n)))))
	}
	l.n++
	*l.nth(l.n - 1) = logEntry{at, n}
}

func (l *log) resize(size int) {
	ring := make([]logEntry, size)
	for i := range l.n {
		ring[i] = *l.nth(i)
	}
	l.ring, l.head = ring, 0
}

// shift drops the oldest entry.
func (l *log) shift() {
	l.used -= l.nth(0).n
	l.n--
	if l.head++; l.head == len(l.ring) {
		l.head = 0
	}
}

// trim frees memory that the entries no longer need.
func (s *logState) trim() {
	if s.n == 0 {
		s.log = nil
	} else if len(s.ring) >= 16 && s.n <= len(s.ring)/4 {
		s.resize(len(s.ring) / 2)
	}
}

func (w *slidingLog) settle(s *logState, now int64) {
	if s.log == nil {
		return
	}
	for s.n > 0 && s.nth(0).at <= now-w.window {
		s.shift()
	}
	// The clock was set back: what lies ahead counts as come now.
	var ahead int64
	for s.n > 0 && s.nth(s.n-1).at > now {
		ahead += s.nth(s.n - 1).n
		s.n--
	}
	if s.used -= ahead; ahead > 0 {
		s.push(now, ahead, w.limit)
	}
	s.trim()
}

// wait is until enough of the oldest entries have left.
func (w *slidingLog) wait(s logState, now, cost int64) int64 {
	if cost > w.limit {
		return never
	}
	l := s.read()
	over := l.used - (w.limit - cost)
	var leaves int64
	for i := 0; over > 0; i++ {
		e := l.nth(i)
		over -= e.n
		leaves = min(e.at, now) + w.window - now
	}
	return max(0, leaves)
}

func (w *slidingLog) remaining(s logState, now int64) int64 {
	l := s.read()
	left := w.limit - l.used
	for i := 0; i < l.n && l.nth(i).at <= now-w.window; i++ {
		left += l.nth(i).n
	}
	return left
}

func (w *slidingLog) rank(s logState, now int64) int64 {
	l := s.read()
	if l.n == 0 {
		return 0
	}
	idle := min(l.nth(l.n-1).at, now) + w.window - now
	return ceilMulDiv(max(0, idle), l.used, w.limit)
}

func (w *slidingLog) take(s *logState, now, cost int64) {
	if w.settle(s, now); s.log == nil {
		s.log = new(log)
	}
	s.push(now, cost, w.limit)
}

func (w *slidingLog) giveBack(s *logState, at, now, cost int64) {
	w.settle(s, now)
	l := s.read()
	i := sort.Search(l.n, func(i int) bool { return l.nth(i).at >= at })
	if i == l.n || l.nth(i).at != at {
		return
	}
	e := l.nth(i)
	back := min(cost, e.n)
	e.n, l.used = e.n-back, l.used-back
	if e.n > 0 {
		return
	}
	for ; i+1 < l.n; i++ {
		*l.nth(i) = *l.nth(i + 1)
	}
	l.n--
	s.trim()
}

// adopt drops the oldest above the limit: they do not change what must leave
// before the next one fits.
func (w *slidingLog) adopt(old *slidingLog, s *logState, now int64) {
	old.settle(s, now)
	for s.read().used > w.limit {
		if e := s.nth(0); s.used-e.n < w.limit {
			e.n -= s.used - w.limit
			s.used = w.limit
		} else {
			s.shift()
		}
	}
	w.settle(s, now)
}

func (w *slidingLog) quota(int64) (limit, window int64) { return w.limit, w.window }
