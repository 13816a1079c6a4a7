package proxy

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A notebook is a Tracer that writes down what it is told.
type notebook struct {
	mu    sync.Mutex
	lines []string
}

func (n *notebook) note(line string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, line)
}

func (n *notebook) Begin(came http.Header, e *Event) Span {
	n.note("begin " + e.Route + " " + came.Get("Traceparent"))
	return page{n}
}

type page struct{ *notebook }

func (p page) Sent(e *Event, fields http.Header) {
	fields.Set("Traceparent", "ours")
	p.note("sent to " + e.Upstream)
}

func (p page) End(e *Event) { p.note("end " + string(e.Reason)) }

func TestTrace(t *testing.T) {
	var mu sync.Mutex
	var got []string
	address := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Header.Get("Traceparent"))
	}))
	refuses := limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) {
		return limiter.Permit{Decision: limiter.Decision{Policy: "l", Reason: limiter.ReasonLimit, Status: 429}}, nil
	})
	f := newFront(t, &Site{Routes: []*Route{route("/", address), limited(route("/refused", address), refuses)}, Client: anyone()})
	ask := func(path string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, "http://"+f.addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Traceparent", "theirs")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		f.next(t)
	}
	ask("/")
	n := new(notebook)
	f.proxy.Trace(n)
	ask("/")
	ask("/refused")
	ask("/%00")
	f.proxy.Trace(nil)
	ask("/")
	http.DefaultClient.CloseIdleConnections()

	mu.Lock()
	defer mu.Unlock()
	if strings.Join(got, " ") != "theirs ours theirs" {
		t.Errorf("the upstream got %q", got)
	}
	want := "begin / theirs|sent to up|end |begin /refused theirs|end limit|begin  theirs|end "
	if lines := strings.Join(n.lines, "|"); lines != want {
		t.Errorf("the tracer was told\n%s, want\n%s", lines, want)
	}
}
