package assemble

import (
	"log/slog"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/config"
	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/internal/quota"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/shaping"
)

// Why a gate is closed.
const (
	throttled = "throttled" // the upstream has refused a request for there being too many
	usedUp    = "quota"     // it has said that nothing is left
)

// An ear hears what one upstream says of its limits, and has the gates before it
// obey. It outlives reloads that leave its gates what they are.
type ear struct {
	name  string
	gates *shaping.Gates
	log   *slog.Logger
	obey  atomic.Pointer[config.Obey]

	throttled, ignored atomic.Uint64
	capped             atomic.Bool // and it was told

	mu      sync.Mutex
	paused  bool        // and it was told
	tell    *time.Timer // that it goes on
	strikes int         // throttled in a row without a word for how long
	struck  uint64      // the last that was sent before the last of these
	closed  bool
}

// newEar returns the ear of an upstream, or the old one; nil if it is not obeyed.
//
// What the table says otherwise is in force when the configuration is; see
// System.Apply.
func newEar(of *upstream, old *generation, log *slog.Logger) *ear {
	if !of.conf.Obey.On {
		return nil
	}
	for _, u := range old.upstreams {
		if u.ear != nil && u.ear.gates == of.gates {
			return u.ear
		}
	}
	e := &ear{name: of.conf.Name, log: log, gates: of.gates}
	e.obey.Store(&of.conf.Obey)
	return e
}

// close ends what it would still tell.
func (e *ear) close() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.tell != nil {
		e.tell.Stop()
	}
}

// key says whose gate a request has to pass, for the chain behind whose keys it
// stands.
func (e *ear) key(keys []limiter.Key, src identity.Source) []limiter.Key {
	if e == nil || !e.gates.Keyed() {
		return keys
	}
	// Whoever lacks the key, or sends a query that cannot be read, is one.
	value, _, _ := e.obey.Load().By.Of(src)
	return append(keys, limiter.Key{Value: value})
}

// ask is a Route's Ask. With searched, a limit of the route finds out its rate by
// itself.
func (e *ear) ask(keys []limiter.Key, searched bool) func(int, http.Header) bool {
	value := ""
	if e.gates.Keyed() {
		value = keys[len(keys)-1].Value
	}
	gate := e.gates.Of(value)
	if gate == nil {
		return nil // as many gates as there may be are in use
	}
	number := gate.Sent()
	return func(status int, h http.Header) bool { return e.hear(gate, number, searched, status, h) }
}

// hear takes note of the answer to the request of that number, and reports whether
// it throttles.
func (e *ear) hear(gate *shaping.Gate, number uint64, searched bool, status int, h http.Header) (throttles bool) {
	now, obey := time.Now(), e.obey.Load()
	said := quota.Read(status, h, now, obey.Trust)
	if said.Ignored > 0 {
		e.ignored.Add(uint64(said.Ignored))
	}
	if said.Known {
		reset := now.Add(said.Left.Reset)
		if gate.Heard(number, said.Left.Requests, reset, obey.MaxPause) {
			if said.Left.Requests == 0 {
				e.pause(gate, usedUp, said.Left.Reset, obey)
			} else {
				gate.Open(usedUp)
			}
		}
	}
	if !said.Throttled {
		e.forgive(number)
		return false
	}
	e.throttled.Add(1)
	switch {
	case said.Paused:
		e.pause(gate, throttled, said.Pause, obey)
	case searched: // it goes slower from now on, which is why it was throttled
	case !said.Known || said.Left.Requests > 0:
		e.pause(gate, throttled, e.strike(gate, number), obey)
	}
	return true
}

// pause closes the gate.
func (e *ear) pause(gate *shaping.Gate, why string, d time.Duration, obey *config.Obey) {
	if d > obey.MaxPause {
		if !e.capped.Swap(true) {
			e.log.Warn("an upstream asks for a pause longer than max_pause, which it gets instead; told once",
				"upstream", e.name, "asked", d.Round(time.Millisecond).String(), "max_pause", obey.MaxPause.String())
		}
		d = obey.MaxPause
	}
	if gate.Close(why, time.Now().Add(d)) && !e.gates.Keyed() {
		e.told(gate)
	}
}

// told writes a line when the gate closes, and one when it has opened. Gates by
// key are told of by their numbers only: clients could make lines without end.
func (e *ear) told(gate *shaping.Gate) {
	why, until, closed := gate.Closed()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
	case closed:
		if !e.paused {
			e.paused = true
			e.log.Info("an upstream is paused", "upstream", e.name, "why", why, "for", time.Until(until).Round(time.Millisecond).String())
		}
		if e.tell == nil {
			e.tell = time.AfterFunc(time.Until(until), func() { e.told(gate) })
		} else {
			e.tell.Reset(time.Until(until))
		}
	case e.paused:
		e.paused = false
		e.log.Info("an upstream is asked again", "upstream", e.name)
	}
}

// strike is how long to pause for an upstream that does not say: a second, and
// twice as long each time that a request sent after the pause was throttled too.
func (e *ear) strike(gate *shaping.Gate, number uint64) time.Duration {
	if e.gates.Keyed() {
		return time.Second
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if number > e.struck {
		e.strikes++
		e.struck = gate.LastSent()
	}
	return time.Second << min(max(e.strikes-1, 0), 16)
}

// forgive ends that when a request that was sent after the pause is answered.
func (e *ear) forgive(number uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if number > e.struck {
		e.strikes = 0
	}
}

// stands fills in how the limit stands for what its upstreams and operators say.
// Of several upstreams it is the one that lets most through that counts.
// The rate is the limit's own.
func (l *limit) stands(st *limiter.Status, own limiter.Rate) {
	rate := math.Inf(1)
	if own.Count > 0 {
		rate = float64(own.Count) / own.Per.Seconds()
	}
	st.EffectivePerSecond = rate
	if st.Paused != "" {
		st.EffectivePerSecond = 0
		return
	}
	best, paused, resumes := -1., "", time.Duration(0)
	for _, gates := range l.gates {
		pace := rate
		if gates != nil && !gates.Keyed() {
			gate := gates.Of("")
			if p, ok := gate.Pace(); ok {
				pace = min(rate, p)
			}
			if why, until, closed := gate.Closed(); closed {
				if d := max(0, time.Until(until)); paused == "" || d < resumes {
					paused, resumes = why, d
				}
				pace = 0
			}
		}
		best = max(best, pace)
	}
	if best >= 0 {
		st.EffectivePerSecond = best
	}
	if best == 0 {
		st.Paused, st.Resumes = paused, resumes
	}
}
