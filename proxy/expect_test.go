package proxy

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// TestS33Expect: over both protocols, no expectation is met but one, and a
// request that is refused is not told to go on.
func TestS33Expect(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	deny := limiterFunc(func(context.Context, limiter.Request) (limiter.Permit, error) { return refused(), nil })
	refuses := limited(route("/refused", up.addr), deny)
	f := newFront(t, &Site{Routes: []*Route{route("/", up.addr), refuses}})
	for _, c := range []struct {
		path, expect string
		want         int
	}{{"/", "zzz", 417}, {"/", "200-ok", 417}, {"/refused", "100-continue", 429}} {
		fields := []string{
			":method", "POST", ":scheme", "http", ":path", c.path, ":authority", "front.test", "content-length", "4", "expect", c.expect,
		}
		h := dialH2(t, f.addr)
		h.headers(t, 1, false, fields...)
		for {
			frame, err := h.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if head, ok := frame.(*http2.MetaHeadersFrame); ok {
				if got := head.PseudoValue("status"); got != strconv.Itoa(c.want) {
					t.Errorf("%s, Expect: %s over HTTP/2: first told %s", c.path, c.expect, got)
				}
				break
			}
		}
		conn := f.dial(t, strings.Replace(post("Content-Length: 4", "Expect: "+c.expect), "POST /a ", "POST "+c.path+" ", 1))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		if res.StatusCode != c.want || !res.Close {
			t.Errorf("%s, Expect: %s: first told %d, closes %t", c.path, c.expect, res.StatusCode, res.Close)
		}
	}
	if n := up.count(); n != 0 {
		t.Errorf("%d requests reached the upstream", n)
	}
}

// TestNo100BeforeTheTurn: also where bodies are waited for before it.
func TestNo100BeforeTheTurn(t *testing.T) {
	up := newRawUpstream(t, always(ok200))
	g := newGate()
	r := limited(route("/", up.addr), struct {
		*gate
		neverRefuses
	}{g, neverRefuses{}})
	f := newFront(t, &Site{Routes: []*Route{r}, Bounds: Bounds{BodyTimeout: time.Minute}})
	h := dialH2(t, f.addr)
	h.headers(t, 1, false, ":method", "POST", ":scheme", "http", ":path", "/", ":authority", "front.test", "content-length", "4", "expect", "100-continue")
	<-g.entered // with the body unread
	c := f.dial(t, post("Content-Length: 4", "Expect: 100-continue"))
	<-g.entered
	c.SetReadDeadline(time.Unix(1, 0))
	if n, _ := c.Read(make([]byte, 1)); n != 0 {
		t.Error("answered before its turn")
	}
	c.Close()
	h.conn.Close()
}

type neverRefuses struct{}

func (neverRefuses) Refuses(limiter.Request) bool { return false }
