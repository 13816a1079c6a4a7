package shaping

import (
	"context"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/queue"
)

// A Link is one limit of a Chain: in reject mode, in memory or shared, or in
// queue form, so exactly one of its fields is set.
type Link struct {
	Reject *limiter.Limit
	Shared SharedLimit // of the store that Chain.Sharing was given
	Places SharedPlaces
	Queue  *Shaper
}

// A Chain is the limits of one route as one Limiter: all or nothing.
//
// Limits in reject mode are asked first and at one instant, and a request that
// one of them refuses is charged to none; those that are shared, after those in
// memory. Places without a queue are taken
// right after, so they are held while the request waits in a queue. The queues
// are then entered in order, each after the one before has released the
// request. One that refuses gives back what the limits before it hold;
// departures that earlier queues have used are not given back. A client that
// leaves while it waits gives back its places and nothing else, or leaving
// would be a way round the limits before the queue.
//
// Limits in dry run are asked last of their kind, for requests that the others
// let pass, and never bind.
//
// A request whose turn has come to nothing can go back to its places in the
// queues, if one of them held it; see Permit.Again and Ticket. Limits in reject
// mode are not charged again: they count what clients ask for.
//
// A Chain may lead to Gates. Its queues then release a request only while its
// gate is open. Without a queue that holds it back, a limit in reject mode
// refuses it while the gate is closed; one that no limit binds is let through.
//
// A Request's Keys stand in the order of the Links; with keyed Gates one more
// stands behind them, whose Value says which gate. A Chain is safe for
// concurrent use.
type Chain struct {
	store  *limiter.Memory
	shared SharedStore // nil: no link is Shared
	class  queue.Class
	gates  *Gates
	links  []Link
}

// NewChain returns a Chain of limits in the order in which a route names them,
// for requests of class Normal. Limits in reject mode must belong to store.
func NewChain(store *limiter.Memory, links ...Link) *Chain {
	return &Chain{store: store, class: queue.Normal, links: links}
}

// Of returns the same Chain for requests of that class.
func (c *Chain) Of(class queue.Class) *Chain {
	of := *c
	of.class = class
	return &of
}

// To returns the same Chain for requests that go to what stands behind gates.
func (c *Chain) To(gates *Gates) *Chain {
	to := *c
	to.gates = gates
	return &to
}

// gate is the one that a request has to pass; nil if there is none.
func (c *Chain) gate(req *limiter.Request) *Gate {
	if !c.gates.Keyed() {
		return c.gates.Of("")
	}
	return c.gates.Of(req.Keys[len(c.links)].Value)
}

// Acquire implements limiter.Limiter.
func (c *Chain) Acquire(ctx context.Context, req limiter.Request) (limiter.Permit, error) {
	w := &walk{chain: c, req: &req, gate: c.gate(&req), all: make([]limiter.Decision, len(c.links))}
	if req.Again && w.isHeld() {
		w.tickets = make([]Ticket, len(c.links))
	}
	return w.acquire(ctx)
}

// Look says how things stand for a request, and asks nothing: the decisions are
// Peeked, and the one that counts is of the limit nearest to exhaustion.
func (c *Chain) Look(req limiter.Request) (p limiter.Permit) {
	w := &walk{chain: c, req: &req, all: make([]limiter.Decision, len(c.links))}
	w.look(func(d *limiter.Decision) bool { return true })
	w.lookShared(func(d *limiter.Decision) bool { return true })
	w.passed(&p)
	return p
}

// Foresee is how long a request that came now would wait in the queues, as far
// as that is known; 0 if one of them would refuse it.
func (c *Chain) Foresee(req limiter.Request) time.Duration {
	var d time.Duration
	w := &walk{chain: c, req: &req, gate: c.gate(&req)}
	w.findPaced()
	for i, link := range c.links {
		if link.Queue == nil || !w.asked(i) {
			continue
		}
		wait, ok := link.Queue.Foresee(w.turn(i))
		if !ok {
			return 0
		}
		if d += wait; wait > 0 {
			w.gate = nil // by then it is open, as far as that is known
		}
	}
	return d
}

// Refuses reports whether a request that came now would be refused at once, as
// far as that is known here: what is shared is not asked, as that takes a call.
// It takes nothing.
func (c *Chain) Refuses(req limiter.Request) bool {
	w := &walk{chain: c, req: &req, gate: c.gate(&req), all: make([]limiter.Decision, len(c.links))}
	if !w.haveKeys() {
		return true
	}
	w.findPaced()
	for i, link := range c.links {
		switch {
		case !w.asked(i):
		case link.Queue != nil:
			if _, ok := link.Queue.Foresee(w.turn(i)); !ok {
				return true
			}
		case link.Reject != nil:
			if d := c.store.Peek(link.Reject, req.Keys[i].Value, req.Keys[i].Charge()); d.RetryAfter > 0 && !d.DryRun {
				return true
			}
		}
	}
	return false
}

// waits reports whether a request may wait at the link.
func (l *Link) waits() bool { return l.Queue.Policy().Queue > 0 }

func (l *Link) name() (name string, dryRun bool) {
	if l.Queue != nil {
		p := l.Queue.Policy()
		return p.Name, p.DryRun
	}
	if l.Places != nil {
		p := l.Places.Policy()
		return p.Name, p.DryRun
	}
	var p limiter.Policy
	if l.Shared != nil {
		p = l.Shared.Policy()
	} else {
		p = l.Reject.Policy()
	}
	return p.Name, p.DryRun
}
