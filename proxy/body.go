package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// errBodyOver is a read from a try at sending that is over.
var errBodyOver = errors.New("the request's body is no longer read")

// keptBytes is what a transport may read of a body before it first writes.
const keptBytes = 4 << 10

// A clientBody is a request's body on its way upstream. It counts, it notes
// what the client did wrong, and it keeps the first bytes until a connection
// has been found that lives.
//
// One goroutine reads it at a time; the counts may be read by any.
type clientBody struct {
	io.ReadCloser
	read    atomic.Int64
	ended   atomic.Bool // it was read to its end
	broken  atomic.Pointer[error]
	kept    []byte // all that was read, while that is little
	pending []byte // kept bytes to be read again
	lost    bool   // more was read than kept
	keep    int    // how much is kept, if that is more than keptBytes
	share   *share // for what is more
	shared  int    // what is taken of it

	patience *patience
}

// errSlowBody is a body that comes more slowly than Bounds allow.
var errSlowBody = errors.New("the request's body comes too slowly")

func (b *clientBody) Read(p []byte) (int, error) {
	if len(b.pending) > 0 {
		n := copy(p, b.pending)
		b.pending = b.pending[n:]
		return n, nil
	}
	n, err := b.take(p)
	if !b.lost {
		if b.mayKeep(len(b.kept) + n) {
			b.kept = append(b.kept, p[:n]...)
		} else {
			b.letGo()
		}
	}
	return n, err
}

// take reads what the client has sent.
func (b *clientBody) take(p []byte) (int, error) {
	b.patience.wait(0)
	n, err := b.ReadCloser.Read(p)
	b.patience.got(n)
	b.read.Add(int64(n))
	switch err {
	case nil:
	case io.EOF:
		b.ended.Store(true)
	default:
		if b.patience.gone() {
			err = errSlowBody
		}
		b.broken.CompareAndSwap(nil, &err)
	}
	return n, err
}

// begin waits until some of the body is there, of which at most n bytes come,
// and keeps that to be read.
func (b *clientBody) begin(n int64) error {
	p := make([]byte, min(n, keptBytes))
	got, err := b.take(p)
	b.kept, b.pending = p[:got], p[:got]
	if err == io.EOF {
		return nil
	}
	return err
}

// rewind makes the body start anew; it is false when that is past.
func (b *clientBody) rewind() bool {
	if b.lost || b.fault() != nil {
		return false
	}
	b.pending = b.kept
	return true
}

// fault is what the client did wrong with its body, or nil.
func (b *clientBody) fault() error {
	if b == nil {
		return nil
	}
	if err := b.broken.Load(); err != nil {
		return *err
	}
	return nil
}

func (b *clientBody) received() int64 {
	if b == nil {
		return 0
	}
	return b.read.Load()
}

// tooLarge reports whether err is the end of a body beyond max_body_bytes.
func tooLarge(err error) bool {
	var over *http.MaxBytesError
	return errors.As(err, &over)
}

// An attempt is a body for one try at sending it. Closing it ends the try and
// not the body, which the Transport closes together with a failed connection.
//
// Once the try is the last, closing it also ends a read that waits for the
// client: an answer may be complete before the body is, as one of gRPC with an
// error is, and the Transport of HTTP/2 would wait for that read before it gives
// the answer's end away. httputil.ReverseProxy does, as it closes no body.
type attempt struct {
	body  io.Reader
	leave func() // ends a read of body that waits
	over  atomic.Bool
	last  atomic.Bool
	mu    sync.Mutex // held while body is read
}

func (a *attempt) Read(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over.Load() {
		return 0, errBodyOver
	}
	return a.body.Read(p)
}

func (a *attempt) Close() error {
	a.over.Store(true)
	if a.last.Load() {
		a.leave()
	}
	return nil
}

// settle makes the try the last one.
func (a *attempt) settle() {
	a.last.Store(true)
	if a.over.Load() {
		a.leave()
	}
}

// stop ends the try and reports whether nobody reads any more: a read that
// waits for the client cannot be taken back, so there is no further try.
func (a *attempt) stop() bool {
	a.over.Store(true)
	if !a.mu.TryLock() {
		return false
	}
	a.mu.Unlock()
	return true
}

// emptyBody is no body, but not one that net/http's Transport would take for a
// licence to send its request twice.
type emptyBody struct{}

// sendEmpty gives a request such a body. It is sent as no body at all: not in
// chunks, as the Transport would send one whose length it does not know, and
// which some servers refuse, but with the length that it has where the client
// gave one or servers expect one. The Transport leaves out a Content-Length
// that is spelled in canonical form, and HTTP/2 any.
func sendEmpty(req *http.Request) {
	req.Body = emptyBody{}
	req.TransferEncoding = notChunked
	_, given := req.Header["Content-Length"]
	if given || req.Method == http.MethodPost || req.Method == http.MethodPut || req.Method == http.MethodPatch {
		req.Header["content-length"] = zero
	}
}

var (
	notChunked = []string{"identity"}
	zero       = []string{"0"}
)

func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }
func (emptyBody) Close() error             { return nil }
