package limiter

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

// key is one key's state under any algorithm, in integer time.
type key interface {
	// take decides as Memory.Take does and returns the wait.
	take(now, cost int64) int64
	giveBack(at, now, cost int64)
	peek(now, cost int64) int64
	remaining(now int64) int64
	rank(now int64) int64
	adopt(p Policy, now int64)
}

type keyOf[S any, M meter[S, M]] struct {
	s    S
	m    M
	make func(Policy) M
}

func newKey(p Policy) key {
	switch p.Algorithm {
	case TokenBucket:
		return &keyOf[tokenState, *tokenBucket]{m: newTokenBucket(p), make: newTokenBucket}
	case LeakyBucket:
		return &keyOf[leakyState, *leakyBucket]{m: newLeakyBucket(p), make: newLeakyBucket}
	case FixedWindow:
		return &keyOf[fixedState, *fixedWindow]{m: newFixedWindow(p), make: newFixedWindow}
	case SlidingWindowLog:
		return &keyOf[logState, *slidingLog]{m: newSlidingLog(p), make: newSlidingLog}
	default:
		return &keyOf[counterState, *slidingCounter]{m: newSlidingCounter(p), make: newSlidingCounter}
	}
}

func (k *keyOf[S, M]) take(now, cost int64) int64 {
	k.m.settle(&k.s, now)
	wait := k.m.wait(k.s, now, cost)
	if wait == 0 {
		k.m.take(&k.s, now, cost)
	}
	return wait
}

func (k *keyOf[S, M]) giveBack(at, now, cost int64) { k.m.giveBack(&k.s, at, now, cost) }
func (k *keyOf[S, M]) peek(now, cost int64) int64   { return k.m.wait(k.s, now, cost) }
func (k *keyOf[S, M]) remaining(now int64) int64    { return k.m.remaining(k.s, now) }
func (k *keyOf[S, M]) rank(now int64) int64         { return k.m.rank(k.s, now) }
func (k *keyOf[S, M]) adopt(p Policy, now int64) {
	old := k.m
	k.m = k.make(p)
	k.m.adopt(old, &k.s, now)
}

func testPolicy(a Algorithm, limit int64, window time.Duration) Policy {
	p := Policy{Algorithm: a}
	if a.Windowed() {
		p.Limit, p.Window = limit, window
	} else {
		p.Burst, p.Rate = limit, Rate{Count: limit, Per: window}
	}
	return p
}

func each(t *testing.T, f func(t *testing.T, a Algorithm)) {
	for _, a := range Algorithms {
		t.Run(string(a), func(t *testing.T) { f(t, a) })
	}
}

// epoch is a full hour well after 1970.
const (
	sec   = int64(time.Second)
	hour  = 3600 * sec
	epoch = 480_000 * hour
)

// longest is the longest wait that can come of a policy of testPolicy for a
// cost of one.
func longest(a Algorithm, window int64) int64 {
	if a == SlidingWindowCounter {
		return 2 * window
	}
	return window
}

// TestCase10ClockSetBack: go-limiter PR #42 drained every bucket for as long as
// the clock had been set back.
func TestCase10ClockSetBack(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		const window = 60 * sec
		for used := range int64(11) {
			k := newKey(testPolicy(a, 10, time.Minute))
			for range used {
				k.take(epoch, 1)
			}
			now := epoch - hour
			left := k.remaining(now)
			if left > 10-used {
				t.Errorf("%d used: %d left once the clock was set back", used, left)
			}
			if w := k.peek(now, 1); w > longest(a, window) {
				t.Errorf("%d used: to wait for %v", used, time.Duration(w))
			}
			// What is left may be taken, and no more.
			for range left {
				if k.take(now, 1) != 0 {
					t.Errorf("%d used: of %d left not all passed", used, left)
				}
			}
			w := k.take(now, 1)
			if w <= 0 || w > longest(a, window) {
				t.Errorf("%d used: empty, to wait for %v", used, time.Duration(w))
			}
			// Time goes on from there, as told.
			if early := k.take(now+w-1, 1); early == 0 {
				t.Errorf("%d used: passed early", used)
			}
			if k.take(now+w, 1) != 0 {
				t.Errorf("%d used: refused after %v as told", used, time.Duration(w))
			}
			// Nothing is lost for good.
			if n := k.remaining(now + 3*window); n != 10 {
				t.Errorf("%d used: %d of 10 left when all had run out", used, n)
			}
			if k.rank(now+3*window) != 0 {
				t.Error("not as good as new when all had run out")
			}
		}
	})
}

