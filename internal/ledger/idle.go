package ledger

import (
	"cmp"
	"slices"
	"time"
)

// Grain is the longest that a departure may be idle without a cause that is
// known: what the looks at the machine do not see, such as another machine's
// use of the same processor.
const Grain = 10 * time.Millisecond

// longRun is how long somebody has to wait on end for the rate to be judged.
const longRun = time.Second

// idle finds when nobody left though somebody waited, and the rate and the
// places allowed it; and by how much that made the rate fall short.
func (a *audit) idle() {
	interval := a.interval()
	waiting, full := union(a.waits), a.full()
	// Who was released as its client left is in the log without a departure,
	// and its turn was used.
	forgiven := a.Unsent
	for i, at := range a.departed {
		free := span{at.Add(interval), at.Add(time.Hour)}
		if i+1 < len(a.departed) {
			free.to = a.departed[i+1]
		}
		for _, w := range waiting {
			var idle time.Duration
			stretch := span{latest(free.from, w.from), earliest(free.to, w.to)}
			if idle = stretch.length() - within(full, stretch); idle <= 0 {
				continue
			}
			idle -= a.stalls.During(stretch.from.Add(-between), stretch.to)
			if idle > Grain && forgiven > 0 {
				forgiven--
				idle -= interval
			}
			if a.Idle = max(a.Idle, idle); idle > max(interval, Grain, a.terms.Idle) {
				a.problem("idle", "nobody left for %v from %s on, though somebody waited", idle, stretch.from.Format(time.StampMicro))
			}
		}
	}
	if a.terms.Slowest.Count == 0 && a.terms.Rate.Count > 0 && a.terms.Places == 0 {
		a.longRun(waiting, interval)
	}
}

func (a *audit) interval() time.Duration {
	rate := a.terms.Rate
	if a.terms.Slowest.Count > 0 {
		rate = a.terms.Slowest
	}
	if rate.Count == 0 {
		return 0
	}
	return time.Duration(int64(rate.Per) / rate.Count)
}

// longRun compares how many left while somebody waited with how many the rate
// allows. A departure that used its turn for a client that had gone counts.
func (a *audit) longRun(waiting []span, interval time.Duration) {
	var whole, behind, stalled time.Duration
	for _, w := range waiting {
		var during []time.Time
		for _, at := range a.departed {
			if !at.Before(w.from) && !at.After(w.to) {
				during = append(during, at)
			}
		}
		if n := len(during); n > 1 && during[n-1].Sub(during[0]) >= longRun {
			took := during[n-1].Sub(during[0])
			whole += took
			behind += took - time.Duration(n-1)*interval
			stalled += a.stalls.During(during[0], during[n-1])
		}
	}
	if whole == 0 {
		return
	}
	behind -= time.Duration(a.Unsent) * interval
	a.Behind = float64(behind) / float64(whole)
	net := max(0, behind-stalled)
	a.Net = float64(net) / float64(whole)
	if a.Net > 0.01 && net > interval+max(Grain, a.terms.Idle) {
		a.problem("idle", "the rate fell short by %.2f %% while somebody waited, of which stalls of the machine explain all but %.2f %%", 100*a.Behind, 100*a.Net)
	}
}

// full is when every place at the upstream was taken, by the log.
func (a *audit) full() []span {
	if a.terms.Places == 0 {
		return nil
	}
	return a.inFlight(0, a.terms.Places)
}

// places finds when more were at the upstream than there are places. A place is
// free a moment before the line about it is written.
func (a *audit) places() {
	for _, s := range a.inFlight(Grain, a.terms.Places+1) {
		if s.length() > 0 {
			a.problem("places", "more than %d were at the upstream for %v from %s on", a.terms.Places, s.length(), s.from.Format(time.StampMicro))
		}
	}
}

// inFlight is when at least n requests were at the upstream by the log, if each
// ended that much before its line was written.
func (a *audit) inFlight(before time.Duration, n int) []span {
	type change struct {
		at time.Time
		by int
	}
	var changes []change
	for _, line := range a.proxy.Log {
		if !line.Departed.IsZero() {
			ended := latest(line.Departed, line.Time.Add(-before))
			changes = append(changes, change{line.Departed, 1}, change{ended, -1})
		}
	}
	slices.SortFunc(changes, func(x, y change) int { return cmp.Or(x.at.Compare(y.at), x.by-y.by) })
	var spans []span
	taken := 0
	for i, c := range changes {
		if taken += c.by; taken >= n && i+1 < len(changes) {
			spans = append(spans, span{c.at, changes[i+1].at})
		}
	}
	return spans
}

// union joins what overlaps.
func union(spans []span) []span {
	spans = slices.SortedFunc(slices.Values(spans), func(x, y span) int { return x.from.Compare(y.from) })
	var joined []span
	for _, s := range spans {
		if n := len(joined); n > 0 && !s.from.After(joined[n-1].to) {
			joined[n-1].to = latest(joined[n-1].to, s.to)
		} else {
			joined = append(joined, s)
		}
	}
	return joined
}

// within is how much of s the spans cover, which do not overlap.
func within(spans []span, s span) (d time.Duration) {
	for _, one := range spans {
		d += one.overlap(s.from, s.to)
	}
	return d
}

func (s span) length() time.Duration { return max(0, s.to.Sub(s.from)) }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
