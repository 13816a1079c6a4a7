package ledger

import (
	"context"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

// broken keeps two places through all that may become of a request at the
// upstream: a slow answer, a reset before it and in the middle, none at all,
// and a client that leaves while it waits, or while its answer streams.
func broken(t *testing.T) {
	s := raise(t, play{
		limits:   queue("200/s", 200, `max_in_flight = 2`) + route("/hang", `timeout = "100ms"`),
		upstream: misbehave,
	})
	kinds := []ledger.Ask{
		{Path: "/slow"}, {Path: "/reset"}, {Path: "/middle", Cut: true}, {Path: "/hang"},
		{Path: "/slow", Patience: 300 * time.Millisecond}, {Path: "/stream", Patience: 600 * time.Millisecond},
	}
	rounds := 6
	if full {
		rounds = 15
	}
	c := s.clients(false)
	// Those who stay to the end show that there are places still.
	s.crowd(c, rounds*len(kinds), func(i int) ledger.Ask { return kinds[i%len(kinds)] })
	s.all.Wait()
	s.crowd(c, 6, func(int) ledger.Ask { return ledger.Ask{Path: "/slow"} })
	terms := terms("200/s")
	terms.Places = 2
	s.finish(terms)
	seen := make(map[int]int)
	for _, r := range s.Requests() {
		if r.End == ledger.Answered {
			seen[r.Status]++
		}
	}
	for _, status := range []int{200, 502, 504} {
		if seen[status] == 0 {
			t.Errorf("nobody was answered %d; the answers were %v", status, seen)
		}
	}
}

func misbehave(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/slow":
		time.Sleep(20 * time.Millisecond)
	case "/reset":
		panic(http.ErrAbortHandler)
	case "/middle":
		w.Header().Set("Content-Length", "1000")
		w.Write(make([]byte, 500))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "/hang":
		<-r.Context().Done()
	case "/stream":
		for r.Context().Err() == nil {
			w.Write([]byte("more\n"))
			http.NewResponseController(w).Flush()
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// wakeUps is haproxy/haproxy #3290: a request that waits while the upstream is
// idle, as those before it have left. The audit finds whoever is not woken.
func wakeUps(t *testing.T) {
	s := raise(t, play{
		limits:   queue("200/s", 500, "max_wait = \"5s\"\nmax_in_flight = 2"),
		upstream: func(http.ResponseWriter, *http.Request) { time.Sleep(5 * time.Millisecond) },
	})
	c := s.clients(false)
	random := rand.New(rand.NewPCG(5, 6))
	for range 3 {
		s.crowd(c, 200, func(int) ledger.Ask {
			if random.IntN(3) == 0 {
				return ledger.Ask{Patience: time.Duration(1+random.IntN(600)) * time.Millisecond}
			}
			return ledger.Ask{}
		})
		s.all.Wait()
	}
	terms := terms("200/s")
	terms.Places = 2
	s.finish(terms)
}

// uploads has bodies wait, as streams of one connection, for the one place that
// another stream's body holds. What they have sent ahead must not take the
// connection's window from the body that is to be read.
func uploads(t *testing.T) {
	s := raise(t, play{
		limits:   queue("100/s", 50, "max_in_flight = 1"),
		upstream: readAll,
	})
	c := s.clients(true)
	defer c.Close()
	c.Do(ledger.Ask{}) // so that there is one connection
	s.crowd(c, 20, func(int) ledger.Ask { return ledger.Ask{Body: 1 << 20} })
	s.all.Wait()
	c.Close()
	terms := terms("100/s")
	terms.Places = 1
	s.finish(terms)
}

// refusedLater has places that are taken by requests which a later limit then
// refuses.
func refusedLater(t *testing.T) {
	s := raise(t, play{limits: `
[limit.places]
algorithm = "concurrency"
max_in_flight = 60
[limit.lane]
algorithm = "concurrency"
max_in_flight = 60
queue = 10
[limit.q]
algorithm = "leaky-bucket"
rate = "50/s"
queue = 3
[[route]]
match = "/"
upstream = "up"
limits = ["places", "lane", "q"]
`})
	s.stream(s.clients(false), 3*time.Millisecond, time.Second, plain)
	f := s.finish(terms("50/s", "queue_full"))
	if f.Refused < 200 {
		t.Errorf("%d were refused, fewer than places that could have been lost", f.Refused)
	}
}

// concurrency has no rate: the next goes when a place is free.
func concurrency(t *testing.T) {
	s := raise(t, play{
		limits:   "[limit.q]\nalgorithm = \"concurrency\"\nmax_in_flight = 4\nqueue = 100\n" + route("/", ""),
		upstream: func(http.ResponseWriter, *http.Request) { time.Sleep(40 * time.Millisecond) },
	})
	s.crowd(s.clients(false), 100, func(i int) ledger.Ask {
		if i%3 == 1 {
			return ledger.Ask{Patience: time.Duration(50+i) * time.Millisecond}
		}
		return ledger.Ask{}
	})
	s.finish(ledger.Terms{Limit: limit, Places: 4})
}

func concurrencyAlone(t *testing.T) {
	s := raise(t, play{
		limits:   "[limit.q]\nalgorithm = \"concurrency\"\nmax_in_flight = 4\n" + route("/", ""),
		upstream: func(http.ResponseWriter, *http.Request) { time.Sleep(500 * time.Millisecond) },
	})
	c := s.clients(false)
	for range 2 {
		s.crowd(c, 20, plain)
		s.all.Wait()
	}
	f := s.finish(ledger.Terms{Limit: limit, Places: 4, Reasons: []string{"limit"}})
	if f.Served < 8 || f.Refused == 0 {
		t.Errorf("%d were served and %d refused, of twice 20 for 4 places", f.Served, f.Refused)
	}
}

// sockets has WebSockets wait for two places, which come back however they are
// closed: by either side, with the closing handshake or without.
func sockets(t *testing.T) {
	s := raise(t, play{
		limits: "[limit.q]\nalgorithm = \"concurrency\"\nmax_in_flight = 2\nqueue = 20\n" + route("/", ""),
		upstream: func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				return
			}
			defer c.CloseNow()
			for {
				_, word, err := c.Read(r.Context())
				switch {
				case err != nil || string(word) == "drop":
					return
				case string(word) == "close":
					c.Close(websocket.StatusNormalClosure, "")
					return
				default:
					c.Write(r.Context(), websocket.MessageText, word)
				}
			}
		},
	})
	talk := func(ctx context.Context, r *ledger.Request, word string) error {
		c, _, err := websocket.Dial(ctx, "ws://"+s.front+"/", &websocket.DialOptions{Host: r.Host()})
		if err != nil {
			return err
		}
		defer c.CloseNow()
		if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			return err
		}
		if _, _, err := c.Read(ctx); err != nil {
			return err
		}
		time.Sleep(40 * time.Millisecond)
		switch word {
		case "hang up":
			return nil
		case "good bye":
			return c.Close(websocket.StatusNormalClosure, "")
		}
		if err := c.Write(ctx, websocket.MessageText, []byte(word)); err != nil {
			return err
		}
		c.Read(ctx) // until the upstream's side is closed
		return nil
	}
	for i := range 16 {
		s.all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			r := s.Open("", "")
			if err := talk(ctx, r, []string{"hang up", "good bye", "drop", "close"}[i%4]); err != nil {
				r.Break(err)
				return
			}
			r.Answer(http.StatusSwitchingProtocols, "", "")
		})
	}
	s.finish(ledger.Terms{Limit: limit, Places: 2})
}
