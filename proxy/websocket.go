package proxy

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A webSocket is an upgraded connection: both of its sides, and where each
// stands in the frames of RFC 6455. What passes is not changed; frames are
// followed so that a Close frame of ours can be put between two of theirs.
type webSocket struct {
	client   net.Conn
	upstream io.ReadWriteCloser
	down, up frames // to the client, to the upstream

	tunnels *tunnels
	idle    time.Duration // 0: it may be silent
	last    atomic.Int64  // when something passed, in Unix nanoseconds
	begun   sync.Once
	leaving sync.Once

	mu    sync.Mutex
	timer *time.Timer // of idle; nil: none
	ended bool
}

// becomeSocket makes a WebSocket of an answer that has just switched to it.
func (x *exchange) becomeSocket(res *http.Response) {
	upstream, ok := res.Body.(io.ReadWriteCloser)
	if !ok {
		return // which httputil.ReverseProxy finds out too
	}
	s := &webSocket{upstream: upstream, tunnels: &x.proxy.tunnels, idle: x.site.Bounds.TunnelIdle}
	s.up.w, s.up.mask = upstream, true
	x.socket, x.w.socket, res.Body = s, s, s
}

// endSocket is called when nothing passes any more.
func (x *exchange) endSocket() {
	if s := x.socket; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = true
		s.tunnels.remove(s)
		if s.timer != nil {
			s.timer.Stop()
		}
	}
}

// begin is called when the client has its answer, and both sides are there. It
// is so by a goroutine of the upstream's side, which may have only just begun
// when the client's has ended the WebSocket.
func (s *webSocket) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.last.Store(time.Now().UnixNano())
	s.tunnels.add(s)
	if s.idle > 0 {
		s.timer = time.AfterFunc(s.idle, s.look)
	}
}

// look ends a WebSocket that is silent.
func (s *webSocket) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if silent := time.Duration(time.Now().UnixNano() - s.last.Load()); s.ended {
	} else if silent < s.idle {
		s.timer.Reset(s.idle - silent)
	} else {
		s.goAway()
	}
}

// goAway tells both sides that the WebSocket ends, with status 1001 (RFC 6455,
// section 7.4.1), and closes it when both have agreed, or a while later.
func (s *webSocket) goAway() {
	s.leaving.Do(func() {
		time.AfterFunc(closing, s.close)
		// On goroutines of their own, as a side may read no more.
		go s.down.leave()
		go s.up.leave()
	})
}

// closing is how long both sides may take to agree to the end.
const closing = 3 * time.Second

// close cuts both sides. It may be called more than once.
func (s *webSocket) close() {
	_ = s.client.Close()
	_ = s.upstream.Close()
}

// pass writes p to a side, and closes the WebSocket when both have said goodbye
// after being told to.
func (s *webSocket) pass(f *frames, p []byte) (int, error) {
	s.last.Store(time.Now().UnixNano())
	n, err := f.Write(p)
	if f.leaving.Load() && s.down.agreed.Load() && s.up.agreed.Load() {
		s.close()
	}
	return n, err
}

// Read reads from the upstream. With Write, Close and CloseWrite it is the
// upstream's side of the tunnel for httputil.ReverseProxy.
func (s *webSocket) Read(p []byte) (int, error) {
	s.begun.Do(s.begin)
	return s.upstream.Read(p)
}

// Write writes to the upstream.
func (s *webSocket) Write(p []byte) (int, error) { return s.pass(&s.up, p) }

// Close closes the upstream's side.
func (s *webSocket) Close() error { return s.upstream.Close() }

// CloseWrite lets the upstream's side end by half.
func (s *webSocket) CloseWrite() error {
	if half, ok := s.upstream.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return s.upstream.Close()
}

// frames follows the frames that are written to one side.
type frames struct {
	w       io.Writer
	mask    bool        // what goes there is masked: it is from a client (section 5.1)
	leaving atomic.Bool // a Close frame is to be put in
	agreed  atomic.Bool // the other side has sent one of its own

	mu   sync.Mutex // held while w is written to
	head [14]byte   // of the frame that is being read
	have int        // bytes of it that have come
	left uint64     // bytes of its payload that have not
	over bool       // our Close frame was sent: nothing follows it
}

