package redisstore

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shapeproxy/shapeproxy/internal/redistest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/limiter/limitertest"
	"github.com/shapeproxy/shapeproxy/shaping"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// toldTime is the script's prelude in tests of what it decides: the time is what
// it is told, and nothing is forgotten by the server's own clock.
const toldTime = `
local now, grace = tonumber(ARGV[#ARGV]), 86400000
`

// A judged is a Store as the suite wants it: on a real server, in a time of its
// own of whole microseconds.
type judged struct {
	*Store
	t      *testing.T
	limits []*Limit

	mu  sync.Mutex
	now int64 // µs
}

func judge(t *testing.T, o Options) *judged {
	t.Helper()
	o.Prefix, o.Timeout, o.Log = "t"+t.Name(), 10*time.Second, slog.New(slog.NewTextHandler(t.Output(), nil))
	j := &judged{Store: build(o, toldTime), t: t, now: time.Date(2026, 11, 30, 19, 16, 5, 123456000, time.UTC).UnixMicro()}
	j.clock = func() int64 {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.now
	}
	j.Store.circuit.start()
	t.Cleanup(j.Close)
	await(t, "the store comes up", j.Up)
	return j
}

func (j *judged) NewLimit(p limiter.Policy) error {
	// Given back, so that no refusal is remembered: that is in another time.
	l, err := j.Store.NewLimit(p, Definition{Together: "all", Down: Closed, GivenBack: true})
	j.limits = append(j.limits, l)
	return err
}

func (j *judged) list(charges []limitertest.Charge) (list []shaping.SharedCharge) {
	for _, c := range charges {
		// Policies of one name are limits of one key on the server.
		list = append(list, shaping.SharedCharge{Limit: j.limits[c.Limit], Key: string(rune('0'+c.Limit)) + c.Key, Cost: c.Cost})
	}
	return list
}

func (j *judged) told(d []limiter.Decision) []limiter.Decision {
	for _, one := range d {
		if one.Reason == limiter.ReasonStoreDown {
			j.t.Fatal("the store failed")
		}
	}
	return d
}

func (j *judged) Take(c ...limitertest.Charge) []limiter.Decision {
	d, _ := j.Store.Take(nil, j.list(c))
	return j.told(d)
}

func (j *judged) Peek(c limitertest.Charge) limiter.Decision {
	d, ok := j.Store.Look(nil, j.list([]limitertest.Charge{c}))
	if !ok {
		j.t.Fatal("the store failed")
	}
	return d[0]
}

func (j *judged) Return(at time.Time, c ...limitertest.Charge) {
	for _, one := range j.list(c) {
		j.Store.Return([]shaping.SharedCharge{one}, at)
	}
}

func (j *judged) Adopt(limit int, p limiter.Policy) error {
	l := j.limits[limit]
	return l.Adopt(p, l.now.Load().Definition)
}

func (j *judged) Now() time.Time      { return time.UnixMicro(j.clock()) }
func (j *judged) Tick() time.Duration { return time.Microsecond }

// Sleep ends with the first tick that is not too early.
func (j *judged) Sleep(d time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now += int64((max(0, d) + time.Microsecond - 1) / time.Microsecond)
}

// TestServers has the suite that judges the memory judge real servers, decision by
// decision.
func TestServers(t *testing.T) { redistest.Each(t, suite) }

func suite(t *testing.T, engine redistest.Engine) {
	t.Parallel()
	server := engine.Start(t)
	limitertest.Run(t, func(t *testing.T, test func(*testing.T, limitertest.Store)) {
		test(t, judge(t, at(server)))
	})
}

// TestClockSetBack: an exhausted key is blocked for no longer than by an ordinary
// exhaustion, whatever the server's clock does.
func TestClockSetBack(t *testing.T) {
	server := redistest.Start(t)
	for _, a := range limiter.Algorithms {
		t.Run(string(a), func(t *testing.T) {
			j := judge(t, at(server))
			p := limiter.Policy{Name: "test", Algorithm: a}
			if a.Windowed() {
				p.Limit, p.Window = 5, 10*time.Second
			} else {
				p.Burst, p.Rate = 5, limiter.Rate{Count: 1, Per: 2 * time.Second}
			}
			if err := j.NewLimit(p); err != nil {
				t.Fatal(err)
			}
			c := limitertest.Charge{Limit: 0, Key: "a", Cost: 1}
			for range 5 {
				j.Take(c)
			}
			j.mu.Lock()
			j.now -= time.Hour.Microseconds()
			j.mu.Unlock()
			d := j.Take(c)[0]
			if d.Allowed || d.RetryAfter > 20*time.Second {
				t.Fatalf("%+v", d)
			}
			for range 3 { // looking does not move it along
				j.Sleep(d.RetryAfter / 4)
				j.Take(c)
			}
			if j.Sleep(d.RetryAfter); !j.Take(c)[0].Allowed {
				t.Errorf("refused after %v as told", d.RetryAfter)
			}
		})
	}
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
