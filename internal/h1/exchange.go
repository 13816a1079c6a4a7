package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// readers are lent to exchanges, so that idle connections hold no buffer.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// An exchange is one request on a connection, and its answer. It is the
// answer's body too.
//
// It has up to three parties: the caller, an upload, and the request's context,
// whose end closes the connection under them. Only the caller gives the
// connection back, and only if the upload is over.
type exchange struct {
	t    *Transport
	c    *conn
	req  *http.Request
	ctx  context.Context
	kept bool        // the connection has served others before
	mute bool        // the answer was waited for, and not a byte of it came
	stop func() bool // keeps the context from closing the connection
	br   *bufio.Reader
	res  http.Response

	mu       sync.Mutex
	last     bool  // the last part of the request is on its way, or sent
	sent     bool  // the request was written in whole
	answered bool  // the head of the answer has come
	broken   error // why the request will never be whole
	parted   bool  // the connection is another's, or closed

	body
}

func newExchange(t *Transport, c *conn, req *http.Request) *exchange {
	x := &exchange{t: t, c: c, req: req, ctx: req.Context(), br: readers.Get().(*bufio.Reader)}
	x.br.Reset(c)
	x.stop = context.AfterFunc(x.ctx, c.abort)
	return x
}

// do sends the request, of which head has the head and maybe more, and reads the
// head of its answer. unsent says that no byte of it was written. Unless there
// is an answer, the connection is closed.
func (x *exchange) do(head []byte, up *upload) (res *http.Response, unsent bool, err error) {
	if d := x.t.HeaderTimeout; d > 0 {
		_ = x.c.SetDeadline(time.Now().Add(d))
	}
	before := x.c.written()
	n, sendErr := x.c.Write(head)
	switch {
	case sendErr != nil:
		if n == 0 && (x.c.counted != nil || x.c.raw == x.c.Conn) && x.c.written() == before {
			x.finish(false)
			return nil, true, x.why(sendErr)
		}
		if isLate(sendErr) {
			x.finish(false)
			return nil, false, x.why(sendErr)
		}
		// The server may have answered before it stopped to read.
	case up == nil || up.whole:
		x.last, x.sent = true, true
	default:
		if x.t.HeaderTimeout > 0 {
			_ = x.c.SetDeadline(time.Time{})
		}
		up.goOn(x)
	}
	if _, err = x.br.Peek(1); err != nil {
		x.mute = true
	} else {
		res, err = x.answer()
	}
	if err != nil {
		x.finish(false)
		if err = x.why(err); isLate(err) {
			err = fmt.Errorf("no answer within %v: %w", x.t.HeaderTimeout, err)
		}
		return nil, false, err
	}
	return res, false, nil
}

// uploaded is called when no more of the request's body will be written: it is
// all there, or the server has stopped to read.
func (x *exchange) uploaded(whole bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent = whole
	if d := x.t.HeaderTimeout; d > 0 && !x.answered {
		_ = x.c.SetReadDeadline(time.Now().Add(d))
	}
}

// broke is called when the request's body cannot be read to its end, and the
// server must see that it is not whole; or when the server does not take it.
func (x *exchange) broke(err error) {
	x.mu.Lock()
	x.broken = err
	x.mu.Unlock()
	x.c.abort()
}

// lastPart is called before the last part of the request is written.
func (x *exchange) lastPart() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last = true
}

// headCame is called when the head of the answer has come, and reports whether
// nothing of the request was still to be written then. From here on the
// connection may take its time.
func (x *exchange) headCame() (whole bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answered = true
	if x.t.HeaderTimeout > 0 {
		_ = x.c.SetDeadline(time.Time{})
	}
	return x.last
}

// part ends what x may do to the connection, and reports whether the request
// has been written in whole.
func (x *exchange) part() (whole bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.parted = true
	return x.sent
}

// abort ends a read or a write that is under way, unless the connection has gone
// on to another request with that meanwhile.
func (x *exchange) abort() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.parted {
		x.c.abort()
	}
}

// finish gives the connection back if it may serve another request: clean says
// that the answer, if one came, was read to its end.
func (x *exchange) finish(clean bool) {
	clean = x.part() && clean && x.br.Buffered() == 0 && !x.c.readAhead()
	x.br.Reset(nil)
	readers.Put(x.br)
	x.br = nil
	if x.stop() && clean {
		x.t.pool.put(x.c, x.t.MaxIdle, x.t.IdleTimeout)
	} else {
		x.c.abort()
	}
}

// unused gives the connection back on which nothing was sent.
func (x *exchange) unused() {
	x.sent = true
	x.finish(true)
}

// why is the reason behind an error of the connection: if its request was
// ended, that is all there is to say.
func (x *exchange) why(err error) error {
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.broken != nil {
		return x.broken
	}
	if err == io.EOF {
		err = errNoAnswer
	}
	if x.kept && x.mute && !isLate(err) {
		err = &LostError{err}
	}
	return err
}

func isLate(err error) bool {
	var late interface{ Timeout() bool }
	return errors.As(err, &late) && late.Timeout()
}

var errNoAnswer = fmt.Errorf("the connection was closed without an answer: %w", io.EOF)
