package h1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

var errTooLong = errors.New("the request's body is longer than its Content-Length")

// firstWait is how long the head of a request waits for what has come of its
// body, to go out together with it. The head of one whose body is still to come
// goes alone, as the server may have an answer to that.
const firstWait = 5 * time.Millisecond

// An upload reads a request's body, in a goroutine of its own as nobody can
// take back a read, and writes all of it but what went out with the head.
type upload struct {
	body    io.ReadCloser
	left    int64 // of the length that was told; -1: in chunks
	trailer http.Header
	room    *buffer
	first   chan part      // the first part, for whoever sends the head
	rest    chan *exchange // where the rest goes; closed: nowhere
	whole   bool           // the first part was all, or the body is broken
	over    bool           // rest has been used
}

// A part of a body as it goes over the wire.
type part struct {
	data []byte // in room, so only until the next is read
	last bool
	err  error // the body is broken
}

// Of an upload's room: before the data, for the size of a chunk, and behind it.
const (
	sizeRoom = 8
	tailRoom = 8
)

func newUpload(req *http.Request) *upload {
	u := &upload{body: req.Body, room: small.Get().(*buffer), first: make(chan part), rest: make(chan *exchange, 1)}
	if u.left = req.ContentLength; u.left <= 0 {
		u.left, u.trailer = -1, req.Trailer
	}
	return u
}

// begin starts to read, and appends to the head what comes soon.
func (u *upload) begin(ctx context.Context, head []byte) ([]byte, error) {
	go u.run()
	soon := time.NewTimer(firstWait)
	defer soon.Stop()
	select {
	case p := <-u.first:
		if u.whole = p.last || p.err != nil; u.whole {
			defer u.free() // run has left it to us
		}
		return append(head, p.data...), p.err
	case <-soon.C:
		return head, nil
	case <-ctx.Done():
		u.abandon()
		return head, context.Cause(ctx)
	}
}

// goOn has the rest go to x. Until then, all can be sent anew.
func (u *upload) goOn(x *exchange) {
	u.over = true
	u.rest <- x
}

// abandon ends an upload that has not gone on. A read that waits for the client
// cannot be taken back: it ends with the client's connection.
func (u *upload) abandon() {
	if u != nil && !u.over && !u.whole {
		u.over = true
		close(u.rest)
	}
}

func (u *upload) run() {
	defer u.body.Close()
	p := u.next()
	var x *exchange
	select {
	case u.first <- p:
		if p.last || p.err != nil {
			return
		}
		x = <-u.rest
		p.data = nil
	case x = <-u.rest:
	}
	defer func() { u.free() }()
	if x == nil {
		return
	}
	for {
		if p.err != nil {
			x.broke(p.err)
			return
		}
		if p.last {
			x.lastPart()
		}
		if len(p.data) > 0 {
			if _, err := x.c.Write(p.data); isLate(err) {
				x.broke(err)
				return
			} else if err != nil {
				x.uploaded(false) // the server may have answered before it stopped to read
				return
			}
		}
		if p.last {
			x.uploaded(true)
			return
		}
		if u.left != 0 && cap(u.room.b) == smallSize {
			u.free()
			u.room = large.Get().(*buffer)
		}
		p = u.next()
	}
}

// next reads on.
func (u *upload) next() part {
	room := u.room.b[:cap(u.room.b)]
	in := room[sizeRoom : len(room)-tailRoom]
	n, err := 0, error(nil)
	// Also behind the last byte of a known length: only then all is well.
	for tries := 0; (n == 0 || int64(n) == u.left) && n < len(in) && err == nil; tries++ {
		var more int
		if more, err = u.body.Read(in[n:]); tries == 100 {
			err = io.ErrNoProgress
		}
		n += more
	}
	p := part{data: in[:n], last: err == io.EOF}
	if u.left >= 0 {
		if u.left -= int64(n); u.left < 0 {
			return part{err: errTooLong}
		} else if p.last && u.left > 0 {
			err = io.ErrUnexpectedEOF
		}
	} else {
		p.data = u.chunk(room, n, p.last)
	}
	if err != nil && err != io.EOF {
		return part{err: fmt.Errorf("the request's body: %w", err)}
	}
	return p
}

// chunk makes a chunk of n bytes that were read behind sizeRoom, and of the last
// part the end of the body too.
func (u *upload) chunk(room []byte, n int, last bool) []byte {
	b := room[sizeRoom:sizeRoom]
	if n > 0 {
		size := strconv.AppendInt(room[:0], int64(n), 16)
		size = append(size, '\r', '\n')
		start := sizeRoom - len(size)
		copy(room[start:], size)
		b = append(room[start:sizeRoom+n], '\r', '\n')
	}
	if last {
		b = append(b, '0', '\r', '\n')
		for _, name := range trailerNames(u.trailer) {
			for _, v := range u.trailer[name] {
				if isFieldValue(v) {
					b = appendField(b, name, v)
				}
			}
		}
		b = append(b, '\r', '\n')
	}
	return b
}

func (u *upload) free() {
	if cap(u.room.b) == smallSize {
		small.put(u.room)
	} else {
		large.put(u.room)
	}
}

// A buffer is lent by bufferPool, for a pointer in a sync.Pool saves what a
// slice would cost there.
type buffer struct{ b []byte }

// A bufferPool lends buffers of one size.
type bufferPool struct {
	sync.Pool
	size int
}

// put takes a buffer back, but for one that has grown.
func (p *bufferPool) put(b *buffer) {
	if cap(b.b) == p.size {
		p.Put(b)
	}
}

func newBufferPool(size int) *bufferPool {
	return &bufferPool{size: size, Pool: sync.Pool{New: func() any { return &buffer{make([]byte, 0, size)} }}}
}

const (
	smallSize = 4 << 10
	largeSize = 32 << 10
)

var (
	heads = newBufferPool(2 * smallSize) // of a request with the first part of its body
	small = newBufferPool(smallSize)     // for the first part
	large = newBufferPool(largeSize)     // for the others
)
