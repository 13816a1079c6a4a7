package shaping_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func mustRate(t testing.TB, s string) limiter.Rate {
	t.Helper()
	r, err := limiter.ParseRate(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A model is a line in its slow and obvious form: a list of who waits, and a
// list of everything that ever left, in units of 1/Count ns.
type model struct {
	count, per, burst int64
	places            int
	maxWait           int64
	left              []int64
	waiting           []int
}

// due is the earliest instant at which leaving keeps, with each stretch of the
// past, to burst + rate × its length.
func (m *model) due(now int64) int64 {
	due := int64(math.MinInt64 / 2)
	for i, at := range m.left {
		departures := int64(len(m.left) - i) // from that one on
		due = max(due, at+(departures+1-m.burst)*m.per)
	}
	return due
}

// setBack, when the schedule lies further off than an emptied bucket explains,
// empties the bucket now.
func (m *model) setBack(now int64) bool {
	if m.due(now) <= now*m.count+m.per {
		return false
	}
	m.leave(now * m.count)
	return true
}

// leave lets one out who waited, which proves the bucket empty: it is as if the
// whole burst had left at that instant and nothing before.
func (m *model) leave(at int64) {
	m.left = nil
	for range m.burst {
		m.left = append(m.left, at)
	}
}

func (m *model) lagging(now int64) int64 {
	return max(m.due(now), (now-int64(shaping.Slack))*m.count)
}

// ceil is the first whole nanosecond that is not before.
func (m *model) ceil(units int64) int64 {
	ns := units / m.count
	if units%m.count > 0 {
		ns++
	}
	return ns
}

func (m *model) wait(now int64, ahead int) time.Duration {
	return time.Duration(max(0, m.ceil(m.lagging(now)+int64(ahead)*m.per)-now))
}

func (m *model) look(now int64) shaping.Verdict {
	if len(m.waiting) == 0 && m.due(now) <= now*m.count {
		return shaping.Verdict{}
	}
	ahead := len(m.waiting)
	wait := m.wait(now, ahead)
	v := shaping.Verdict{Queued: true, Ahead: ahead, Wait: wait}
	full, long := ahead >= m.places, wait > time.Duration(m.maxWait)
	if full {
		v = shaping.Verdict{Reason: limiter.ReasonQueueFull, Ahead: ahead, RetryAfter: m.wait(now, 0)}
	}
	if long {
		reason := limiter.ReasonMaxWait
		if full {
			reason = limiter.ReasonQueueFull
		}
		v = shaping.Verdict{Reason: reason, Ahead: ahead, RetryAfter: max(v.RetryAfter, wait-time.Duration(m.maxWait))}
	}
	if full || long {
		v.RetryAfter = max(1, v.RetryAfter)
	}
	return v
}

// free counts how many pass at now until one does not.
func (m *model) free(now int64) int64 {
	trial := *m
	trial.left = slices.Clone(m.left)
	n := int64(0)
	for trial.due(now) <= now*trial.count {
		trial.left = append(trial.left, now*trial.count)
		n++
	}
	return n
}

// A source chooses a number from 0 to n-1.
type source func(n int) int

// walk takes a line and the model the same random way and compares them at each
// step.
func walk(t *testing.T, steps int, pick source) {
	rates := []limiter.Rate{
		mustRate(t, "1/s"), mustRate(t, "7/m"), mustRate(t, "1000/s"), mustRate(t, "3/7ms"),
		mustRate(t, "2000/s"), mustRate(t, "1999/s"), mustRate(t, "0.1/s"),
	}
	rate := rates[pick(len(rates))]
	interval := int64(rate.Interval())
	m := &model{
		count: rate.Count, per: int64(rate.Per), burst: int64(1 + pick(4)),
		places: pick(6), maxWait: interval * int64(1+pick(8)),
	}
	line := shaping.NewLine[int](shaping.Terms{Rate: rate, Burst: m.burst, Queue: m.places, MaxWait: time.Duration(m.maxWait)})
	waiters := map[int]*shaping.Waiter[int]{}
	now := int64(3_600_000_000_000)

	for step := range steps {
		m.setBack(now)
		if got, want := line.Look(now), m.look(now); got != want {
			t.Fatalf("step %d at %d: Look %+v, want %+v", step, now, got, want)
		}
		if got, want := line.Depth(now), len(m.waiting); got != want {
			t.Fatalf("step %d: Depth %d, want %d", step, got, want)
		}
		if got, want := max(line.Due(now), now), max(m.ceil(m.due(now)), now); got != want {
			t.Fatalf("step %d: Due %d, want %d", step, got, want)
		}
		checkRemaining(t, &line, m, now)

		switch op := pick(10); {
		case op < 4:
			want := m.look(now)
			got, w := line.Arrive(now, step)
			if got != want || (w != nil) != want.Queued {
				t.Fatalf("step %d: Arrive %+v, %v, want %+v", step, got, w, want)
			}
			switch {
			case w != nil:
				m.waiting = append(m.waiting, step)
				waiters[step] = w
			case want.Reason == limiter.ReasonNone:
				m.left = append(m.left, now*m.count)
			}
		case op < 5 && len(m.waiting) > 0:
			i := pick(len(m.waiting))
			w := waiters[m.waiting[i]]
			if !line.Cancel(w) || line.Cancel(w) {
				t.Fatalf("step %d: Cancel must work once", step)
			}
			m.waiting = slices.Delete(slices.Clone(m.waiting), i, i+1)
		case op < 8 && len(m.waiting) > 0: // the timer comes: early, in time, a bit late, very late
			due := m.ceil(m.due(now))
			if due > now {
				now = due - 1
				if w := line.Leave(now); w != nil {
					t.Fatalf("step %d: left 1 ns before it was due", step)
				}
				now++
			}
			switch pick(4) {
			case 0:
				now += int64(pick(2_000_001))
			case 1:
				now += int64(pick(1000)) * interval / 100
			}
			at := m.lagging(now)
			w := line.Leave(now)
			if w == nil || w.Value != m.waiting[0] {
				t.Fatalf("step %d: Leave took %v, want %d", step, w, m.waiting[0])
			}
			if line.Cancel(w) {
				t.Fatalf("step %d: gave up after it had left", step)
			}
			m.leave(at)
			m.waiting = m.waiting[1:]
		case op < 9:
			now += int64(pick(400)) * interval / 100
		default:
			now += int64(pick(7)-3) * interval * 2
		}
	}
}

func checkRemaining(t *testing.T, line *shaping.Line[int], m *model, now int64) {
	t.Helper()
	n, more := line.Remaining(now, queue.High)
	if len(m.waiting) > 0 {
		if n != int64(m.places-len(m.waiting)) || more != m.wait(now, 0) {
			t.Fatalf("Remaining %d, %d with %d of %d waiting", n, more, len(m.waiting), m.places)
		}
		if line.Idle(now) != shaping.Pinned {
			t.Fatal("somebody waits and the line may be forgotten")
		}
		return
	}
	free := m.free(now)
	if n != free+int64(m.places) {
		t.Fatalf("Remaining %d, want %d free and %d places", n, free, m.places)
	}
	if later := now + int64(more); more == 0 {
		if free != m.burst {
			t.Fatalf("%d of %d free, and no time until it is more", free, m.burst)
		}
	} else if m.free(later) <= free || m.free(later-1) > free {
		t.Fatalf("%d free; after %v %d, 1 ns before %d", free, more, m.free(later), m.free(later-1))
	}
	idle := int64(line.Idle(now))
	if m.free(now+idle) != m.burst || idle > 0 && m.free(now+idle-1) == m.burst && m.due(now)+(m.burst-1)*m.per <= (now+idle-1)*m.count {
		t.Fatalf("as good as new after %d ns, then %d of %d free", idle, m.free(now+idle), m.burst)
	}
}

func TestLineAgainstModel(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		walk(t, 120, rnd.IntN)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzLine(f *testing.F) {
	f.Add([]byte{0, 0, 3, 3, 0, 0, 0, 7, 0, 7, 1, 99, 5, 7})
	f.Add([]byte{4, 3, 5, 7, 0, 0, 0, 0, 0, 7, 1, 200, 7, 0, 255, 9, 0, 0, 0})
	f.Add([]byte{1, 0, 2, 1, 0, 0, 4, 0, 0, 8, 250, 0, 9, 6, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		walk(t, min(len(data), 100), func(n int) int {
			// Two bytes a choice, so that large ranges are reached; zeros at the end.
			x := 0
			for range 2 {
				x <<= 8
				if len(data) > 0 {
					x, data = x|int(data[0]), data[1:]
				}
			}
			if n > 1<<16 {
				return x * (n >> 16)
			}
			return x % n
		})
	})
}