// TestX2_TimeBackByALittle: a step back lets nothing through and loses nothing
// for good; a step forward counts as time that passed, once.
func TestX2_TimeBackByALittle(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		k := newKey(testPolicy(a, 10, time.Minute))
		r := rand.New(rand.NewPCG(5, 6))
		passed, forward, now := 0, int64(0), epoch+hour/2
		for range 500 {
			left := k.remaining(now)
			next := epoch + hour/2 + r.Int64N(sec)
			if forward += max(0, next-now); next < now && k.remaining(next) > left {
				t.Fatalf("%d left, and %d after a step back", left, k.remaining(next))
			}
			if now = next; k.take(now, 1) == 0 {
				passed++
			}
		}
		most := 10
		if !a.Windowed() {
			most += int(forward / (6 * sec)) // what drained
		}
		if passed < 10 || passed > most {
			t.Errorf("%d passed, at most %d", passed, most)
		}
		if n := k.remaining(epoch + 2*hour); n != 10 {
			t.Errorf("%d of 10 left in the end", n)
		}
	})
}

// TestCase10ClockSetForward: a jump forward is like that time having passed.
func TestCase10ClockSetForward(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		for _, by := range []int64{hour, 100_000 * hour, 1<<62 - epoch} {
			k := newKey(testPolicy(a, 10, time.Minute))
			for range 10 {
				k.take(epoch, 1)
			}
			for i := range 12 {
				if w := k.take(epoch+by, 1); (w == 0) != (i < 10) || w > longest(a, 60*sec) {
					t.Errorf("%v forward, request %d: to wait for %v", time.Duration(by), i, time.Duration(w))
				}
			}
		}
	})
}

// TestHugeParameters: the extremes that Validate lets through do not overflow.
func TestHugeParameters(t *testing.T) {
	const most = math.MaxInt64
	for _, p := range []Policy{
		testPolicy(FixedWindow, 5_000_000_000, 365*24*time.Hour),
		testPolicy(FixedWindow, most, MaxWindow),
		testPolicy(FixedWindow, most, 1),
		testPolicy(SlidingWindowLog, 5_000_000_000, 365*24*time.Hour),
		testPolicy(SlidingWindowLog, most, MaxWindow),
		testPolicy(SlidingWindowCounter, 5_000_000_000, 300_000*time.Hour),
		testPolicy(SlidingWindowCounter, most, MaxWindow),
		testPolicy(SlidingWindowCounter, most, 1),
		{Algorithm: TokenBucket, Rate: Rate{1, MaxPeriod}, Burst: 1},
		{Algorithm: TokenBucket, Rate: Rate{1, 1}, Burst: int64(MaxWindow)},
		{Algorithm: TokenBucket, Rate: Rate{999_999_999, 1_000_000_000}, Burst: int64(MaxWindow) / 1_000_000_000 * 999_999_999},
		{Algorithm: TokenBucket, Rate: Rate{999_999_937, MaxPeriod}, Burst: 999_999_937},
		{Algorithm: LeakyBucket, Rate: Rate{1, MaxPeriod}, Burst: 1},
		{Algorithm: LeakyBucket, Rate: Rate{1, 1}, Burst: int64(MaxWindow)},
		{Algorithm: LeakyBucket, Rate: Rate{999_999_999, 1_000_000_000}, Burst: int64(MaxWindow) / 1_000_000_000 * 999_999_999},
		{Algorithm: LeakyBucket, Rate: Rate{999_999_937, MaxPeriod}, Burst: 999_999_937},
	} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
			continue
		}
		limit, window := p.Limit, int64(p.Window)
		if !p.Algorithm.Windowed() {
			limit = p.Burst
			_, window = newTokenBucket(p).quota(epoch)
		}
		for _, now := range []int64{0, epoch, 1 << 62} {
			k := newKey(p)
			if n := k.remaining(now); n != limit {
				t.Errorf("%+v: %d left of a key never seen", p, n)
			}
			if w := k.take(now, 1); w != 0 {
				t.Errorf("%+v: the first is to wait for %v", p, time.Duration(w))
			}
			if limit > 1 {
				if n := k.remaining(now); n != limit-1 {
					t.Errorf("%+v: %d left after one", p, n)
				}
				if w := k.take(now, limit-1); w != 0 {
					t.Errorf("%+v: all the rest is to wait for %v", p, time.Duration(w))
				}
			}
			for _, cost := range []int64{1, limit} {
				w := k.take(now, cost)
				if w <= 0 || w > 2*window {
					t.Errorf("%+v at %d: %d more is to wait for %v", p, now, cost, time.Duration(w))
				}
				if now < 1<<62 && now+w <= 1<<62 {
					if k.peek(now+w-1, cost) == 0 || k.peek(now+w, cost) != 0 {
						t.Errorf("%+v at %d: %d more: %v is not the first instant", p, now, cost, time.Duration(w))
					}
				}
			}
			if k.rank(now) <= 0 {
				t.Errorf("%+v: an exhausted key ranks %d", p, k.rank(now))
			}
			k.adopt(p, now)
			if n := k.remaining(now); n != 0 {
				t.Errorf("%+v: adopting the same freed %d", p, n)
			}
			if back := max(0, now-hour); k.take(back, 1) == 0 {
				t.Errorf("%+v: the clock back by an hour freed something", p)
			}
			if limit < most && k.peek(now, limit+1) != never {
				t.Errorf("%+v: a cost above the limit may pass", p)
			}
			k.giveBack(now, now, limit)
		}
	}
}

