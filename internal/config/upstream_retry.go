package config

import "fmt"

// Retry says which requests are sent to an upstream again, with another turn,
// when theirs has come to nothing.
type Retry struct {
	Most int    // times; 0: never
	Of   string // "idempotent", "any"
	Body int64  // a longer body is not kept to be sent again
}

// retryNever is the word for no retries, which is a Most of 0.
const retryNever = "never"

func defaultRetry() Retry { return Retry{Most: 2, Of: "idempotent", Body: 64 << 10} }

func (d *decoder) retry(t *table, r *Retry) {
	t.int("retries", &r.Most, 0, 10)
	t.word("retry", &r.Of, "idempotent", "any", retryNever)
	t.size("retry_body", &r.Body, 0, 16<<20)
	why := ""
	switch {
	case r.Of == retryNever:
		why = `retry = "never"`
	case r.Most == 0:
		why = "retries = 0"
	default:
		return
	}
	for _, f := range []string{"retries", "retry", "retry_body"} {
		if t.has(f) && !(f == "retry" && r.Of == retryNever) && !(f == "retries" && r.Most == 0) {
			t.bad(f, "has no effect with %s; remove one of them", why)
		}
	}
	*r = Retry{Of: r.Of}
}

// explain says it in words, for an upstream that is obeyed or is not.
func (r *Retry) explain(obeyed bool) string {
	which, often, what := "closes a kept connection under", "once", "safe or idempotent methods"
	if obeyed {
		which = "throttles, or " + which
	}
	if r.Most > 1 {
		often = fmt.Sprintf("%d times", r.Most)
	}
	if r.Of == "any" {
		what = "any method"
	}
	bodies := "no bodies"
	if r.Body > 0 {
		bodies = "bodies of at most " + formatSize(r.Body)
	}
	return fmt.Sprintf("a request that the upstream %s, goes back to the head of its queue, at most %s: %s, %s", which, often, what, bodies)
}
