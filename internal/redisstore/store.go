package redisstore

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// A Store is a connection to a server and the limits that are counted there. It
// is safe for concurrent use, and a shaping.SharedStore.
type Store struct {
	options   Options
	script    *rueidis.Lua
	departing *rueidis.Lua
	leasing   *rueidis.Lua
	offset    offset
	id        string // of this process among those that share the server
	base      time.Time
	ahead     atomic.Int64 // µs of the server's clock at base, as far as is known
	slots     chan struct{}

	deadlines deadlines
	hashes    sync.Pool // of hash.Hash
	circuit   circuit
	local     *limiter.Memory
	odd       atomic.Int64 // when an odd answer was logged last, in ns since base

	sharing sync.Mutex // held while the number of proxies changes
	limits  map[*Limit]struct{}
	places  map[*Places]struct{}
	queues  map[*shaping.Shaper]*watched
	serial  atomic.Uint64 // names places, and numbers calls

	// clock, in tests, is the server's time instead of the server's.
	clock func() int64
}

var _ shaping.SharedStore = (*Store)(nil)

// New returns a Store, when it is connected or has failed to be, which takes no
// longer than dialTimeout; then it goes on trying. It must be closed.
func New(o Options) *Store {
	s := build(o, serverTime)
	s.circuit.start()
	select {
	case <-s.circuit.known:
	case <-time.After(dialTimeout):
	}
	return s
}

// build makes a store whose script takes the time from prelude.
func build(o Options, prelude string) *Store {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if len(o.HashKey) == 0 {
		sum := sha256.Sum256([]byte("shapeproxy keys of " + o.Prefix))
		o.HashKey = sum[:]
	}
	s := &Store{
		options: o, script: rueidis.NewLuaScript(prelude + decideBody), departing: rueidis.NewLuaScript(prelude + departuresBody), leasing: rueidis.NewLuaScript(prelude + leasesBody),
		id: rand.Text(), base: time.Now(),
		slots: make(chan struct{}, inFlight), local: limiter.NewMemory(), limits: map[*Limit]struct{}{},
		places: map[*Places]struct{}{}, queues: map[*shaping.Shaper]*watched{},
	}
	s.ahead.Store(s.base.UnixMicro())
	s.hashes.New = func() any { return hmac.New(sha256.New, o.HashKey) }
	s.circuit.store = s
	return s
}

// Close waits for the calls that are under way, which takes no longer than
// Options.Timeout, and ends the connection. Whoever asks later is answered as
// if the server were down.
func (s *Store) Close() {
	up := s.circuit.stop()
	for range cap(s.slots) {
		s.slots <- struct{}{}
	}
	s.circuit.leave(up)
}

// Up reports whether the server answers, of a cluster every shard.
func (s *Store) Up() bool { return s.circuit.all() }

// members is the key of who lives.
func (s *Store) members() string { return s.options.Prefix + ":{members}" }

// Proxies is how many proxies shared the server when it was asked last, this one
// included.
func (s *Store) Proxies() int { return int(s.circuit.members.Load()) }

// share tells every limit its part among n proxies.
func (s *Store) share(n int) {
	s.sharing.Lock()
	defer s.sharing.Unlock()
	for l := range s.limits {
		l.change.Lock()
		if err := l.local.Adopt(shareOf(l.Policy(), n)); err != nil {
			s.options.Log.Error("a limit keeps its former share", "limit", l.Policy().Name, "error", err)
		}
		l.change.Unlock()
	}
}

func (s *Store) sinceBase() int64 { return int64(time.Since(s.base)) }

// noteTime takes note of the server's clock; serverTime is what it shows now, to
// within the time that an answer takes.
func (s *Store) noteTime(now int64) { s.ahead.Store(now - s.sinceBase()/1000) }

func (s *Store) serverTime() int64 {
	if s.clock != nil {
		return s.clock()
	}
	return s.ahead.Load() + s.sinceBase()/1000
}

