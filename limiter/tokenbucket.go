package limiter

// A tokenBucket is the generic cell rate algorithm (ITU-T I.371): instead of
// counting tokens, it keeps the theoretical arrival time, at which the bucket
// is full again. Its fraction of a nanosecond is exact, so that 7 a minute
// stays 7 a minute for ever.
type tokenBucket struct {
	burst      int64
	count, per int64 // count tokens in per nanoseconds

	// The spans of one token and of all, as a division takes longer than the
	// rest of a decision.
	oneNs, oneFrac   int64
	fullNs, fullFrac int64
}

// A tokenState is the theoretical arrival time: tat + frac ÷ count
// nanoseconds.
type tokenState struct{ tat, frac int64 }

func newTokenBucket(p Policy) *tokenBucket {
	b := &tokenBucket{burst: p.Burst, count: p.Rate.Count, per: int64(p.Rate.Per)}
	b.oneNs, b.oneFrac = mulDiv(1, b.per, b.count)
	b.fullNs, b.fullFrac = mulDiv(b.burst, b.per, b.count)
	return b
}

// span is the time in which n <= burst tokens come.
func (b *tokenBucket) span(n int64) (ns, frac int64) {
	if n == 1 {
		return b.oneNs, b.oneFrac
	}
	return mulDiv(n, b.per, b.count)
}

// debt is the time until the bucket is full, at most that of an empty one.
func (b *tokenBucket) debt(s tokenState, now int64) (ns, frac int64) {
	if s.tat < now {
		return 0, 0
	}
	if d := s.tat - now; d < b.fullNs || d == b.fullNs && s.frac < b.fullFrac {
		return d, s.frac
	}
	return b.fullNs, b.fullFrac
}

func (b *tokenBucket) settle(s *tokenState, now int64) {
	if s.tat > now {
		ns, frac := b.debt(*s, now)
		*s = tokenState{now + ns, frac}
	}
}

// wait is until the debt is down to that of burst − cost tokens.
func (b *tokenBucket) wait(s tokenState, now, cost int64) int64 {
	if cost > b.burst {
		return never
	}
	ns, frac := b.debt(s, now)
	costNs, costFrac := b.span(cost)
	roomNs, roomFrac := minus(b.fullNs, b.fullFrac, costNs, costFrac, b.count)
	w := ns - roomNs
	if frac > roomFrac {
		w++
	}
	return max(0, w)
}

func (b *tokenBucket) remaining(s tokenState, now int64) int64 {
	debtNs, debtFrac := b.debt(s, now)
	ns, frac := minus(b.fullNs, b.fullFrac, debtNs, debtFrac, b.count)
	n, _ := mulAddDiv(ns, b.count, frac, b.per)
	return n
}

func (b *tokenBucket) rank(s tokenState, now int64) int64 {
	ns, frac := b.debt(s, now)
	if frac > 0 {
		ns++
	}
	return ns
}

func (b *tokenBucket) take(s *tokenState, now, cost int64) {
	ns, frac := b.debt(*s, now)
	costNs, costFrac := b.span(cost)
	ns, frac = ns+costNs, frac+costFrac
	if frac >= b.count {
		ns, frac = ns+1, frac-b.count
	}
	*s = tokenState{now + ns, frac}
}

func (b *tokenBucket) giveBack(s *tokenState, at, now, cost int64) {
	backNs, backFrac := b.span(min(cost, b.burst))
	backNs, backFrac = minus(backNs, backFrac, max(0, now-at), 0, b.count)
	ns, frac := b.debt(*s, now)
	ns, frac = minus(ns, frac, backNs, backFrac, b.count)
	*s = tokenState{now + ns, frac}
}

// adopt converts the debt by way of whole tokens and what is left below one,
// so that the rounding, upwards, is below a nanosecond.
func (b *tokenBucket) adopt(old *tokenBucket, s *tokenState, now int64) {
	ns, frac := old.debt(*s, now)
	tokens, rest := mulAddDiv(ns, old.count, frac, old.per)
	rest = ceilMulDiv(rest, b.per, old.per)
	if tokens >= b.burst {
		*s = tokenState{now + b.fullNs, b.fullFrac}
		return
	}
	ns, frac = mulAddDiv(tokens, b.per, rest, b.count)
	*s = tokenState{now + ns, frac}
}

func (b *tokenBucket) quota(int64) (limit, window int64) {
	if b.fullFrac > 0 {
		return b.burst, b.fullNs + 1
	}
	return b.burst, b.fullNs
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
