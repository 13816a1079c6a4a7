package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/shapeproxy/shapeproxy/internal/keyed"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// Down says what a limit does while the server does not answer.
type Down string

// What a limit can do.
const (
	Open   Down = "open"   // let everything pass
	Closed Down = "closed" // refuse everything, with 503
	Local  Down = "local"  // count here, by this proxy's share of the limit
)

// A Definition is a limit but for its policy.
type Definition struct {
	// CountedBy is what tells its keys apart, in the words of the configuration:
	// another one makes other keys.
	CountedBy string
	// Together names the limits that a request may ask in one call with this one.
	// Their keys stand on one node of a cluster. Empty: all limits of a call are
	// counted by the same, so that each client may have a node of its own.
	Together string
	Down     Down
	// GivenBack: what the limit was charged may be given back, so that a refusal
	// holds for no time that can be told.
	GivenBack bool
}

// A Limit is one policy whose budgets are on the server. It is safe for
// concurrent use.
type Limit struct {
	store   *Store
	now     atomic.Pointer[settings]
	change  sync.Mutex // held by Adopt and share
	local   *limiter.Limit
	refused *keyed.Map[refusal]
}

type settings struct {
	Definition
	*terms
	policy limiter.Policy
	before string // what stands before the hash in the key,
	after  string // and behind it
}

// NewLimit returns a limit that follows p, or says what is wrong with p.
func (s *Store) NewLimit(p limiter.Policy, def Definition) (*Limit, error) {
	l := &Limit{store: s}
	set, err := l.settings(p, def, 0)
	if err != nil {
		return nil, err
	}
	l.now.Store(set)
	keys := p.MaxKeys
	if keys == 0 {
		keys = limiter.DefaultMaxKeys
	}
	l.refused = keyed.New(keys, func(r *refusal, now int64) int64 { return r.until - now })
	s.sharing.Lock()
	defer s.sharing.Unlock()
	if l.local, err = s.local.NewLimit(shareOf(p, int(s.circuit.members.Load()))); err != nil {
		return nil, err
	}
	s.limits[l] = struct{}{}
	return l, nil
}

func (l *Limit) settings(p limiter.Policy, def Definition, since int64) (*settings, error) {
	t, err := newTerms(p, since)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(p.Name+def.Together, "{}") {
		return nil, errors.New("the name of a limit may not hold braces")
	}
	set := &settings{Definition: def, terms: t, policy: p}
	if def.Together == "" {
		set.before, set.after = l.store.options.Prefix+":{", "}:"+p.Name+":"+t.letter
	} else {
		set.before = l.store.options.Prefix + ":{" + def.Together + "}:" + p.Name + ":" + t.letter + ":"
	}
	return set, nil
}

// Policy returns what the limit follows now.
func (l *Limit) Policy() limiter.Policy { return l.now.Load().policy }

// Adopt makes the limit follow p from this instant on, with what the keys have
// used, as of limiter.Limit.Adopt. Keys are brought over one by one as they are
// asked for. The algorithm must be the same. With an error, nothing has changed.
func (l *Limit) Adopt(p limiter.Policy, def Definition) error {
	l.change.Lock()
	defer l.change.Unlock()
	was := l.now.Load()
	if p.Algorithm != was.policy.Algorithm {
		return fmt.Errorf("a %s cannot go on as a %s; start a new limit", was.policy.Algorithm, p.Algorithm)
	}
	since := was.since
	if tagOf(was.letter, p) != was.tag {
		since = l.store.serverTime()
	}
	set, err := l.settings(p, def, since)
	if err != nil {
		return err
	}
	if err := l.local.Adopt(shareOf(p, int(l.store.circuit.members.Load()))); err != nil {
		return err
	}
	l.now.Store(set)
	// What was refused until an instant may fit sooner now.
	l.refused.Each(func(*refusal) bool { return false })
	return nil
}

// errUnknown says that the server did not answer.
var errUnknown = errors.New("the store does not answer, so nothing is known of the key; try again when it does")

// Peek says what the limit would say to a request of cost 1, and takes nothing.
func (l *Limit) Peek(key string) (limiter.Decision, error) {
	d, ok := l.store.Look(nil, []shaping.SharedCharge{{Limit: l, Key: key, Cost: 1}})
	if !ok {
		return limiter.Decision{}, errUnknown
	}
	return d[0], nil
}

