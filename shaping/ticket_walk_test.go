package shaping_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A backRef is a queue of one each second to which requests come back, in its
// slow and obvious form: who waits, by when they came first.
type backRef struct {
	next    int64 // when the next may leave
	waiting []backer
	story   []string
}

type backer struct {
	id     int   // in the order of arrival
	until  int64 // its patience
	ticket *shaping.Ticket
}

const (
	backPlaces   = 4
	backPatience = 6 * second
)

// enter is one that comes, for the first time or again.
func (m *backRef) enter(now int64, b backer, again bool) string {
	ahead := 0
	for _, o := range m.waiting {
		if !again || o.id < b.id {
			ahead++
		}
	}
	switch leaves := max(now, m.next) + int64(ahead)*second; {
	case again && b.until < now:
		return "max_wait"
	case len(m.waiting) == 0 && m.next <= now:
		m.next = now + second
		return "passes"
	case !again && len(m.waiting) >= backPlaces:
		return "queue_full"
	case leaves > b.until:
		return "max_wait"
	}
	m.waiting = append(m.waiting, b)
	slices.SortFunc(m.waiting, func(a, b backer) int { return cmp.Compare(a.id, b.id) })
	return "waits"
}

// wake is when the next thing happens.
func (m *backRef) wake() int64 {
	if len(m.waiting) == 0 {
		return shaping.Endless
	}
	at := m.next
	for _, b := range m.waiting {
		at = min(at, b.until)
	}
	return at
}

// serve does what is due, and returns who left.
func (m *backRef) serve(now int64) (left []backer) {
	for len(m.waiting) > 0 && m.next <= now {
		left = append(left, m.waiting[0])
		m.story = append(m.story, fmt.Sprint(now, " leaves ", m.waiting[0].id))
		m.waiting, m.next = m.waiting[1:], now+second
	}
	m.waiting = slices.DeleteFunc(m.waiting, func(b backer) bool {
		if b.until <= now {
			m.story = append(m.story, fmt.Sprint(now, " gives up ", b.id))
		}
		return b.until <= now
	})
	return left
}

// TestAgainWalk: whoever comes and comes back, the line does what the reference
// does, at the same instants; so no turn is given that the rate does not allow.
func TestAgainWalk(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 35))
		line := shaping.NewLine[int](shaping.Terms{Rate: mustRate(t, "1/s"), Burst: 1, Queue: backPlaces, MaxWait: time.Duration(backPatience)})
		ref := &backRef{}
		var story []string
		var served []backer // who may come back
		waiters := map[int]*shaping.Waiter[int]{}
		now := 1000 * second
		happens := func(until int64) {
			for {
				at := line.Wake(now)
				if got, want := max(now, at), max(now, ref.wake()); got != want {
					t.Fatalf("seed %d at %d: wakes at %d, want %d", seed, now, got, want)
				}
				if at > until {
					break
				}
				now = max(now, at)
				for w := line.Leave(now); w != nil; w = line.Leave(now) {
					story = append(story, fmt.Sprint(now, " leaves ", w.Value))
				}
				var gone []int
				for w, _ := line.Expire(now); w != nil; w, _ = line.Expire(now) {
					gone = append(gone, w.Value)
				}
				slices.Sort(gone)
				for _, id := range gone {
					story = append(story, fmt.Sprint(now, " gives up ", id))
				}
				served = append(served, ref.serve(now)...)
				if !slices.Equal(story, ref.story) {
					t.Fatalf("seed %d: %q, want %q", seed, story, ref.story)
				}
			}
			now = until
		}
		for id := range 300 {
			happens(now + rnd.Int64N(6)*second/4)
			b, again := backer{id, now + backPatience, new(shaping.Ticket)}, false
			switch {
			case len(served) > 0 && rnd.IntN(2) == 0:
				at := rnd.IntN(len(served))
				b, again = served[at], true
				served = slices.Delete(served, at, at+1)
			case len(ref.waiting) > 0 && rnd.IntN(6) == 0:
				at := rnd.IntN(len(ref.waiting))
				if !line.Cancel(waiters[ref.waiting[at].id]) {
					t.Fatalf("seed %d: %d does not wait", seed, ref.waiting[at].id)
				}
				ref.waiting = slices.Delete(ref.waiting, at, at+1)
				continue
			}
			want := ref.enter(now, b, again)
			verdict, w, out := line.Enter(now, shaping.Entrant{Ticket: b.ticket}, b.id)
			got := string(verdict.Reason)
			switch {
			case w != nil:
				got, waiters[b.id] = "waits", w
			case verdict.Reason == limiter.ReasonNone:
				got = "passes"
				served = append(served, b)
			}
			if got != want || out != nil {
				t.Fatalf("seed %d at %d: %d (again: %v) %s, want %s", seed, now, b.id, again, got, want)
			}
			counts[fmt.Sprintf("%s %v", want, again)]++
		}
	}
	for _, what := range []string{"passes false", "passes true", "waits false", "waits true", "max_wait true", "queue_full false"} {
		if counts[what] < 100 {
			t.Errorf("%s only %d times: %v", what, counts[what], counts)
		}
	}
}
