package limiter

// A leakyBucket is the leaky bucket as a meter: requests fill it, it drains at
// the rate, and what would overflow is refused. It takes the same decisions as
// a token bucket, seen from the other side, by different arithmetic: requests
// rather than time.
type leakyBucket struct {
	burst      int64
	count, per int64 // count requests leak in per nanoseconds
}

// A leakyState is the level that the bucket had at an instant:
// level + part ÷ per requests.
type leakyState struct{ level, part, at int64 }

func newLeakyBucket(p Policy) *leakyBucket {
	return &leakyBucket{p.Burst, p.Rate.Count, int64(p.Rate.Per)}
}

// less takes n + part ÷ per requests out, as far as there are any.
func (b *leakyBucket) less(s leakyState, n, part int64) leakyState {
	s.level, s.part = minus(s.level, s.part, n, part, b.per)
	return s
}

// drained is the state at now. An instant ahead of now drains nothing.
func (b *leakyBucket) drained(s leakyState, now int64) leakyState {
	if now > s.at {
		n, part := mulDiv(now-s.at, b.count, b.per)
		s = b.less(s, n, part)
	}
	s.at = now
	return s
}

func (b *leakyBucket) settle(s *leakyState, now int64) { *s = b.drained(*s, now) }

func (b *leakyBucket) wait(s leakyState, now, cost int64) int64 {
	if cost > b.burst {
		return never
	}
	s = b.drained(s, now)
	over := s.level - (b.burst - cost)
	if over < 0 || over == 0 && s.part == 0 {
		return 0
	}
	w, rest := mulAddDiv(over, b.per, s.part, b.count)
	if rest > 0 {
		w++
	}
	return w
}

func (b *leakyBucket) remaining(s leakyState, now int64) int64 {
	s = b.drained(s, now)
	if s.part > 0 {
		s.level++
	}
	return b.burst - s.level
}

func (b *leakyBucket) rank(s leakyState, now int64) int64 {
	s = b.drained(s, now)
	ns, rest := mulAddDiv(s.level, b.per, s.part, b.count)
	if rest > 0 {
		ns++
	}
	return ns
}

func (b *leakyBucket) take(s *leakyState, now, cost int64) {
	*s = b.drained(*s, now)
	s.level += cost
}

func (b *leakyBucket) giveBack(s *leakyState, at, now, cost int64) {
	n, part := mulDiv(max(0, now-at), b.count, b.per)
	n, part = minus(cost, 0, n, part, b.per)
	*s = b.less(b.drained(*s, now), n, part)
}

func (b *leakyBucket) adopt(old *leakyBucket, s *leakyState, now int64) {
	*s = old.drained(*s, now)
	if s.part = ceilMulDiv(s.part, b.per, old.per); s.part == b.per {
		s.level, s.part = s.level+1, 0
	}
	if s.level >= b.burst {
		s.level, s.part = b.burst, 0
	}
}

func (b *leakyBucket) quota(int64) (limit, window int64) {
	return b.burst, ceilMulDiv(b.burst, b.per, b.count)
}
