package limiter

import "sort"

// A slidingLog remembers when each request came: never more than limit in any
// window, exactly. It pays with memory: an entry of 16 bytes for each instant
// with requests, up to limit of them a key.
type slidingLog struct{ limit, window int64 }

// A logState is a ring of entries, the oldest at head, that grows as it fills
// and is freed when it empties.
type logState struct {
	ring    []logEntry
	head, n int
	used    int64 // sum of all entries
}

type logEntry struct{ at, n int64 } // of equal instants there is one entry

func newSlidingLog(p Policy) slidingLog { return slidingLog{p.Limit, int64(p.Window)} }

// nth is the entry in place i from the oldest.
func (s *logState) nth(i int) *logEntry {
	if i += s.head; i >= len(s.ring) {
		i -= len(s.ring)
	}
	return &s.ring[i]
}

func (s *logState) push(at, n, limit int64) {
	if s.used += n; s.n > 0 && s.nth(s.n-1).at == at {
		s.nth(s.n - 1).n += n
		return
	}
	if s.n == len(s.ring) {
		s.resize(int(min(limit, max(4, 2*int64(s.n)))))
	}
	s.n++
	*s.nth(s.n - 1) = logEntry{at, n}
}

func (s *logState) resize(size int) {
	ring := make([]logEntry, size)
	for i := range s.n {
		ring[i] = *s.nth(i)
	}
	s.ring, s.head = ring, 0
}

// shift drops the oldest entry.
func (s *logState) shift() {
	s.used -= s.nth(0).n
	s.n--
	if s.head++; s.head == len(s.ring) {
		s.head = 0
	}
}

// trim frees memory that the entries no longer need.
func (s *logState) trim() {
	if s.n == 0 {
		*s = logState{}
	} else if len(s.ring) >= 16 && s.n <= len(s.ring)/4 {
		s.resize(len(s.ring) / 2)
	}
}

func (w slidingLog) settle(s *logState, now int64) {
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
func (w slidingLog) wait(s logState, now, cost int64) int64 {
	if cost > w.limit {
		return never
	}
	over := s.used - (w.limit - cost)
	var leaves int64
	for i := 0; over > 0; i++ {
		e := s.nth(i)
		over -= e.n
		leaves = min(e.at, now) + w.window - now
	}
	return max(0, leaves)
}

func (w slidingLog) remaining(s logState, now int64) int64 {
	left := w.limit - s.used
	for i := 0; i < s.n && s.nth(i).at <= now-w.window; i++ {
		left += s.nth(i).n
	}
	return left
}

func (w slidingLog) rank(s logState, now int64) int64 {
	if s.n == 0 {
		return 0
	}
	idle := min(s.nth(s.n-1).at, now) + w.window - now
	return ceilMulDiv(max(0, idle), s.used, w.limit)
}

func (w slidingLog) take(s *logState, now, cost int64) {
	if w.settle(s, now); cost > 0 {
		s.push(now, cost, w.limit)
	}
}

func (w slidingLog) giveBack(s *logState, at, now, cost int64) {
	w.settle(s, now)
	i := sort.Search(s.n, func(i int) bool { return s.nth(i).at >= at })
	if i == s.n || s.nth(i).at != at {
		return
	}
	e := s.nth(i)
	back := min(cost, e.n)
	e.n, s.used = e.n-back, s.used-back
	if e.n > 0 {
		return
	}
	for ; i+1 < s.n; i++ {
		*s.nth(i) = *s.nth(i + 1)
	}
	s.n--
	s.trim()
}

// adopt drops the oldest above the limit: they do not change what must leave
// before the next one fits.
func (w slidingLog) adopt(old slidingLog, s *logState, now int64) {
	old.settle(s, now)
	for s.used > w.limit {
		if e := s.nth(0); s.used-e.n < w.limit {
			e.n -= s.used - w.limit
			s.used = w.limit
		} else {
			s.shift()
		}
	}
	w.settle(s, now)
}

func (w slidingLog) quota(int64) (limit, window int64) { return w.limit, w.window }
