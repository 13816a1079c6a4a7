package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/browsertest"
	"github.com/shapeproxy/shapeproxy/limiter"
)

const playSessionOfTests = "00112233445566778899aabbccddeeff"

func (p *playground) call(t *testing.T, what string) map[limiter.Algorithm]picture {
	t.Helper()
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest("POST", "/play/"+what, strings.NewReader(`{"session":"`+playSessionOfTests+`"}`)))
	var got pictures
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || len(got.Algorithms) != 5 {
		t.Fatalf("%s: %d %s", what, w.Code, w.Body)
	}
	all := make(map[limiter.Algorithm]picture)
	for _, pic := range got.Algorithms {
		all[pic.Algo] = pic
	}
	return all
}

func newPlay(t *testing.T) *playground {
	t.Helper()
	p, err := newPlayground()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Five before the end of a window and five after it: the fixed window lets all
// ten through, and what is drawn is what the limits keep.
func TestPlaygroundAtTheBoundary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins with a window
		p := newPlay(t)
		time.Sleep(9500 * time.Millisecond)
		passed := make(map[limiter.Algorithm]int)
		five := func() (last map[limiter.Algorithm]picture) {
			for range 5 {
				last = p.call(t, "ask")
				for algo, pic := range last {
					if pic.Allowed {
						passed[algo]++
					}
				}
			}
			return last
		}
		before := five()
		for algo, pic := range before {
			if pic.Level != 5 || pic.Remaining != 0 || passed[algo] != 5 {
				t.Errorf("%s after five: %+v, %d passed", algo, pic, passed[algo])
			}
		}
		time.Sleep(time.Second)
		if looked := p.call(t, "look"); looked[limiter.FixedWindow].Window.Current != 0 || looked[limiter.SlidingWindowCounter].Window.Previous != 5 ||
			looked[limiter.SlidingWindowCounter].Level != 4.75 || looked[limiter.FixedWindow].Window.Elapsed != .5 {
			t.Errorf("half a second into the next window: %+v", looked)
		}
		after := five()
		want := map[limiter.Algorithm]int{
			limiter.FixedWindow: 10, limiter.SlidingWindowLog: 5, limiter.SlidingWindowCounter: 5, limiter.TokenBucket: 5, limiter.LeakyBucket: 5,
		}
		for algo, n := range want {
			if passed[algo] != n {
				t.Errorf("%s lets %d through, want %d", algo, passed[algo], n)
			}
		}
		if log := after[limiter.SlidingWindowLog].Log; len(log) != 5 || log[0] != 1 {
			t.Errorf("the log holds %v", log)
		}
		// Half a request has drained, which is half a token come.
		for _, algo := range []limiter.Algorithm{limiter.TokenBucket, limiter.LeakyBucket} {
			if after[algo].Level != 4.5 {
				t.Errorf("%s is at %v", algo, after[algo].Level)
			}
		}
		// Looking asks nobody, and in the end all are as new.
		time.Sleep(20 * time.Second)
		for algo, pic := range p.call(t, "look") {
			if pic.Level != 0 || pic.Remaining != 5 {
				t.Errorf("%s in the end: %+v", algo, pic)
			}
		}
	})
}

// The two buckets decide alike whenever they are asked, and hold the same.
func TestPlaygroundBucketsAreEqual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t)
		for i := range 300 {
			time.Sleep(time.Duration(i*i%37) * 100 * time.Millisecond)
			all := p.call(t, "ask")
			token, leaky := all[limiter.TokenBucket], all[limiter.LeakyBucket]
			if token.Allowed != leaky.Allowed || math.Abs(token.Level-leaky.Level) > 1e-6 {
				t.Fatalf("request %d: token bucket %+v, leaky bucket %+v", i, token, leaky)
			}
		}
	})
}

func TestPlaygroundRefusesNonsense(t *testing.T) {
	p := newPlay(t)
	for _, test := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/play", "", 200}, {"HEAD", "/play", "", 200}, {"GET", "/play/play.js", "", 200}, {"GET", "/play/play.css", "", 200},
		{"POST", "/play", "", 404}, {"GET", "/play/ask", "", 404}, {"GET", "/play/other", "", 404},
		{"POST", "/play/ask", "", 400}, {"POST", "/play/ask", "{}", 400}, {"POST", "/play/look", `{"session":"` + strings.Repeat("a", 5000) + `"}`, 400},
		{"POST", "/play/ask", `{"session":"` + playSessionOfTests + `"}`, 200},
	} {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(test.method, test.path, strings.NewReader(test.body)))
		if w.Code != test.status || w.Header().Get("Content-Security-Policy") == "" {
			t.Errorf("%s %s: %d, want %d", test.method, test.path, w.Code, test.status)
		}
	}
	for i := range 3 * playSessions { // inventing sessions makes nothing grow
		p.pictures(fmt.Sprint(i), true)
	}
	for _, l := range p.limits {
		if l.Keys() > playSessions {
			t.Errorf("%s remembers %d", l.Policy().Name, l.Keys())
		}
	}
}

// The playground in a real browser: pressed by a mouse, held by a key.
func TestPlaygroundInABrowser(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: newPlay(t), ReadHeaderTimeout: time.Second}
	go s.Serve(l)
	defer s.Close()

	b := browsertest.Open(t, "http://"+l.Addr().String()+"/play")
	b.Until(`document.querySelectorAll("section").length === 5`)
	b.Eval(`void (window.lane = (algo, s) => document.querySelector("[data-algo=" + algo + "] " + s))`)
	b.Is(`lane("token-bucket", ".state").textContent`, "5.0 tokens left, 0.0 missing")

	// Held, the buckets refuse in the end, and say so.
	b.Eval(`document.getElementById("send").focus()`)
	b.Call("Input.dispatchKeyEvent", map[string]any{"type": "rawKeyDown", "key": " ", "windowsVirtualKeyCode": 32})
	b.Until(`lane("token-bucket", ".verdict").className === "verdict refused"`)
	b.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": " ", "windowsVirtualKeyCode": 32})
	b.Until(`document.getElementById("said").textContent.startsWith("Let through by")`)
	b.Is(`lane("token-bucket", ".verdict").textContent === lane("leaky-bucket", ".verdict").textContent`, true)
	b.Is(`document.getElementById("send").className`, "")

	b.Eval(`document.getElementById("anew").click()`)
	b.Until(`lane("leaky-bucket", ".state").textContent === "0.0 of 5 in the bucket"`)
	// The first five may come too late for their window where much else runs.
	for try := 1; ; try++ {
		b.Eval(`document.getElementById("boundary").click()`)
		b.Until(`!document.getElementById("boundary").disabled`)
		most := b.Eval(`lane("fixed-window", ".most").textContent`)
		if most == "most let through in any 10 s: 10" {
			break
		}
		if try == 4 {
			t.Fatalf("the fixed window at its boundary: %v", most)
		}
	}
	b.Is(`lane("sliding-window-log", ".most").textContent`, "most let through in any 10 s: 5")
	b.Resize(1100, 900)
	b.Screenshot("play-light")
	b.Prefer("dark")
	b.Resize(320, 800)
	b.Is(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, 0.0)
	b.Screenshot("play-phone")
	if said := b.Complaints(); len(said) > 0 {
		t.Errorf("the page complains: %s", said)
	}
}
