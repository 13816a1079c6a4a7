package proxy

import (
	"net/netip"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// An Observer is told what the proxy does: metrics, the access log, the live
// page. It watches and never stands in the way: its methods are called on the
// request's goroutine, must be safe for concurrent use and must not block.
type Observer interface {
	// Decided is called once for a request that was put to its route's limits,
	// as soon as they have answered: before it is forwarded or refused, or
	// when its client has left the queue. The slice holds one Decision a limit,
	// those only Peeked included, and must not be kept. Of further turns that a
	// request gets nothing is told.
	Decided(route string, decisions []limiter.Decision)
	// Done is called once for every request, when its answer has ended. The
	// Event and what it points to must not be kept.
	Done(e *Event)
}

// StatusClientGone is the code under which a request is counted and logged
// whose client left before its answer was whole. It is never sent.
const StatusClientGone = 499

// UpstreamError is the UpstreamStatus of a request that was sent and got no
// answer.
const UpstreamError = -1

// An Event is the story of one request, told when it is over.
//
// Method, Host, Path and Client come from the client: they are bounded in
// length, but must never become the label of a metric, and a log must escape
// them. There is no query, as queries hold secrets.
type Event struct {
	Start  time.Time  // when its head had been read
	Client netip.Addr // the client behind trusted proxies, not masked; invalid when unknown
	Proto  string     // HTTP/1.1, HTTP/2.0
	Method string
	Host   string
	Path   string // as it came, without the query

	Route    string // the route's match; empty when none matched
	Upstream string // the upstream's name; empty when it was not forwarded

	Status   int            // the answer's status, or StatusClientGone
	Reason   limiter.Reason // why it was refused; empty if it was not
	Policy   string         // the limit that refused it
	Error    string         // what went wrong, in the words of Proxy-Status; empty if nothing
	Received int64          // bytes of its body that were read; for an upgraded connection, all bytes from the client
	Sent     int64          // bytes of the answer's body; for an upgraded connection, all bytes sent to the client
	Duration time.Duration  // from Start to the end of the answer

	Waited   time.Duration // in queues
	Departed time.Time     // when it was let go to the upstream; zero if it never was
	DryRun   string        // limits in dry run that would have refused or delayed it: "name:reason" or "name:delayed", comma-separated

	UpstreamStatus   int           // the upstream's status, UpstreamError, or 0 when it was never sent
	UpstreamDuration time.Duration // from the release to the answer's head, or to the failure

	// Retries are the tries before that; Waited is for all, Departed is the last.
	Retries []Retry
}

// Attempt is which try at sending the request was the last, from 1.
func (e *Event) Attempt() int { return 1 + len(e.Retries) }
