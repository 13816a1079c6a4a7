package config

import (
	"errors"
	"fmt"
	"math"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// DefaultMaxWait is how long a request waits at most, where a limit does not
// say: about as long as clients and browsers wait for an answer.
const DefaultMaxWait = 30 * time.Second

// DefaultPromoteAfter is how long a request waits until it counts one priority
// higher, where a limit does not say.
const DefaultPromoteAfter = 2 * time.Second

func defaultLimit(name string) Limit {
	return Limit{
		Name:       name,
		Burst:      1,
		MissingKey: "shared",
		Cost:       1,
		MaxKeys:    limiter.DefaultMaxKeys,
		Status:     429,
	}
}

var (
	bucketFields = []string{"rate", "burst", "queue", "max_wait"}
	windowFields = []string{"limit", "window"}
	fixedFields  = []string{"limit", "window", "timezone"}
	placeFields  = []string{"max_in_flight", "queue", "max_wait"}
	// What bounds a search.
	rateSearch  = []string{"min_rate", "max_rate"}
	placeSearch = []string{"min_in_flight", "max_in_flight_limit"}
	// What says how a queue is left, whatever the algorithm.
	turnFields = []string{"deadline_header", "fair_by", "promote_after", "shed_above", reserveField}
)

func (d *decoder) limit(t *table) Limit {
	l := defaultLimit(t.name())
	// Until the file's values are known, harmless ones stand for what is
	// required, so that one that is missing or wrong does not hide what is wrong
	// with another.
	l.Rate, l.Limit, l.Window = limiter.Rate{Count: 1, Per: time.Second}, 1, time.Second
	t.preset(&l)
	t.algorithm(&l.Algorithm)
	t.rate(&l)
	// What is too small or too large is the limiter's own rule.
	t.count("burst", &l.Burst, math.MinInt64, math.MaxInt64)
	t.int("queue", &l.Queue, 0, math.MaxInt32)
	t.duration("max_wait", &l.MaxWait)
	t.places(&l)
	t.deadlineHeader(&l.DeadlineHeader)
	t.key("fair_by", flowForm, &l.FairBy, parseFlow)
	t.duration("promote_after", &l.PromoteAfter)
	t.duration("shed_above", &l.ShedAbove)
	t.reserve(&l)
	t.count("limit", &l.Limit, math.MinInt64, math.MaxInt64)
	t.window(&l)
	t.key("key", `one of "global", `+keyWords, &l.Key, identity.ParseKey)
	t.trust("exempt", &l.Exempt)
	t.word("missing_key", &l.MissingKey, "shared", "skip", "reject")
	t.cost(&l)
	t.int("max_keys", &l.MaxKeys, 1, math.MaxInt32)
	t.int("status", &l.Status, 400, 599)
	t.flag("dry_run", &l.DryRun)
	t.store(&l)
	t.finish()

	switch {
	case l.Algorithm == "":
		return l
	case l.Algorithm.Windowed():
		takes := windowFields
		if l.Algorithm == limiter.FixedWindow {
			takes = fixedFields
		}
		t.refuse(slices.Concat(bucketFields, rateSearch, []string{"max_in_flight"}, placeSearch, turnFields), l.Algorithm, takes)
		t.dates(&l)
		t.require("limit", "100")
		t.require("window", `"1m"`)
		l.Rate, l.Burst, l.Queue, l.MaxWait = limiter.Rate{}, 0, 0, 0
		l.MinRate, l.MinInFlight, l.MaxInFlight = limiter.Rate{}, 0, 0
	case l.Algorithm == limiter.Concurrency:
		t.refuse(slices.Concat([]string{"rate", "burst", "limit", "window", "timezone"}, rateSearch), l.Algorithm, placeFields)
		t.require("max_in_flight", "4")
		if t.has("cost") {
			t.bad("cost", "concurrency does not take it, as each request is one that is unfinished; remove it")
		}
		t.queue(&l)
		t.reservable(&l)
		t.shareable(&l)
		l.Rate, l.MinRate, l.Burst = limiter.Rate{}, limiter.Rate{}, 0
		if !t.has("min_rate") && !t.has("max_rate") { // or that is said already
			t.searched(&l)
		}
		l.noWindow()
		return l
	default:
		t.refuse(fixedFields, l.Algorithm, bucketFields)
		t.require("rate", `"10/s"`)
		t.queue(&l)
		t.reservable(&l)
		t.searched(&l)
		l.noWindow()
	}
	policy := limiter.Policy{
		Name: l.Name, Algorithm: l.Algorithm, Rate: l.Rate, Burst: l.Burst,
		Limit: l.Limit, Window: l.Window, Calendar: l.Calendar, Location: l.Location,
	}
	if err := policy.Validate(); err != nil {
		// The limiter's sentences begin with the field.
		field, text, _ := strings.Cut(err.Error(), " ")
		t.bad(field, "%s", text)
		return l
	}
	t.affordable(&l)
	t.shareable(&l)
	return l
}

func (t *table) algorithm(dst *limiter.Algorithm) {
	var words []string
	for _, a := range limiter.Algorithms {
		words = append(words, string(a))
	}
	words = append(words, string(limiter.Concurrency))
	t.require("algorithm", oneOf(quoted(words)))
	var word string
	t.word("algorithm", &word, words...)
	*dst = limiter.Algorithm(word)
}

// refuse notes fields that the algorithm does not take.
func (t *table) refuse(fields []string, a limiter.Algorithm, instead []string) {
	for _, f := range fields {
		switch {
		case !t.has(f):
		case f == "queue":
			t.bad(f, "%s has no queue; use leaky-bucket or token-bucket to let requests wait", a)
		case f == "max_in_flight":
			t.bad(f, "%s does not take it; bound the unfinished requests by a limit of its own with algorithm = %q", a, limiter.Concurrency)
		case slices.Contains(turnFields, f):
			t.bad(f, "has no effect without a queue, and %s has none; use leaky-bucket or token-bucket to let requests wait", a)
		default:
			t.bad(f, "%s does not take it; it takes %s", a, allOf(instead))
		}
	}
}

// queue checks the fields that depend on there being a queue, and sets their
// defaults.
func (t *table) queue(l *Limit) {
	if l.Queue == 0 {
		t.refuseWithoutQueue(l.Algorithm)
		return
	}
	if !t.has("max_wait") {
		l.MaxWait = DefaultMaxWait
	}
	if !t.has("promote_after") {
		l.PromoteAfter = DefaultPromoteAfter
	}
	if l.Algorithm == limiter.LeakyBucket && l.Burst > 1 {
		t.bad("burst", "leaky-bucket with queue releases one at a time; for a burst that passes at once use token-bucket with queue, or remove it")
	}
	if l.MaxWait > 0 && l.ShedAbove >= l.MaxWait {
		t.bad("shed_above", "never comes, as nobody waits longer than max_wait, which is %s; write less", limiter.FormatDuration(l.MaxWait))
	}
	if l.oneFlowEach() {
		t.bad("fair_by", "has no effect, as requests that it tells apart have queues of their own by key; name what key does not, or remove it")
	}
}

func (t *table) refuseWithoutQueue(a limiter.Algorithm) {
	if v, ok := t.values["queue"]; ok && v != any(int64(0)) {
		return // a queue is meant, and what is wrong with it is said already
	}
	for _, f := range append([]string{"max_wait"}, turnFields...) {
		if t.has(f) && (f != reserveField || a != limiter.Concurrency) {
			t.bad(f, "has no effect without a queue; write queue = N for how many may wait, or remove it")
		}
	}
	if t.has("max_in_flight") && a != limiter.Concurrency {
		t.bad("max_in_flight", "needs queue, as it holds back who waits; write queue = N for how many may wait, or give it to a limit of its own with algorithm = %q", limiter.Concurrency)
	}
}

// oneFlowEach reports whether fair_by finds nobody to take turns in any queue,
// as key tells the same requests apart. Those who lack a part of the key may
// share a queue, and be told apart there by the other parts.
func (l *Limit) oneFlowEach() bool {
	flow, key := l.FairBy.Parts(), l.Key.Parts()
	if len(flow) == 0 || slices.ContainsFunc(flow, func(p identity.Part) bool { return !slices.Contains(key, p) }) {
		return false
	}
	return l.MissingKey != "shared" || !slices.ContainsFunc(key, func(p identity.Part) bool { return p.MayLack() && !slices.Contains(flow, p) })
}

func (t *table) deadlineHeader(dst *string) {
	t.text("deadline_header", `the name of a header such as "Request-Timeout"`, func(s string) error {
		name := textproto.CanonicalMIMEHeaderKey(s)
		switch {
		case !fieldName(s):
			return fmt.Errorf("%q is not a header's name; write one such as \"Request-Timeout\"", s)
		case strings.Contains(s, "_"):
			return fmt.Errorf("headers with _ in their names are dropped, so %q is never seen; use a name with -", s)
		case name == "Host":
			return errors.New("the Host header holds no time; write the name of a header with seconds, such as \"Request-Timeout\"")
		case name == "Grpc-Timeout":
			return errors.New("grpc-timeout is always looked at, in its own form; write the name of a header with seconds, or remove it")
		}
		*dst = name
		return nil
	})
}

const (
	keyWords = `"client-ip", "client-cert", "host", "route", "header:NAME", "cookie:NAME", "query:NAME", "path:NAME"`
	flowForm = "one of " + keyWords
)

// key reads what is told apart: one word, or a list of them.
func (t *table) key(field, form string, dst *identity.Key, parse func([]string) (identity.Key, error)) {
	list, ok := t.texts(field, form, true)
	var words, raw []string
	for _, x := range list {
		words, raw = append(words, x.value), append(raw, x.raw)
		if _, err := identity.ParseKey([]string{x.value}); err != nil {
			t.d.invalid(x, form, err)
			ok = false
		}
	}
	if !ok {
		return
	}
	k, err := parse(words)
	if err != nil {
		t.d.invalid(text{strings.Join(words, " "), strings.Join(raw, " "), t.at(field)}, form, err)
		return
	}
	*dst = k
}

// parseFlow is identity.ParseKey for what takes turns, which needs more than
// one of it.
func parseFlow(words []string) (identity.Key, error) {
	if len(words) == 0 || slices.Contains(words, "global") {
		return identity.Key{}, errors.New("leaves nobody to take turns with; write what tells clients apart, such as \"client-ip\", or remove it")
	}
	return identity.ParseKey(words)
}

// A limitTable is a limit and where it came from, for routes that name it.
type limitTable struct {
	*table
	Limit
}

// lacking says what the limit needs of a pattern with these wildcards and does
// not find; "" if nothing.
func (l *limitTable) lacking(wildcards []string) string {
	for _, use := range []struct {
		field, verb string
		key         identity.Key
	}{{"key", "counts", l.Key}, {"fair_by", "takes turns", l.FairBy}} {
		for _, p := range use.key.Parts() {
			if p.Kind != identity.Path || slices.Contains(wildcards, p.Name) {
				continue
			}
			if l.masked[use.field] {
				return use.verb + " by a wildcard that this pattern lacks"
			}
			return fmt.Sprintf("%s by %s, and this pattern has no {%s}", use.verb, p, p.Name)
		}
	}
	return ""
}
