package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// Terms are what the audited limit promises.
type Terms struct {
	Limit string
	Rate  limiter.Rate // the greatest it had during the run; zero: none
	// Slowest is the least rate that it had, by which idleness is judged; zero:
	// it had one only.
	Slowest limiter.Rate
	Burst   int64    // at least 1 with a Rate
	Places  int      // max_in_flight; 0: any number
	Reasons []string // for which it may refuse
	// Idle is how long nobody may leave while somebody waits, if that is more
	// than Grain: on a machine that others use, a thread that is due waits for
	// tens of milliseconds, and a lost wake-up for seconds.
	Idle time.Duration
}

// An Account is what the proxy says itself.
type Account struct {
	Log     map[int]Line
	Metrics Metrics // nil if it has ended before it could be asked
}

// A Problem is something that broke.
type Problem struct {
	Kind string // one of those that the package lists
	Text string
}

func (p Problem) String() string { return p.Kind + ": " + p.Text }

// Findings are what an audit found.
type Findings struct {
	Problems []Problem

	Requests, Served, Refused, Left int // by the clients
	Departed, Arrived               int
	// Unsent were released as their clients left: each used its turn, and
	// nothing was sent. Known from the metrics.
	Unsent int
	// Departures and Arrivals are the slack that the promise about any interval
	// needs for them; see Slack. Late is the most between a departure and its
	// arrival at the upstream.
	Departures, Arrivals, Late time.Duration
	// Idle is the longest time in which nobody left though somebody waited and
	// could have, net of stalls.
	Idle time.Duration
	// Behind is by how much the long-run rate fell short of Rate, as a share of
	// it, while somebody waited; Net is without the stalls of the machine. Both
	// are 0 where nobody waited for a second on end.
	Behind, Net float64
	// Noticed is the longest time from a client's leaving the queue until the
	// proxy had given up its request, stalls included.
	Noticed time.Duration
}

// An audit is under way.
type audit struct {
	Findings
	terms    Terms
	proxy    Account
	stalls   *Stalls
	requests []*Request
	arrivals map[int][]time.Time
	departed []time.Time // sorted
	waits    []span      // of those who waited in the queue
}

// Audit holds the sides' accounts against each other and against the terms. All
// requests must have ended, for their clients and in the proxy's log.
func (l *Ledger) Audit(terms Terms, proxy Account, stalls *Stalls) Findings {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := &audit{terms: terms, proxy: proxy, stalls: stalls, requests: l.requests, arrivals: l.arrivals}
	for _, stray := range l.strays {
		a.problem("ended", "%s arrived that nobody sent", stray)
	}
	a.each()
	a.counts()
	if terms.Rate.Count > 0 {
		a.rate()
	}
	if terms.Places > 0 {
		a.places()
	}
	a.idle()
	a.order()
	return a.Findings
}

func (a *audit) problem(kind, format string, args ...any) {
	a.Problems = append(a.Problems, Problem{kind, fmt.Sprintf(format, args...)})
}

// each holds the three stories of every single request together.
func (a *audit) each() {
	a.Requests = len(a.requests)
	for _, r := range a.requests {
		line, logged := a.proxy.Log[r.ID]
		came := a.arrivals[r.ID]
		departed := !line.Departed.IsZero()
		switch {
		case r.ends != 1:
			a.problem("ended", "request %d ended %d times for its client", r.ID, r.ends)
		case r.End == Broken:
			a.problem("ended", "request %d has no good answer: %v", r.ID, r.Err)
		case !logged:
			a.problem("ended", "request %d is not in the proxy's log", r.ID)
		case r.End == Answered && (line.Status != r.Status || line.Reason != r.Reason):
			a.problem("ended", "request %d was answered %d %q and is logged %d %q", r.ID, r.Status, r.Reason, line.Status, line.Reason)
		case r.End == Left && !departed && line.Reason == "" && line.Status != 499:
			a.problem("ended", "the client of request %d left the queue, and %d is logged", r.ID, line.Status)
		}
		if r.End == Answered && r.Reason != "" {
			a.Refused++
			if !slices.Contains(a.terms.Reasons, r.Reason) {
				a.problem("ended", "request %d was refused for %s, which nobody expects here", r.ID, r.Reason)
			}
			if r.RetryAfter == "" {
				a.problem("ended", "request %d was refused for %s without Retry-After", r.ID, r.Reason)
			}
		} else if r.End == Answered {
			a.Served++
		} else if r.End == Left {
			a.Left++
		}
		a.passage(r, line, came)
	}
	if extra := len(a.proxy.Log) - len(a.requests); extra > 0 {
		a.problem("ended", "%d requests in the proxy's log were not sent", extra)
	}
	slices.SortFunc(a.departed, time.Time.Compare)
}