// hashOf is the name of a key on the server: 128 bits under a secret, so that
// neither the client is told by it nor two clients share one.
func (s *Store) hashOf(countedBy, key string) string {
	h := s.hashes.Get().(hash.Hash)
	h.Reset()
	var sum [sha256.Size]byte
	buf := make([]byte, 0, 128)
	buf = append(append(append(buf, countedBy...), 0), key...)
	h.Write(buf)
	h.Sum(sum[:0])
	s.hashes.Put(h)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// A charge is one charge on its way to the script.
type charge struct {
	limit *Limit
	set   *settings
	hash  string
	key   string
	cost  int64
	total int64 // of this charge and those before it on the same key
	old   string
	moved string
}

func (s *Store) charges(list []shaping.SharedCharge) []charge {
	out := make([]charge, len(list))
	for i, c := range list {
		l := c.Limit.(*Limit)
		set := l.now.Load()
		one := charge{limit: l, set: set, hash: s.hashOf(set.CountedBy, c.Key), cost: max(0, c.Cost)}
		one.key = set.before + one.hash + set.after
		if one.total = one.cost; one.cost > 0 {
			for _, before := range out[:i] {
				if before.key == one.key {
					one.total = add(one.total, before.cost)
				}
			}
		}
		out[i] = one
	}
	return out
}

func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Take decides the charges at one instant of the server and takes all of them,
// or none if one does not fit, as of limiter.Memory.Take; the limits must be of
// this Store and asked in calls that their Definitions allow. It always answers:
// while the server does not, each limit does what its Definition says. A decision
// without a Policy is one that was not made, as another limit refused. What is
// held was taken on the server.
func (s *Store) Take(into []limiter.Decision, list []shaping.SharedCharge) (_ []limiter.Decision, held bool) {
	charges := s.charges(list)
	sent := s.sinceBase()
	if len(charges) > 0 && s.circuit.of(charges[0].key).closed.Load() {
		for i := range charges {
			c := &charges[i]
			var d limiter.Decision
			if c.total == c.cost && c.limit.refuses(c.set, c.hash, sent, c.cost, &d) {
				first := len(into)
				into = append(into, make([]limiter.Decision, len(charges))...)
				into[first+i] = d
				return into, false
			}
		}
	}
	var a answer
	if err := s.ask(take, 0, charges, &a); err != nil {
		return s.without(into, list, charges), false
	}
	first := len(into)
	for i := range charges {
		c := &charges[i]
		cost := c.total
		if a.says == saysTaken {
			cost = 0
		}
		d, err := c.set.decide(a.now, a.numbers[3*i:3*i+3], cost)
		if err != nil {
			s.logOdd(err)
			return s.without(into[:first], list, charges), false
		}
		into = append(into, d)
	}
	for i := range charges {
		c, d := &charges[i], &into[first+i]
		if a.says == saysTaken {
			if c.set.Down == Local {
				// What is spent on the server is spent here too, so that the share
				// is no second budget.
				c.limit.local.AllowN(list[i].Key, c.cost)
			}
		} else if c.total == c.cost {
			c.limit.remember(c.set, c.hash, sent, c.cost, d)
		}
	}
	return into, a.says == saysTaken
}

// Look says what Take of each charge alone would decide, and takes nothing. It
// is not ok while the server does not answer.
func (s *Store) Look(into []limiter.Decision, list []shaping.SharedCharge) (_ []limiter.Decision, ok bool) {
	charges := s.charges(list)
	var a answer
	if err := s.ask(look, 0, charges, &a); err != nil {
		return into, false
	}
	first := len(into)
	for i := range charges {
		c := &charges[i]
		d, err := c.set.decide(a.now, a.numbers[3*i:3*i+3], c.total)
		if err != nil {
			s.logOdd(err)
			return into[:first], false
		}
		d.Peeked = true
		into = append(into, d)
	}
	return into, true
}

// Return gives back what a Take took whose Decisions bear the instant at, as of
// limiter.Memory.Return. What was taken while the server did not answer, or
// cannot be given back as it does not by now, stays spent.
func (s *Store) Return(list []shaping.SharedCharge, at time.Time) {
	var a answer
	_ = s.ask(giveIn, at.UnixMicro(), s.charges(list), &a)
}

// without decides while the server does not answer.
func (s *Store) without(into []limiter.Decision, list []shaping.SharedCharge, charges []charge) []limiter.Decision {
	first := len(into)
	into = append(into, make([]limiter.Decision, len(charges))...)
	decisions := into[first:]
	closed := false
	var locals []limiter.Charge
	var where []int
	for i := range charges {
		c, d := &charges[i], &decisions[i]
		switch c.set.Down {
		case Closed:
			closed = true
			*d = s.unused(c.set)
			d.Allowed, d.Remaining = false, 0
			d.Reason, d.Status, d.RetryAfter, d.ResetAfter = limiter.ReasonStoreDown, http.StatusServiceUnavailable, time.Second, time.Second
		case Local:
			locals = append(locals, limiter.Charge{Limit: c.limit.local, Key: list[i].Key, Cost: c.cost})
			where = append(where, i)
		}
	}
	if closed {
		return into
	}
	for n, d := range s.local.Take(nil, locals) {
		decisions[where[n]] = d
	}
	for i := range charges {
		if charges[i].set.Down == Open {
			decisions[i] = s.unused(charges[i].set)
		}
	}
	return into
}

// unused is what a limit says of a key that has used nothing.
func (s *Store) unused(set *settings) limiter.Decision {
	d, _ := set.meter.Decide(nil, s.serverTime()*1000, 0)
	return d
}

// logOdd says, no more than once a minute, that the server holds what this
// program cannot have written.
func (s *Store) logOdd(err error) {
	now, last := s.sinceBase(), s.odd.Load()
	if (last == 0 || now-last > int64(time.Minute)) && s.odd.CompareAndSwap(last, now) {
		s.options.Log.Error("the store holds something that no limit can have left; give [redis] a prefix that nothing else uses", "error", err)
	}
}

func micro(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