// Forget makes key as good as new, on the server and here. Other proxies may
// refuse it for longestRefusal still.
func (l *Limit) Forget(key string) error {
	set := l.now.Load()
	hash := l.store.hashOf(set.CountedBy, key)
	on := set.before + hash + set.after
	err := l.store.within(on, func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Del().Key(on).Build()).Error()
	})
	if err != nil {
		return errUnknown
	}
	l.local.Forget(key)
	shard, h := l.refused.Shard(hash)
	shard.Lock()
	shard.Delete(h)
	shard.Unlock()
	return nil
}

// Drop ends the limit: its share is no longer kept up to date. What is on the
// server fades.
func (l *Limit) Drop() {
	l.store.sharing.Lock()
	defer l.store.sharing.Unlock()
	delete(l.store.limits, l)
}

// Keys is how many keys this proxy knows of, and Evicted how many it forgot for
// want of room; the server forgets none.
func (l *Limit) Keys() int       { return l.local.Keys() }
func (l *Limit) Evicted() uint64 { return l.local.Evicted() }

// shareOf is the share that one of n proxies has in p: an nth of the rate and of
// the limit, rounded down, and at least 1. Together they are within p, but for a
// burst or limit below n.
func shareOf(p limiter.Policy, n int) limiter.Policy {
	if n <= 1 {
		return p
	}
	part := func(x int64) int64 { return max(1, x/int64(n)) }
	if p.Algorithm.Windowed() {
		p.Limit = part(p.Limit)
		return p
	}
	rate := limiter.Rate{Count: 1, Per: limiter.MaxPeriod} // the slowest there is
	if p.Rate.Per <= limiter.MaxPeriod/time.Duration(n) {
		if r, err := limiter.NewRate(p.Rate.Count, p.Rate.Per*time.Duration(n)); err == nil {
			rate = r
		}
	}
	p.Rate, p.Burst = rate, part(p.Burst)
	return p
}

// A refusal is known to hold for one cost, until an instant. Instants
// are nanoseconds of the store's own clock.
type refusal struct {
	until, retry, reset int64
	cost, remaining     int64
	limit, window       int64
}

func (set *settings) status() int {
	if set.policy.Status != 0 {
		return set.policy.Status
	}
	return http.StatusTooManyRequests
}

// longestRefusal is for how long a refusal is believed, so that a budget that
// somebody resets on the server counts soon.
const longestRefusal = int64(time.Second)

// refuses returns what the server would say to cost, if it is known that it
// refuses.
func (l *Limit) refuses(set *settings, hash string, now, cost int64, d *limiter.Decision) bool {
	if cost <= 0 || set.GivenBack || l.refused.Len() == 0 {
		return false
	}
	shard, h := l.refused.Shard(hash)
	shard.Lock()
	defer shard.Unlock()
	r := shard.Get(h)
	if r == nil || cost != r.cost {
		return false // more is refused as well, but for longer than is known
	}
	if now >= r.until {
		shard.Delete(h)
		return false
	}
	*d = limiter.Decision{
		Policy: set.policy.Name, Reason: limiter.ReasonLimit, Status: set.status(), DryRun: set.policy.DryRun,
		Limit: r.limit, Window: time.Duration(r.window), Remaining: r.remaining,
		RetryAfter: time.Duration(r.retry - now), ResetAfter: time.Duration(r.reset - now),
		At: l.store.base.Add(time.Duration(now)),
	}
	return true
}

// remember notes a refusal that was asked for at sent. What the server decided
// was decided later, so that it holds at least until then.
func (l *Limit) remember(set *settings, hash string, sent, cost int64, d *limiter.Decision) {
	if d.Allowed || d.RetryAfter == limiter.Never || set.GivenBack {
		return
	}
	r := refusal{
		retry: sent + int64(d.RetryAfter), reset: sent + int64(d.ResetAfter),
		cost: cost, remaining: d.Remaining, limit: d.Limit, window: int64(d.Window),
	}
	r.until = min(r.reset, r.retry, sent+longestRefusal)
	shard, h := l.refused.Shard(hash)
	shard.Lock()
	defer shard.Unlock()
	if l.now.Load() != set {
		return // Adopt has come between
	}
	if p, ok := shard.Put(h, sent); ok {
		*p = r
	}
}