// passage looks at whether the request was to reach the upstream, and did.
func (a *audit) passage(r *Request, line Line, came []time.Time) {
	departed := !line.Departed.IsZero()
	if departed {
		a.Departed++
		a.departed = append(a.departed, line.Departed)
	}
	if line.Waited > 0 {
		a.waits = append(a.waits, line.wait())
	}
	if len(came) > 0 {
		a.Arrived++
		a.Late = max(a.Late, came[0].Sub(line.Departed))
	}
	// What the proxy may know late: its departure is decided before it has had
	// the time to look.
	known := r.Ended.Add(r.Unseen)
	switch {
	case len(came) > 1:
		a.problem("twice", "request %d arrived %d times at the upstream", r.ID, len(came))
	case len(came) == 1 && !departed && r.Reason != "":
		a.problem("refused", "request %d was refused for %s and arrived at the upstream", r.ID, r.Reason)
	case len(came) == 1 && !departed:
		a.problem("gone", "request %d never departed by the proxy's log and arrived at the upstream", r.ID)
	case r.End == Left && departed && line.Departed.After(known) &&
		line.Departed.Sub(known) > a.excuse(r, line.Departed):
		a.problem("gone", "request %d departed %v after its client had left", r.ID, line.Departed.Sub(r.Ended))
	case r.End == Answered && departed && len(came) == 0 && r.Status < 500:
		a.problem("ended", "request %d was answered %d and never arrived at the upstream", r.ID, r.Status)
	}
	if r.End == Left && !departed && line.Status == 499 {
		a.Noticed = max(a.Noticed, line.Time.Sub(r.Ended))
	}
}

// excuse is for how long nobody may have looked at the frame of an HTTP/2 reset;
// the kernel, which knows of closed connections, is never too busy.
func (a *audit) excuse(r *Request, departed time.Time) time.Duration {
	if r.Unseen == 0 {
		return 0
	}
	return a.stalls.During(r.Ended, departed)
}

// wait is when a request was in the queue, as its log line tells. For one that
// left, or was put out, that is known as well as when its head was read.
func (line Line) wait() span {
	waited := time.Duration(line.Waited * float64(time.Second))
	if !line.Departed.IsZero() {
		return span{line.Departed.Add(-waited), line.Departed}
	}
	came := line.Time.Add(-time.Duration(line.Duration * float64(time.Second)))
	return span{came, came.Add(waited)}
}

// counts adds the metrics up with the log.
func (a *audit) counts() {
	m := a.proxy.Metrics
	if m == nil {
		return
	}
	byReason := make(map[string]int)
	gone, early, codes := 0, 0, 0
	for _, line := range a.proxy.Log {
		switch {
		case line.Reason == string(limiter.ReasonClientGone) && line.Departed.IsZero():
			if gone++; line.Waited == 0 {
				early++
			}
		case line.Reason != "" && line.Policy == a.terms.Limit:
			byReason[line.Reason]++
		}
		if line.UpstreamStatus != 0 {
			codes++
		}
	}
	decided := func(decision string, labels ...string) int {
		return m.Sum("shapeproxy_limit_decisions_total", append(labels, "limit", a.terms.Limit, "decision", decision)...)
	}
	equal := func(what string, byLog, byMetrics int) {
		if byLog != byMetrics {
			a.problem("counts", "%s: %d by the log, %d by the metrics", what, byLog, byMetrics)
		}
	}
	refused := 0
	for reason, n := range byReason {
		refused += n
		equal("rejected "+reason, n, decided("rejected", "reason", reason))
	}
	equal("rejected", refused, decided("rejected"))
	a.Unsent = decided("admitted") + decided("queued") - a.Departed
	if a.Unsent < 0 {
		a.problem("counts", "%d departed by the log, %d fewer by the metrics", a.Departed, -a.Unsent)
	}
	// A client may also leave before its request was put to the limit, while its
	// body is waited for: it did not wait for a turn then.
	if n := gone - decided("gone") - a.Unsent; n < 0 || n > early {
		a.problem("counts", "gone: %d by the log, %d of them without a wait; %d by the metrics and %d released before", gone, early, decided("gone"), a.Unsent)
	}
	equal("requests", len(a.proxy.Log), m.Sum("shapeproxy_requests_total"))
	equal("answers of the upstream", codes, m.Sum("shapeproxy_upstream_responses_total"))
	equal("depth at the end", 0, m.Sum("shapeproxy_queue_depth"))
	equal("in flight at the end", 0, m.Sum("shapeproxy_upstream_in_flight"))
}