// TestAlignment: windows begin where time.Truncate says, for odd lengths too.
func TestAlignment(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	lengths := []time.Duration{1, 7, time.Second, time.Minute, 24 * time.Hour, 7 * 24 * time.Hour, 365 * 24 * time.Hour, MaxWindow}
	for range 500 {
		lengths = append(lengths, time.Duration(1+r.Int64N(1<<uint(1+r.IntN(61)))))
	}
	for _, d := range lengths {
		g := newGrid(int64(d))
		for range 20 {
			now := r.Int64N(1<<62 + 1)
			if at := time.Unix(0, now).UTC().Truncate(d); !time.Unix(0, g.start(now)).Equal(at) {
				t.Fatalf("a window of %v around %d begins at %v, want %v", d, now, time.Unix(0, g.start(now)).UTC(), at)
			}
		}
	}
}

// TestRankIsZeroJustWhenAsGoodAsNew: dropping a state of rank 0 changes no
// later decision, and a state that would is above it.
func TestRankIsZeroJustWhenAsGoodAsNew(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		r := rand.New(rand.NewPCG(1, 2))
		p := testPolicy(a, 7, 1_000_003)
		fresh := newKey(p)
		k := newKey(p)
		now := epoch
		for range 5000 {
			now += r.Int64N(3_000_000) >> uint(r.IntN(8)*3)
			if k.rank(now) == 0 {
				for cost := int64(1); cost <= 7; cost++ {
					if k.peek(now, cost) != fresh.peek(now, cost) {
						t.Fatal("a state of rank 0 is not as good as new")
					}
				}
			} else if left := k.remaining(now); left == 7 && a != SlidingWindowCounter && a != FixedWindow {
				t.Fatal("a state with nothing used is above rank 0")
			}
			k.take(now, 1+r.Int64N(7))
		}
	})
}

// TestRankOfAnExhaustedKey: the whole time until it is as good as new; of a
// key that has used a part, that part of it.
func TestRankOfAnExhaustedKey(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		all, part := newKey(testPolicy(a, 10, time.Minute)), newKey(testPolicy(a, 10, time.Minute))
		all.take(epoch, 10)
		part.take(epoch, 3)
		if r, want := all.rank(epoch), longest(a, 60*sec); r != want {
			t.Errorf("exhausted: %v, want %v", time.Duration(r), time.Duration(want))
		}
		if r, want := part.rank(epoch), longest(a, 60*sec)*3/10; r != want {
			t.Errorf("3 of 10 used: %v, want %v", time.Duration(r), time.Duration(want))
		}
	})
}

// TestStatesAreSmall: a key of a rate costs a few words and no pointer.
func TestStatesAreSmall(t *testing.T) {
	for name, size := range map[string][2]uintptr{
		"token bucket":    {unsafe.Sizeof(tokenState{}), 16},
		"leaky bucket":    {unsafe.Sizeof(leakyState{}), 24},
		"fixed window":    {unsafe.Sizeof(fixedState{}), 16},
		"sliding counter": {unsafe.Sizeof(counterState{}), 24},
		"log entry":       {unsafe.Sizeof(logEntry{}), 16},
	} {
		if size[0] != size[1] {
			t.Errorf("%s: %d bytes, want %d", name, size[0], size[1])
		}
	}
}

// TestPeekBehindTheClock: looking at a state that has not been settled sees
// what a take would find.
func TestPeekBehindTheClock(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		r := rand.New(rand.NewPCG(4, 4))
		k := newKey(testPolicy(a, 9, time.Minute))
		now := epoch
		for range 3000 {
			now += r.Int64N(40 * sec)
			cost := 1 + r.Int64N(9)
			left, wait := k.remaining(now), k.peek(now, cost)
			if (wait == 0) != (cost <= left) {
				t.Fatalf("%d left, and %d is to wait for %v", left, cost, time.Duration(wait))
			}
			if got := k.take(now, cost); got != wait {
				t.Fatalf("peeked %v, took %v", wait, got)
			}
		}
	})
}

// TestUnsettled: what a state that has not been settled is to wait for is what
// it is when it has, also where the clock was set back.
func TestUnsettled(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		r := rand.New(rand.NewPCG(4, 5))
		k := newKey(testPolicy(a, 9, time.Minute))
		now := epoch
		for range 5000 {
			if now += r.Int64N(40 * sec); r.IntN(4) == 0 {
				now -= r.Int64N(200 * sec)
			}
			cost := 1 + r.Int64N(9)
			wait := k.peek(now, cost)
			if got := k.take(now, cost); got != wait {
				t.Fatalf("%v before it was settled, %v after", time.Duration(wait), time.Duration(got))
			}
		}
	})
}
