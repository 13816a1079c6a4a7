package limiter

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// portable is a limit whose state another one of the seed can load.
func portable(t testing.TB, p Policy) *Limit {
	t.Helper()
	m := NewMemory()
	m.Portable([16]byte{1, 2, 3})
	l, err := m.NewLimit(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func saved(t testing.TB, l *Limit) []byte {
	t.Helper()
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	if err := l.Save(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func loaded(t testing.TB, p Policy, data []byte) *Limit {
	t.Helper()
	l := portable(t, p)
	if err := l.Load(bufio.NewReader(bytes.NewReader(data))); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestSaveAndLoad: a limit that was loaded decides as the one that was saved,
// from that instant on, for any past.
func TestSaveAndLoad(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(6, 4))
			for range 30 {
				p := testPolicy(a, 1+r.Int64N(20), time.Duration(1+r.Int64N(int64(time.Minute))))
				before := portable(t, p)
				step := func(l *Limit, x uint64) Decision {
					return l.Take(fmt.Sprint("key", x%7), int64(x>>8%4))
				}
				for range 100 {
					step(before, r.Uint64())
					time.Sleep(time.Duration(r.Int64N(int64(p.windowAbout() / 10))))
				}
				data := saved(t, before)
				time.Sleep(time.Duration(r.Int64N(int64(p.windowAbout()))))
				after := loaded(t, p, data)
				for range 200 {
					x := r.Uint64()
					if got, want := step(after, x), step(before, x); got != want {
						t.Fatalf("%+v\ngot  %+v\nwant %+v", p, got, want)
					}
					time.Sleep(time.Duration(r.Int64N(int64(p.windowAbout() / 10))))
				}
			}
		})
	})
}

func (p Policy) windowAbout() time.Duration {
	if p.Algorithm.Windowed() {
		return max(p.Window, 100)
	}
	return max(100, p.Rate.Per*time.Duration(p.Burst)/time.Duration(p.Rate.Count))
}

// TestLoadOnAnotherDay: what was used yesterday is nothing today, and a day's
// quota that is not over is still used.
func TestLoadOnAnotherDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Policy{Algorithm: FixedWindow, Limit: 10, Calendar: Daily}
		l := portable(t, p)
		l.Take("a", 9)
		data := saved(t, l)
		time.Sleep(23 * time.Hour)
		if d := loaded(t, p, data).Peek("a", 1); d.Remaining != 1 {
			t.Errorf("on the same day %d remaining, want 1", d.Remaining)
		}
		time.Sleep(time.Hour)
		l = loaded(t, p, data)
		if d := l.Peek("a", 1); d.Remaining != 10 || l.Keys() != 0 {
			t.Errorf("on the next day %d remaining and %d keys, want 10 and 0", d.Remaining, l.Keys())
		}
	})
}

// TestLoadUnderAnotherPolicy goes on with what was used.
func TestLoadUnderAnotherPolicy(t *testing.T) {
	each(t, func(t *testing.T, a Algorithm) {
		synctest.Test(t, func(t *testing.T) {
			l := portable(t, testPolicy(a, 10, time.Hour))
			l.Take("a", 7)
			l.Take("b", 2)
			data := saved(t, l)
			if d := loaded(t, testPolicy(a, 20, 2*time.Hour), data).Peek("a", 1); d.Remaining != 13 {
				t.Errorf("%d remaining of 20, want 13", d.Remaining)
			}
			small := testPolicy(a, 5, time.Hour)
			small.MaxKeys = 1
			l = loaded(t, small, data)
			if d := l.Peek("a", 1); l.Keys() != 1 || d.Remaining != 0 && d.Remaining != 5 {
				t.Errorf("%d keys, %d remaining", l.Keys(), d.Remaining)
			}
		})
	})
}

// TestLoadRefuses what another algorithm saved, and skips to what follows.
func TestLoadRefuses(t *testing.T) {
	l := portable(t, testPolicy(TokenBucket, 10, time.Hour))
	l.Take("a", 7)
	data := append(saved(t, l), "next"...)
	if err := portable(t, testPolicy(LeakyBucket, 10, time.Hour)).Load(bufio.NewReader(bytes.NewReader(data))); err == nil {
		t.Error("a leaky bucket has loaded a token bucket")
	}
	r := bufio.NewReader(bytes.NewReader(data))
	if err := SkipSaved(r); err != nil {
		t.Fatal(err)
	}
	if rest, _ := r.ReadString(0); rest != "next" {
		t.Errorf("%q follows", rest)
	}
}

// FuzzLoad: whatever the bytes, no panic, no memory beyond theirs, and only
// decisions that the policy allows.
func FuzzLoad(f *testing.F) {
	for _, a := range Algorithms {
		l := portable(f, testPolicy(a, 10, time.Hour))
		l.Take("a", 7)
		l.Take("b", 1)
		f.Add(saved(f, l))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, a := range Algorithms {
			l := portable(t, testPolicy(a, 5, time.Minute))
			_ = l.Load(bufio.NewReader(bytes.NewReader(data)))
			for _, key := range []string{"a", "b", "c"} {
				d := l.Take(key, 1)
				if d.Remaining < 0 || d.Remaining > 5 || d.RetryAfter < 0 || d.RetryAfter > 2*time.Minute {
					t.Fatalf("%+v", d)
				}
			}
		}
	})
}
