package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"time"
)

// Start begins the health checks, where there are any. They come on top of what
// limits let through. It is to be called once, before Close.
func (u *Upstream) Start() {
	if !u.opts.Health.checks() {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	u.stop = stop
	u.checking.Go(func() {
		ticker := time.NewTicker(u.opts.Health.Interval)
		defer ticker.Stop()
		for {
			u.checkAll(ctx)
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
}

// checkAll checks every address once, all at a time.
func (u *Upstream) checkAll(ctx context.Context) {
	all, err := u.current(ctx)
	if err != nil {
		return // requests are told so too
	}
	var each sync.WaitGroup
	for _, a := range all {
		each.Go(func() {
			if err := a.check(ctx); ctx.Err() == nil {
				a.checked(err)
			}
		})
	}
	each.Wait()
}

// check asks for the path once. Nil means that the answer was 2xx, in time.
func (a *address) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.up.opts.Health.Timeout)
	defer cancel()
	res, err := a.ask(ctx)
	var unsent *unsentError
	for dead := 0; errors.As(err, &unsent) && unsent.kept && dead < deadConns; dead++ {
		res, err = a.ask(ctx) // on another connection, as requests do
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	// The rest of a longer answer is not worth its connection.
	_, err = io.CopyN(io.Discard, res.Body, maxCheckBody)
	if err == io.EOF {
		err = nil
	}
	return err
}

const maxCheckBody = 64 << 10

func (a *address) ask(ctx context.Context) (*http.Response, error) {
	u := a.up
	to := &url.URL{Scheme: u.scheme(), Host: a.host, Opaque: u.opts.Health.Path}
	req := (&http.Request{
		Method: http.MethodGet, URL: to, Host: a.host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"User-Agent": {"shapeproxy"}},
	}).WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{}))
	if send := u.opts.SendHost; send != "upstream" && send != "client" {
		req.Host = send
	}
	return a.transport.RoundTrip(req)
}
