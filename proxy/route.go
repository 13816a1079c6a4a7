package proxy

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A Route says where requests of one pattern go, and what limits them.
type Route struct {
	Match    string // as the configuration writes it: the name in metrics and logs
	Pattern  string // for http.ServeMux; Match, unless the host there has capitals
	Upstream *Upstream
	Held     bool // whether the Limiter asks the Upstream's Gate before it lets go

	// Limiter is asked before a request is forwarded; nil: not limited.
	Limiter limiter.Limiter
	// Identify returns the keys that the Limiter asks for. An error means that
	// the request cannot be read in one way only, and is answered with 400 and
	// the error's text. It must be set when Limiter is.
	Identify func(Identity) ([]limiter.Key, error)

	// Ask, unless it is nil, is called each time that a request with those keys is
	// sent. What it returns is told the status and the header of the answer, as
	// they came, and reports whether the upstream says that it gets too many.
	// Identify is then asked for keys without a Limiter too, and must be set.
	Ask func([]limiter.Key) func(status int, header http.Header) (throttled bool)

	Retry RetryPolicy

	// SetHeaders are put on every request sent, replacing the client's. Names
	// are in canonical form.
	SetHeaders   []Field
	StripPrefix  string        // taken off the decoded path, in whole segments; without trailing slash
	MaxBodyBytes int64         // 413 beyond it; 0: no bound
	Timeout      time.Duration // from release to the end of the answer; 0: no bound
	ServerTiming bool          // tell the client how long it waited in queues and for the upstream
}

// A Field is a header field that is set on what is sent upstream.
type Field struct{ Name, Value string }

// An Identity is what a request's keys are made of. It is valid during the
// call of Identify only.
type Identity struct {
	Request   *http.Request // as it came: hop-by-hop fields are still there
	Client    netip.Addr    // behind trusted proxies; invalid when unknown
	Host      string        // lower case, without port and trailing dot
	Route     string        // Match of the route
	PathValue func(name string) string
}

// routeTable finds the route of a target by the rules of http.ServeMux, and
// never redirects.
type routeTable struct{ mux *http.ServeMux }

// newRouteTable registers the routes. Invalid, equal or conflicting patterns
// are an error.
func newRouteTable(routes []*Route) (t *routeTable, err error) {
	defer func() {
		// ServeMux reports bad patterns by a panic.
		if p := recover(); p != nil {
			t, err = nil, fmt.Errorf("%v", p)
		}
	}()
	t = &routeTable{mux: http.NewServeMux()}
	for _, route := range routes {
		t.mux.Handle(route.Pattern, found{route})
	}
	return t, nil
}

// found is what the mux leads to: it notes the route that was found.
type found struct{ route *Route }

func (f found) ServeHTTP(w http.ResponseWriter, r *http.Request) { w.(*lookup).route = f.route }

// A lookup is a request of nothing but what routes match, and the
// ResponseWriter that hears what the mux makes of it.
type lookup struct {
	shadow http.Request
	url    url.URL
	header http.Header
	route  *Route
	status int
}

func (l *lookup) Header() http.Header {
	if l.header == nil {
		l.header = make(http.Header)
	}
	return l.header
}

func (l *lookup) Write(b []byte) (int, error) { return len(b), nil }
func (l *lookup) WriteHeader(status int)      { l.status = status }

// find returns the lookup with its route, or with status 404, or with 405 and
// an Allow field.
func (t *routeTable) find(method string, to target) *lookup {
	l := &lookup{url: url.URL{Path: to.path}}
	l.shadow = http.Request{Method: method, Host: to.host, URL: &l.url}
	t.mux.ServeHTTP(l, &l.shadow)
	if l.route == nil && l.status/100 == 3 {
		// The mux would redirect /tree to /tree/, which therefore owns it.
		l.url.Path += "/"
		l.status = 0
		t.mux.ServeHTTP(l, &l.shadow)
	}
	if l.route == nil && l.status != http.StatusMethodNotAllowed {
		l.status = http.StatusNotFound
	}
	return l
}
