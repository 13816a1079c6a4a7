package h1

import (
	"io"
	"runtime"
	"testing"
)

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestBodyClose: a body that is closed early gives its connection back only if
// nothing has to be waited for.
func TestBodyClose(t *testing.T) {
	for answer, kept := range map[string]int{
		ok200: 1,
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok":                   0,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n": 0,
		"HTTP/1.1 200 OK\r\n\r\nok":                                        0,
	} {
		s := newHTTPServer(t, false, always(answer))
		tr := s.transport(t)
		res, err := tr.RoundTrip(newRequest("GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Read(make([]byte, 1))
		for range 2 {
			if res.Body.Close() != nil || tr.kept() != kept {
				t.Errorf("%q: %d kept", answer, tr.kept())
			}
		}
		if n, err := res.Body.Read(make([]byte, 9)); n != 0 || err != errEnded {
			t.Errorf("%q: reads %d, %v", answer, n, err)
		}
	}

	// As its last bytes are read: the connection is another's by then.
	s := newHTTPServer(t, false, always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	tr := s.transport(t)
	get(t, tr)
	x := newExchange(tr, tr.pool.take(0), newRequest("GET", "/", nil))
	x.sent = true
	x.reading.Lock()
	x.over(io.EOF, true)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		x.Close()
	}()
	for range 100 {
		runtime.Gosched()
	}
	x.reading.Unlock()
	<-closed
	if tr.kept() != 1 || !tr.pool.idle[0].quiet() {
		t.Error("a connection was closed that is another's")
	}

	// While it is read.
	s = newHTTPServer(t, false, always("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"))
	res, err := s.transport(t).RoundTrip(newRequest("GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := io.ReadAll(res.Body)
		read <- err
	}()
	runtime.Gosched()
	res.Body.Close()
	if err := <-read; err == nil {
		t.Error("read to its end")
	}
}
