package proxy

import (
	"io"
	"net/http"
	"runtime"
	"runtime/metrics"
	"strconv"
	"testing"
)

// Of a body that takes no more memory than another, whatever its size.
const (
	large     = 256 << 20
	largeHeap = large / 4 // far more than the buffers of all three sides, and what waits for the collector
)

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A heapWatch is where bodies end: it counts them and looks at the heap on the
// way.
type heapWatch struct {
	n, first, most int64
}

func newHeapWatch() *heapWatch {
	runtime.GC()
	w := new(heapWatch)
	w.look()
	w.first = w.most
	return w
}

func (w *heapWatch) look() {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	w.most = max(w.most, int64(sample[0].Value.Uint64()))
}

func (w *heapWatch) Write(p []byte) (int, error) {
	const step = 4 << 20
	if before := w.n; before/step != (before+int64(len(p)))/step {
		w.look()
	}
	w.n += int64(len(p))
	return len(p), nil
}

// TestLargeBodiesInFlatMemory: a large answer and a large upload go through as
// they come, with and without a length.
func TestLargeBodiesInFlatMemory(t *testing.T) {
	begun, ended := make(chan *heapWatch, 1), make(chan *heapWatch, 1)
	up := upstreamHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			w.Header().Set("Content-Length", strconv.Itoa(large))
			io.Copy(w, io.LimitReader(zeroes{}, large))
			return
		}
		watch := <-begun
		io.Copy(watch, r.Body)
		ended <- watch
	}))
	f := newFront(t, &Site{Routes: []*Route{route("/", up)}})
	for _, c := range []struct {
		name   string
		client *http.Client
		method string
		length int64
	}{
		{"down", h1Client(t), "GET", 0},
		{"down by HTTP/2", h2cClient(t), "GET", 0},
		{"up", h1Client(t), "POST", large},
		{"up in chunks", h1Client(t), "POST", -1},
		{"up by HTTP/2", h2cClient(t), "POST", large},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.client.Timeout = 0 // a busy machine may take its time
			req := f.request(t, c.method, "/")
			if c.length != 0 {
				req.Body, req.ContentLength = io.NopCloser(io.LimitReader(zeroes{}, large)), c.length
			}
			watch := newHeapWatch()
			begun <- watch
			res, err := c.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if c.method == "GET" {
				io.Copy(<-begun, res.Body)
			} else {
				<-ended
			}
			if watch.n != large || res.StatusCode != 200 {
				t.Fatalf("%d bytes came, answered %d", watch.n, res.StatusCode)
			}
			grown := watch.most - watch.first
			t.Logf("the heap grew by %d KiB from %d KiB", grown>>10, watch.first>>10)
			if grown > largeHeap {
				t.Errorf("the heap grew by %d MiB for a body of %d MiB", grown>>20, large>>20)
			}
		})
	}
}
