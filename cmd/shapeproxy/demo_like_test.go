package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// A visit is one request to a likeness, and what it is answered.
type visit struct {
	at       time.Duration
	inFlight int
	status   int
	after    time.Duration
	field    string // one of those it tells; "": not looked at
}

func TestLikenesses(t *testing.T) {
	crowd := func(n int, at time.Duration, status int) (all []visit) {
		for range n {
			all = append(all, visit{at: at, status: status})
		}
		return all
	}
	s := time.Second
	for name, visits := range map[string][]visit{
		"github": slices.Concat(
			[]visit{{at: 3 * s, status: 200, field: "X-RateLimit-Remaining: 19"}}, crowd(19, 3*s, 200),
			[]visit{{at: 4 * s, status: 403, field: "X-RateLimit-Reset: 1700000010"}, {at: 10 * s, status: 200, field: "X-RateLimit-Used: 1"}}),
		"shopify": slices.Concat(
			crowd(39, 0, 200),
			[]visit{
				{status: 200, field: "X-Shopify-Shop-Api-Call-Limit: 40/40"}, {status: 429, field: "Retry-After: 2.0"},
				{at: s, status: 200}, {at: s, status: 200}, {at: s, status: 429}, {at: 30 * s, status: 200, field: "X-Shopify-Shop-Api-Call-Limit: 1/40"},
			}),
		"llm": slices.Concat(
			[]visit{{status: 200, field: "x-ratelimit-remaining-requests: 9"}, {status: 200, field: "x-ratelimit-reset-requests: 1s"}}, crowd(8, 0, 200),
			[]visit{{status: 429, field: "retry-after-ms: 500"}, {at: s / 2, status: 200}}),
		"banning": slices.Concat(
			crowd(12, 0, 200), []visit{{at: s / 2, status: 429, field: "Retry-After: 30"}, {at: 30 * s, status: 429, field: "Retry-After: 1"}, {at: 31 * s, status: 200}}),
		"slots": {
			{inFlight: 1, status: 200, after: s / 10}, {inFlight: 20, status: 200, after: s / 10},
			{inFlight: 40, status: 200, after: 4 * s / 10}, {inFlight: 200, status: 200, after: 10 * s}, {inFlight: 1000, status: 200, after: 10 * s},
		},
	} {
		as, err := findLikeness(name)
		if err != nil {
			t.Fatal(err)
		}
		behave := as.behave()
		for i, v := range visits {
			got := behave(time.Unix(1_700_000_000, 0).Add(v.at), v.inFlight)
			told := ""
			for _, f := range got.fields {
				if strings.HasPrefix(v.field, f[0]+": ") {
					told = f[0] + ": " + f[1]
				}
			}
			if got.status != v.status || got.after != v.after || told != v.field {
				t.Errorf("%s, request %d at %v: %d after %v with %v; want %d after %v with %q", name, i, v.at, got.status, got.after, got.fields, v.status, v.after, v.field)
			}
		}
	}
}

// Each of them with the proxy before it, over sockets.
func TestDemoLike(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for i := range likenesses {
		as := &likenesses[i]
		var out bytes.Buffer
		d, err := newDemo(demoAddresses{}, as, io.Discard, func(string, string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })
		if err != nil {
			t.Fatalf("%s: %v", as.name, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- d.run(ctx) }()
		transport := &http.Transport{}
		res, err := (&http.Client{Transport: transport}).Get("http://" + d.at.Proxy + "/")
		if err != nil || res.StatusCode != 200 || res.Header.Get("Proxy-Status") != "" {
			t.Errorf("%s: %+v, %v", as.name, res, err)
		}
		if err == nil {
			res.Body.Close()
		}
		transport.CloseIdleConnections()
		as.print(&out, d.at)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", as.name, err)
		}
		d.like.summary(&out)
		for _, want := range []string{
			"'http://" + d.at.Upstream + "/?[1-", "'http://" + d.at.Proxy + "/?[1-", as.limit[:20],
			"the upstream answered 200 to 1 requests, and had at most 1 at once\n",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: without %q:\n%s", as.name, want, &out)
			}
		}
	}
}

func TestDemoLikeNothingKnown(t *testing.T) {
	if as, err := findLikeness(""); as != nil || err != nil {
		t.Errorf("%v, %v", as, err)
	}
	if _, err := findLikeness("gitlab"); err == nil || err.Error() != `--upstream-like is "gitlab"; it must be one of github, shopify, llm, banning, slots` {
		t.Error(err)
	}
}
