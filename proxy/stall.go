package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// errStalled is the cause with which an answer ends whose body stopped coming.
var errStalled = errors.New("the body of the upstream's answer stopped coming")

// watch has the answer cut when no byte of its body comes for too long. A
// tunnel may be silent as long as its ends like.
func (d *dispatch) watch(res *http.Response) {
	limit := d.up.opts.BodyTimeout
	if limit == 0 || res.Body == nil || res.Body == http.NoBody || res.StatusCode == http.StatusSwitchingProtocols {
		return
	}
	res.Body = &watchedBody{ReadCloser: res.Body, limit: limit, cut: d.cut}
}

// A watchedBody is the body of an answer whose reads may take so long.
type watchedBody struct {
	io.ReadCloser
	limit time.Duration
	cut   context.CancelCauseFunc
	timer *time.Timer // of the reads; nil before the first
}

func (b *watchedBody) Read(p []byte) (int, error) {
	if b.timer == nil {
		b.timer = time.AfterFunc(b.limit, func() { b.cut(errStalled) })
	} else {
		b.timer.Reset(b.limit)
	}
	defer b.timer.Stop()
	return b.ReadCloser.Read(p)
}
