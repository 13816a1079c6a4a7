package limiter

// A tokenBucket is the generic cell rate algorithm (ITU-T I.371): instead of
// counting tokens, it keeps the theoretical arrival time, at which the bucket
// is full again. Its fraction of a nanosecond is exact, so that 7 a minute
// stays 7 a minute for ever.
type tokenBucket struct {
	burst      int64
	count, per int64 // count tokens in per nanoseconds
}

// A tokenState is the theoretical arrival time: tat + frac ÷ count
// nanoseconds.
type tokenState struct{ tat, frac int64 }

func newTokenBucket(p Policy) tokenBucket {
	return tokenBucket{p.Burst, p.Rate.Count, int64(p.Rate.Per)}
}

// span is the time in which n <= burst tokens come.
func (b tokenBucket) span(n int64) (ns, frac int64) { return mulDiv(n, b.per, b.count) }

// debt is the time until the bucket is full, at most that of an empty one.
func (b tokenBucket) debt(s tokenState, now int64) (ns, frac int64) {
	if s.tat < now {
		return 0, 0
	}
	ns, frac = b.span(b.burst)
	if d := s.tat - now; d < ns || d == ns && s.frac < frac {
		return d, s.frac
	}
	return ns, frac
}

func (b tokenBucket) settle(s *tokenState, now int64) {
	if s.tat > now {
		ns, frac := b.debt(*s, now)
		*s = tokenState{now + ns, frac}
	}
}

// wait is until the debt is down to that of burst − cost tokens.
func (b tokenBucket) wait(s tokenState, now, cost int64) int64 {
	if cost > b.burst {
		return never
	}
	ns, frac := b.debt(s, now)
	roomNs, roomFrac := b.span(b.burst - cost)
	w := ns - roomNs
	if frac > roomFrac {
		w++
	}
	return max(0, w)
}

func (b tokenBucket) remaining(s tokenState, now int64) int64 {
	ns, frac := b.span(b.burst)
	debtNs, debtFrac := b.debt(s, now)
	ns, frac = minus(ns, frac, debtNs, debtFrac, b.count)
	n, _ := mulAddDiv(ns, b.count, frac, b.per)
	return n
}

func (b tokenBucket) rank(s tokenState, now int64) int64 {
	ns, frac := b.debt(s, now)
	if frac > 0 {
		ns++
	}
	return ns
}

func (b tokenBucket) take(s *tokenState, now, cost int64) {
	ns, frac := b.debt(*s, now)
	costNs, costFrac := b.span(cost)
	ns, frac = ns+costNs, frac+costFrac
	if frac >= b.count {
		ns, frac = ns+1, frac-b.count
	}
	*s = tokenState{now + ns, frac}
}

func (b tokenBucket) giveBack(s *tokenState, at, now, cost int64) {
	backNs, backFrac := b.span(min(cost, b.burst))
	backNs, backFrac = minus(backNs, backFrac, max(0, now-at), 0, b.count)
	ns, frac := b.debt(*s, now)
	ns, frac = minus(ns, frac, backNs, backFrac, b.count)
	*s = tokenState{now + ns, frac}
}

// adopt converts the debt by way of whole tokens and what is left below one,
// so that the rounding, upwards, is below a nanosecond.
func (b tokenBucket) adopt(old tokenBucket, s *tokenState, now int64) {
	ns, frac := old.debt(*s, now)
	tokens, rest := mulAddDiv(ns, old.count, frac, old.per)
	rest = ceilMulDiv(rest, b.per, old.per)
	fullNs, fullFrac := b.span(b.burst)
	if tokens >= b.burst {
		*s = tokenState{now + fullNs, fullFrac}
		return
	}
	ns, frac = mulAddDiv(tokens, b.per, rest, b.count)
	*s = tokenState{now + ns, frac}
}

func (b tokenBucket) quota(int64) (limit, window int64) {
	return b.burst, ceilMulDiv(b.burst, b.per, b.count)
}

// minus is (ns, frac) − (byNs, byFrac), not below zero, with fractions of
// 1 ÷ count.
func minus(ns, frac, byNs, byFrac, count int64) (int64, int64) {
	ns, frac = ns-byNs, frac-byFrac
	if frac < 0 {
		ns, frac = ns-1, frac+count
	}
	if ns < 0 {
		return 0, 0
	}
	return ns, frac
}