// Write writes p, up to where a Close frame is to be put in; what follows that
// is dropped, and read only for the other side's own.
func (f *frames) Write(p []byte) (int, error) {
	f.mu.Lock()
	n, err := f.pass(p)
	f.mu.Unlock()
	if f.leaving.Load() {
		f.settle()
	}
	return n, err
}

// leave has a Close frame put in: now, or by the Write that is under way.
func (f *frames) leave() {
	f.leaving.Store(true)
	f.settle()
}

// settle says goodbye if this is the place. Whoever holds the lock settles when
// it has given it back.
func (f *frames) settle() {
	if f.mu.TryLock() {
		f.sayGoodbye()
		f.mu.Unlock()
	}
}

func (f *frames) pass(p []byte) (int, error) {
	n := 0
	for n < len(p) && (f.over || !f.leaving.Load() || !f.between()) {
		n += f.advance(p[n:])
	}
	if f.over || n == 0 && f.leaving.Load() {
		f.sayGoodbye()
		f.skip(p[n:])
		return len(p), nil
	}
	if n, err := f.w.Write(p[:n]); err != nil {
		return n, err
	}
	if f.leaving.Load() {
		f.sayGoodbye()
		f.skip(p[n:])
	}
	return len(p), nil
}

// skip follows frames that are not written.
func (f *frames) skip(p []byte) {
	for n := 0; n < len(p); {
		n += f.advance(p[n:])
	}
}

// sayGoodbye writes the Close frame, if this is the place for it. An error is
// seen by who reads from there.
func (f *frames) sayGoodbye() {
	if f.over || !f.between() {
		return
	}
	f.over = true
	if f.agreed.Load() {
		return // theirs has passed
	}
	_, _ = f.w.Write(goingAway(f.mask))
}

// goingAway is a Close frame with status 1001 (section 5.5.1).
func goingAway(mask bool) []byte {
	status := binary.BigEndian.AppendUint16(nil, 1001)
	if !mask {
		return append([]byte{0x88, 2}, status...)
	}
	var key [4]byte
	_, _ = rand.Read(key[:]) // it never fails
	return append(append([]byte{0x88, 0x80 | 2}, key[:]...), status[0]^key[0], status[1]^key[1])
}

// between reports whether one frame has ended and no other begun.
func (f *frames) between() bool { return f.have == 0 && f.left == 0 }

// advance reads p to the end of the frame that it begins in, or of its head, and
// returns how much that is.
func (f *frames) advance(p []byte) int {
	if f.left > 0 {
		n := min(f.left, uint64(len(p)))
		f.left -= n
		return int(n)
	}
	n := 0
	for n < len(p) {
		f.head[f.have] = p[n]
		f.have++
		n++
		if f.have == f.headLen() {
			f.endHead()
			break
		}
	}
	return n
}

// headLen is how long the head is, as far as what has come of it tells
// (section 5.2).
func (f *frames) headLen() int {
	n := 2
	if f.have < n {
		return n
	}
	switch f.head[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if f.head[1]&0x80 != 0 {
		n += 4
	}
	return n
}

func (f *frames) endHead() {
	switch size := f.head[1] & 0x7f; size {
	case 126:
		f.left = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		f.left = binary.BigEndian.Uint64(f.head[2:])
	default:
		f.left = uint64(size)
	}
	f.have = 0
	if f.head[0]&0x0f == 8 {
		f.agreed.Store(true)
	}
}

// tunnels are the WebSockets that are open.
type tunnels struct {
	mu       sync.Mutex
	open     map[*webSocket]struct{}
	draining bool
}

func (t *tunnels) add(s *webSocket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = make(map[*webSocket]struct{})
	}
	t.open[s] = struct{}{}
	if t.draining {
		s.goAway()
	}
}

func (t *tunnels) remove(s *webSocket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, s)
}

// drain ends those that are open and those that come.
func (t *tunnels) drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
	for s := range t.open {
		s.goAway()
	}
}
