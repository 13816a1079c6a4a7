package config

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// DefaultMaxWait is how long a request waits at most, where a limit does not
// say: about as long as clients and browsers wait for an answer.
const DefaultMaxWait = 30 * time.Second

func defaultLimit(name string) Limit {
	return Limit{
		Name:       name,
		Burst:      1,
		MissingKey: "shared",
		MaxKeys:    limiter.DefaultMaxKeys,
		Status:     429,
	}
}

var (
	bucketFields = []string{"rate", "burst", "queue", "max_wait"}
	windowFields = []string{"limit", "window"}
)

func (d *decoder) limit(t *table) Limit {
	l := defaultLimit(t.name())
	// Until the file's values are known, harmless ones stand for what is
	// required, so that one that is missing or wrong does not hide what is wrong
	// with another.
	l.Rate, l.Limit, l.Window = limiter.Rate{Count: 1, Per: time.Second}, 1, time.Second
	t.algorithm(&l.Algorithm)
	t.quantity("rate", `a rate such as "10/s"`, func(s string) error {
		r, err := limiter.ParseRate(s)
		if err == nil {
			l.Rate = r
		}
		return err
	})
	// What is too small or too large is the limiter's own rule.
	t.count("burst", &l.Burst, math.MinInt64, math.MaxInt64)
	t.int("queue", &l.Queue, 0, math.MaxInt32)
	t.duration("max_wait", &l.MaxWait)
	t.count("limit", &l.Limit, math.MinInt64, math.MaxInt64)
	t.duration("window", &l.Window)
	t.key(&l.Key)
	t.trust("exempt", &l.Exempt)
	t.word("missing_key", &l.MissingKey, "shared", "skip", "reject")
	t.int("max_keys", &l.MaxKeys, 1, math.MaxInt32)
	t.int("status", &l.Status, 400, 599)
	t.flag("dry_run", &l.DryRun)
	t.finish()

	switch {
	case l.Algorithm == "":
		return l
	case l.Algorithm.Windowed():
		t.refuse(bucketFields, l.Algorithm, windowFields)
		t.require("limit", "100")
		t.require("window", `"1m"`)
		l.Rate, l.Burst, l.Queue, l.MaxWait = limiter.Rate{}, 0, 0, 0
	default:
		t.refuse(windowFields, l.Algorithm, bucketFields)
		t.require("rate", `"10/s"`)
		t.queue(&l)
		l.Limit, l.Window = 0, 0
	}
	policy := limiter.Policy{Name: l.Name, Algorithm: l.Algorithm, Rate: l.Rate, Burst: l.Burst, Limit: l.Limit, Window: l.Window}
	if err := policy.Validate(); err != nil {
		// The limiter's sentences begin with the field.
		field, text, _ := strings.Cut(err.Error(), " ")
		t.bad(field, "%s", text)
	}
	return l
}

func (t *table) algorithm(dst *limiter.Algorithm) {
	words := make([]string, len(limiter.Algorithms))
	for i, a := range limiter.Algorithms {
		words[i] = string(a)
	}
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
		default:
			t.bad(f, "%s does not take it; it takes %s", a, allOf(instead))
		}
	}
}

// queue checks the fields that depend on there being a queue, and sets the
// default of max_wait.
func (t *table) queue(l *Limit) {
	switch {
	case l.Queue == 0 && t.has("max_wait") && !t.notInt("queue"):
		t.bad("max_wait", "has no effect without a queue; write queue = N for how many may wait, or remove it")
	case l.Queue > 0 && !t.has("max_wait"):
		l.MaxWait = DefaultMaxWait
	}
	if l.Queue > 0 && l.Algorithm == limiter.LeakyBucket && l.Burst > 1 {
		t.bad("burst", "leaky-bucket with queue releases one at a time; for a burst that passes at once use token-bucket with queue, or remove it")
	}
}

func (t *table) notInt(key string) bool {
	v, ok := t.values[key]
	_, isInt := v.(int64)
	return ok && !isInt
}

// key reads what is counted separately: one word, or a list of them.
func (t *table) key(dst *identity.Key) {
	form := `one of "global", "client-ip", "host", "route", "header:NAME", "cookie:NAME", "query:NAME", "path:NAME"`
	list, ok := t.texts("key", form, true)
	if !ok {
		return
	}
	var words, raw []string
	for _, x := range list {
		words, raw = append(words, x.value), append(raw, x.raw)
	}
	k, err := identity.ParseKey(words)
	if err != nil {
		t.d.invalid(text{strings.Join(words, " "), strings.Join(raw, " "), t.at("key")}, form, err)
		return
	}
	*dst = k
}

// A limitTable is a limit and where it came from, for routes that name it.
type limitTable struct {
	*table
	Limit
}

// lacking is what of the limit's key a pattern with these wildcards lacks, in
// words; "" if nothing.
func (l *limitTable) lacking(wildcards []string) string {
	for _, p := range l.Key.Parts() {
		if p.Kind == identity.Path && !slices.Contains(wildcards, p.Name) {
			if l.masked["key"] {
				return "a wildcard that this pattern lacks"
			}
			return fmt.Sprintf("%s, and this pattern has no {%s}", p, p.Name)
		}
	}
	return ""
}
