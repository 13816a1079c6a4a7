package replay

import (
	"container/heap"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/assemble"
	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// An engine lets time pass from one event to the next. It drives the lines as
// shaping's buckets do with locks and alarms, and asks the limits of a route in
// the order in which shaping.Chain does.
type engine struct {
	now    int64
	events events
	serial int
	store  *limiter.Memory
	limits map[string]*limit
	routes map[*config.Route]*route
	stats  *stats
}

// A limit is one limit of the configuration with its state.
type limit struct {
	conf   *config.Limit
	reject *limiter.Limit // nil: it is a queue, or places
	terms  shaping.Terms
	lines  map[string]*line
	depth  int // of all lines
	stats  *limitStats
}

// A line is one key's queue.
type line struct {
	shaping.Line[*walk]
	limit *limit
	depth int
	wake  *event // pending; nil: none
}

// A place is one of a line, taken as one of that class.
type place struct {
	*line
	class queue.Class
}

// A route is the limits of a route in the order in which they are asked. What
// stands there is their place in the route's list.
type route struct {
	limits   []*limit
	class    queue.Class
	reject   []int
	dry      []int
	queues   []int
	upstream *upstreamStats
	stats    *routeStats
}

// A walk is one request on its way.
type walk struct {
	ask     *ask
	route   *route
	came    int64
	service int64
	next    int // of route.queues
	waited  int64
	held    []limiter.Charge
	at      time.Time
	places  []place
}

// An event is something that happens at an instant: a line has to be served, or
// a request ends.
type event struct {
	at     int64
	serial int
	line   *line
	ends   *walk
	index  int
}

func newEngine(c *config.Config, begin int64, s *stats) (*engine, error) {
	e := &engine{now: begin, limits: make(map[string]*limit), routes: make(map[*config.Route]*route), stats: s}
	e.store = limiter.NewMemoryOn(func() time.Time { return time.Unix(0, e.now) })
	for i := range c.Limits {
		conf := &c.Limits[i]
		l := &limit{conf: conf, stats: s.limit(conf)}
		if assemble.Queues(*conf) {
			l.terms, l.lines = assemble.QueuePolicy(*conf).Terms(), make(map[string]*line)
			l.terms.MinRate, l.terms.MinInFlight = limiter.Rate{}, 0 // no log tells when the upstream would have throttled
		} else {
			var err error
			if l.reject, err = e.store.NewLimit(assemble.RejectPolicy(*conf)); err != nil {
				return nil, err
			}
		}
		e.limits[conf.Name] = l
	}
	for i := range c.Routes {
		conf := &c.Routes[i]
		r := &route{class: assemble.Classes[conf.Priority], upstream: s.upstream(conf.Upstream), stats: s.route(conf.Match)}
		var waiting []int
		for n, name := range conf.Limits {
			l := e.limits[name]
			r.limits = append(r.limits, l)
			switch {
			case l.reject != nil && l.conf.DryRun:
				r.dry = append(r.dry, n)
			case l.reject != nil:
				r.reject = append(r.reject, n)
			case l.terms.Queue == 0:
				r.queues = append(r.queues, n)
			default:
				waiting = append(waiting, n)
			}
		}
		r.queues = append(r.queues, waiting...)
		e.routes[conf] = r
	}
	return e, nil
}

// run plays the arrivals, which are in order of time, and then lets everybody
// leave who waits.
func (e *engine) run(arrivals []arrival) {
	for _, a := range arrivals {
		e.pass(a.at)
		e.now = max(e.now, a.at)
		e.arrive(a)
	}
	e.pass(shaping.Endless - 1)
}

// pass lets happen what is due until then.
func (e *engine) pass(until int64) {
	for len(e.events) > 0 && e.events[0].at <= until {
		ev := heap.Pop(&e.events).(*event)
		e.now = max(e.now, ev.at)
		if ev.ends != nil {
			e.end(ev.ends)
			continue
		}
		ev.line.wake = nil
		e.serve(ev.line)
		e.arm(ev.line)
	}
}

func (e *engine) schedule(ev *event) {
	e.serial++
	ev.serial = e.serial
	heap.Push(&e.events, ev)
}

// arm has a line be served when something is due in it.
func (e *engine) arm(l *line) {
	at := l.Wake(e.now)
	switch {
	case at == shaping.Endless:
		if l.wake != nil {
			heap.Remove(&e.events, l.wake.index)
			l.wake = nil
		}
	case l.wake == nil:
		l.wake = &event{at: at, line: l}
		e.schedule(l.wake)
	case l.wake.at != at:
		l.wake.at = at
		heap.Fix(&e.events, l.wake.index)
	}
	depth := l.Depth(e.now)
	l.limit.depth += depth - l.depth
	l.depth = depth
	l.limit.stats.depth(e.now, depth, l.limit.depth)
}

// serve lets out everybody who is due, and tells those whose patience is over: one
// after the other, as one that is cheaper may become the head by it and be due.
func (e *engine) serve(l *line) {
	e.leave(l)
	for w, why := l.Expire(e.now); w != nil; w, why = l.Expire(e.now) {
		e.refuse(w.Value, l.limit, why)
		e.leave(l)
	}
}

func (e *engine) leave(l *line) {
	for w := l.Leave(e.now); w != nil; w = l.Leave(e.now) {
		waited := e.now - w.Came
		l.limit.stats.queued(e.now, waited)
		w.Value.waited += waited
		w.Value.places = append(w.Value.places, place{l, w.Value.route.class})
		w.Value.next++
		e.proceed(w.Value)
	}
}

// An arrival is one request of the log.
type arrival struct {
	at      int64
	ask     *ask
	service int64
}

func (e *engine) arrive(a arrival) {
	e.stats.total++
	if a.ask.route == nil {
		e.stats.unrouted(a.ask.bad)
		return
	}
	w := &walk{ask: a.ask, route: e.routes[a.ask.route], came: e.now, service: a.service}
	w.route.stats.Offered++
	if !e.haveKeys(w) || !e.reject(w) {
		return
	}
	for _, i := range w.route.dry {
		l := w.route.limits[i]
		if key := &w.ask.keys[i]; !key.Skip && !key.Missing {
			d := e.store.Take(nil, []limiter.Charge{{Limit: l.reject, Key: key.Value, Cost: key.Charge()}})[0]
			l.stats.decided(e.now, key.Value, d.Reason)
			if w.at = d.At; d.Allowed {
				w.held = append(w.held, limiter.Charge{Limit: l.reject, Key: key.Value, Cost: key.Charge()})
			}
		}
	}
	e.proceed(w)
}

// haveKeys reports whether no limit refuses the request for want of its key.
func (e *engine) haveKeys(w *walk) bool {
	ok := true
	for i, l := range w.route.limits {
		if w.ask.keys[i].Missing {
			l.stats.decided(e.now, "", limiter.ReasonMissingKey)
			ok = ok && l.conf.DryRun
		}
	}
	if !ok {
		w.route.stats.reject(limiter.ReasonMissingKey)
	}
	return ok
}

// reject takes from all limits in reject mode, or from none.
func (e *engine) reject(w *walk) bool {
	var charges []limiter.Charge
	var of []int
	for _, i := range w.route.reject {
		if key := &w.ask.keys[i]; !key.Skip && !key.Missing {
			charges = append(charges, limiter.Charge{Limit: w.route.limits[i].reject, Key: key.Value, Cost: key.Charge()})
			of = append(of, i)
		}
	}
	if len(charges) == 0 {
		return true
	}
	refused := limiter.ReasonNone
	for n, d := range e.store.Take(nil, charges) {
		w.route.limits[of[n]].stats.decided(e.now, charges[n].Key, d.Reason)
		if w.at = d.At; !d.Allowed {
			refused = d.Reason
		}
	}
	if refused != limiter.ReasonNone {
		w.route.stats.reject(refused)
		return false
	}
	w.held = charges
	return true
}

// proceed asks the queues that are left, and lets the request go when there is
// none.
func (e *engine) proceed(w *walk) {
	for ; w.next < len(w.route.queues); w.next++ {
		i := w.route.queues[w.next]
		key, l := &w.ask.keys[i], w.route.limits[i]
		if key.Skip || key.Missing {
			continue
		}
		if !e.enter(w, l, key) {
			return
		}
	}
	w.route.stats.Forwarded++
	w.route.stats.waits.add(w.waited)
	w.route.upstream.depart(e.now)
	for _, l := range w.places {
		if l.limit.terms.MaxInFlight > 0 { // when it ends matters to who waits
			e.schedule(&event{at: e.now + max(0, w.service), ends: w})
			return
		}
	}
	e.end(w)
}

// enter asks one line, and reports whether the request goes on at once.
func (e *engine) enter(w *walk, l *limit, key *limiter.Key) bool {
	at := l.lines[key.Value]
	if at == nil {
		at = &line{Line: shaping.NewLine[*walk](l.terms), limit: l}
		l.lines[key.Value] = at
	}
	e.serve(at)
	defer e.arm(at)
	l.stats.ask(e.now, key.Value)
	if key.Free {
		l.stats.admitted(e.now)
		return true
	}
	entrant := shaping.Entrant{Cost: key.Cost, Class: w.route.class, Flow: key.Flow, MaxWait: key.MaxWait}
	if l.conf.DryRun {
		switch v := at.Rehearse(e.now, entrant); {
		case v.Reason != limiter.ReasonNone:
			l.stats.rejected(e.now, key.Value, e.reason(l, v.Reason))
		case v.Queued:
			l.stats.queued(e.now, int64(v.Wait))
		default:
			l.stats.admitted(e.now)
			w.places = append(w.places, place{at, queue.High}) // as what it was rehearsed
		}
		return true
	}
	if entrant.MaxWait > 0 { // the client's own, who does not begin anew at each queue
		entrant.MaxWait = max(1, entrant.MaxWait-time.Duration(w.waited))
	}
	v, waits, out := at.Enter(e.now, entrant, w)
	if out != nil {
		e.refuse(out.Value, l, limiter.ReasonQueueFull)
	}
	switch {
	case v.Reason != limiter.ReasonNone:
		e.refuse(w, l, e.reason(l, v.Reason))
		return false
	case waits != nil:
		e.serve(at) // one that is cheaper than the head it overtook may be due
		return false
	}
	l.stats.admitted(e.now)
	w.places = append(w.places, place{at, w.route.class})
	return true
}

// reason is the word for a refusal: there is no queue to be full where nobody
// may wait.
func (e *engine) reason(l *limit, r limiter.Reason) limiter.Reason {
	if r == limiter.ReasonQueueFull && l.terms.Queue == 0 {
		return limiter.ReasonLimit
	}
	return r
}

// refuse ends a walk at a queue: what other limits hold is given back.
func (e *engine) refuse(w *walk, l *limit, why limiter.Reason) {
	l.stats.rejected(e.now, w.keyOf(l), why)
	w.route.stats.reject(why)
	if len(w.held) > 0 {
		e.store.Return(w.held, w.at)
	}
	e.end(w)
}

func (w *walk) keyOf(l *limit) string {
	for i, one := range w.route.limits {
		if one == l {
			return w.ask.keys[i].Value
		}
	}
	return ""
}

// end gives back the places that a request held.
func (e *engine) end(w *walk) {
	places := w.places
	w.places = nil
	for _, l := range places {
		l.Done(e.now, l.class)
		if l.Waiting() > 0 {
			e.serve(l.line)
			e.arm(l.line)
		}
	}
}

// events are a heap by time, and among equals by the order in which they were
// made.
type events []*event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].serial < h[j].serial
}
func (h events) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *events) Push(x any) {
	ev := x.(*event)
	ev.index = len(*h)
	*h = append(*h, ev)
}
func (h *events) Pop() any {
	old := *h
	ev := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return ev
}