// rate is the promise about any interval, for all pairs: exactly for the
// departures, and for the arrivals with what they came late.
func (a *audit) rate() {
	var arrived []time.Time
	var least time.Duration
	for id, came := range a.arrivals {
		arrived = append(arrived, came...)
		if d := a.proxy.Log[id].Departed; !d.IsZero() {
			least = min(least, came[0].Sub(d))
		}
	}
	a.Departures = Slack(slices.Clone(a.departed), a.terms.Rate, a.terms.Burst)
	a.Arrivals = Slack(arrived, a.terms.Rate, a.terms.Burst)
	if a.Departures > Notable {
		a.problem("rate", "the departures need %v of slack; the promise has %v", a.Departures, Notable)
	}
	if allowed := Notable + a.Late - least; a.Arrivals > allowed {
		a.problem("rate", "the arrivals need %v of slack, more than the %v that the largest delay explains", a.Arrivals, allowed)
	}
	if least < -5*time.Millisecond {
		a.problem("rate", "a request arrived %v before it departed", -least)
	}
}

// reading is how long the proxy may take to read a request's head and put it in
// the queue, on a machine that is not stalled.
const reading = 20 * time.Millisecond

// order finds who was overtaken: by the line's own times, exactly, and by the
// clients', as far as one was surely sent before the other.
func (a *audit) order() {
	type group struct{ class, flow string }
	groups := make(map[group][]*Request)
	for _, r := range a.requests {
		if line := a.proxy.Log[r.ID]; !line.Departed.IsZero() && line.Waited > 0 {
			g := group{r.Class, r.Flow}
			groups[g] = append(groups[g], r)
		}
	}
	departed := func(r *Request) time.Time { return a.proxy.Log[r.ID].Departed }
	for _, waited := range groups {
		a.inOrder(waited, "came", departed, func(r *Request) (time.Time, time.Time) {
			came := a.proxy.Log[r.ID].wait().from
			// The log's seconds are floats: exact to a few nanoseconds.
			return came.Add(time.Microsecond), came
		})
		a.inOrder(waited, "was sent", departed, func(r *Request) (time.Time, time.Time) {
			// When it is surely read: a stall may be of its goroutine alone.
			return r.Sent.Add(reading + a.stalls.Longest() + a.stalls.During(r.Sent, r.Sent.Add(longRun))), r.Began
		})
	}
}

// inOrder wants that of two requests, if one is over by the time when the other
// begins, it also departs first.
func (a *audit) inOrder(rs []*Request, what string, departed func(*Request) time.Time, times func(*Request) (over, begins time.Time)) {
	type entry struct {
		id                     int
		begins, over, departed time.Time
	}
	var byBegin []entry
	for _, r := range rs {
		over, begins := times(r)
		byBegin = append(byBegin, entry{r.ID, begins, over, departed(r)})
	}
	byOver := slices.Clone(byBegin)
	slices.SortFunc(byBegin, func(x, y entry) int { return x.begins.Compare(y.begins) })
	slices.SortFunc(byOver, func(x, y entry) int { return x.over.Compare(y.over) })
	var last entry // of those that are over, the one that departs last
	next := 0
	for _, e := range byBegin {
		for ; next < len(byOver) && byOver[next].over.Before(e.begins); next++ {
			if byOver[next].departed.After(last.departed) {
				last = byOver[next]
			}
		}
		if e.departed.Before(last.departed) {
			a.problem("order", "request %d %s before request %d and left after it", last.id, what, e.id)
		}
	}
}
