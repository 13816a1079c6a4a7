package main

import (
	"embed"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

//go:embed play
var playPage embed.FS

// playFiles are the page of the playground, by path.
var playFiles = map[string]struct{ contentType, file string }{
	"/play":          {"text/html; charset=utf-8", "play/index.html"},
	"/play/play.css": {"text/css; charset=utf-8", "play/play.css"},
	"/play/play.js":  {"text/javascript; charset=utf-8", "play/play.js"},
}

// A playground asks all algorithms about one stream of requests, and shows what
// they keep: every picture is drawn from the limits of this process.
type playground struct {
	limits []*limiter.Limit // in the order of limiter.Algorithms
	meters []*limiter.Meter
	begun  time.Time

	mu  sync.Mutex
	now time.Time // what the limits take for the time, so that all decide at one instant
}

// playSessions is how many browsers are remembered.
const playSessions = 1000

func newPlayground() (*playground, error) {
	p := &playground{begun: time.Now()}
	p.now = p.begun
	memory := limiter.NewMemoryOn(func() time.Time { return p.now })
	for _, algo := range limiter.Algorithms {
		policy := demoPolicy(algo)
		policy.MaxKeys = playSessions
		limit, err := memory.NewLimit(policy)
		if err != nil {
			return nil, err
		}
		meter, err := limiter.NewMeter(policy)
		if err != nil {
			return nil, err
		}
		p.limits, p.meters = append(p.limits, limit), append(p.meters, meter)
	}
	return p, nil
}

// A picture is one algorithm after a decision, or as it stands. Times are in
// seconds.
type picture struct {
	verdict
	// Level is how much is used: of a window what is counted against the limit,
	// of the leaky bucket what is in it, of the token bucket what is missing.
	Level  float64     `json:"level"`
	Window *playWindow `json:"window,omitempty"`
	Log    []float64   `json:"log,omitempty"` // ages of what is counted, the oldest first; one for each request
}

// A playWindow is the window that it is in, and what it counts.
type playWindow struct {
	Elapsed  float64 `json:"elapsed"`
	Length   float64 `json:"length"`
	Current  int64   `json:"current"`
	Previous int64   `json:"previous"`
}

var playSession = regexp.MustCompile(`^[0-9a-f]{32}$`)

func (p *playground) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if page, ok := playFiles[r.URL.Path]; ok && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		content, err := playPage.ReadFile(page.file)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h.Set("Content-Type", page.contentType)
		_, _ = w.Write(content)
		return
	}
	ask := r.URL.Path == "/play/ask" && r.Method == http.MethodPost
	if !ask && (r.URL.Path != "/play/look" || r.Method != http.MethodPost) {
		http.Error(w, "there is nothing here; GET /play is the playground", http.StatusNotFound)
		return
	}
	var body struct{ Session string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1024)).Decode(&body); err != nil || !playSession.MatchString(body.Session) {
		writeJSON(w, http.StatusBadRequest, map[string]string{"error": `send {"session": "…"} with 32 hexadecimal digits of your own`})
		return
	}
	writeJSON(w, http.StatusOK, p.pictures(body.Session, ask))
}

// pictures are all algorithms for a session at one instant.
type pictures struct {
	Now        float64   `json:"now"` // seconds, from any beginning
	Algorithms []picture `json:"algorithms"`
}

// pictures are those of now, with one more request if the limits are asked.
func (p *playground) pictures(session string, ask bool) pictures {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = p.begun.Add(time.Since(p.begun))
	all := make([]picture, len(p.limits))
	for i, l := range p.limits {
		decide := l.Peek
		if ask {
			decide = l.Take
		}
		d := decide(session, 1)
		all[i] = p.picture(l, p.meters[i], session, verdictOf(l.Policy().Algorithm, d))
	}
	return pictures{p.now.Sub(p.begun).Seconds(), all}
}

func (p *playground) picture(l *limiter.Limit, m *limiter.Meter, session string, v verdict) picture {
	state, at := l.State(session)
	now, policy := at.UnixNano(), l.Policy()
	pic := picture{verdict: v}
	if start, end := m.Window(now); end > start {
		pic.Window = &playWindow{Elapsed: float64(now-start) / 1e9, Length: float64(end-start) / 1e9}
	}
	if len(state) == 0 {
		return pic
	}
	switch policy.Algorithm {
	case limiter.TokenBucket:
		missing := float64(state[0]-now) + float64(state[1])/float64(policy.Rate.Count)
		pic.Level = max(0, missing*float64(policy.Rate.Count)/float64(policy.Rate.Per))
	case limiter.LeakyBucket:
		pic.Level = float64(state[0]) + float64(state[1])/float64(policy.Rate.Per)
	case limiter.FixedWindow:
		pic.Window.Current = state[1]
		pic.Level = float64(state[1])
	case limiter.SlidingWindowCounter:
		pic.Window.Current, pic.Window.Previous = state[1], state[2]
		left := 1 - pic.Window.Elapsed/pic.Window.Length
		pic.Level = float64(state[1]) + float64(state[2])*left
	case limiter.SlidingWindowLog:
		for i := 0; i < len(state); i += 2 {
			for range state[i+1] {
				pic.Log = append(pic.Log, float64(now-state[i])/1e9)
			}
		}
		pic.Level = float64(len(pic.Log))
	}
	return pic
}
