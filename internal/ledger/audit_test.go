package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// A story is a run as it ought to be, of 120 requests that came at once into a
// queue of 100/s and 10 ms each at the upstream: 100 wait, the last 19 are
// refused, and the one but last of the waiting leaves.
type story struct {
	*Ledger
	terms Terms
	proxy Account
	quiet *Stalls
}

const (
	told     = 120
	leaver   = 99
	interval = 10 * time.Millisecond
)

func tell() *story {
	rate, _ := limiter.NewRate(100, time.Second)
	l := New()
	s := &story{
		Ledger: l, quiet: &Stalls{now: l.Now},
		terms: Terms{Limit: "q", Rate: rate, Burst: 1, Reasons: []string{"queue_full"}},
		proxy: Account{Log: make(map[int]Line)},
	}
	gauge := func(v float64) []Sample { return []Sample{{Value: v}} }
	decisions := func(decision, reason string, n float64) Sample {
		return Sample{map[string]string{"limit": "q", "decision": decision, "reason": reason}, n}
	}
	s.proxy.Metrics = Metrics{
		"shapeproxy_limit_decisions_total": {
			decisions("admitted", "", 1), decisions("queued", "", 99),
			decisions("rejected", "queue_full", 19), decisions("gone", "client_gone", 1),
		},
		"shapeproxy_requests_total":           gauge(told),
		"shapeproxy_upstream_responses_total": gauge(100),
		"shapeproxy_queue_depth":              gauge(0),
		"shapeproxy_upstream_in_flight":       gauge(0),
	}
	base := l.began.Round(0)
	turn := 0
	for id := range told {
		r := l.Open("", "")
		came := base.Add(time.Duration(id) * 10 * time.Microsecond)
		r.Began, r.Sent = came, came
		line := Line{Host: Host(id), Status: 200, UpstreamStatus: 200, Duration: 0.001}
		switch {
		case id == leaver:
			left := came.Add(500 * time.Millisecond)
			r.Leave(0)
			r.Ended = left
			line = Line{Time: left, Host: Host(id), Status: 499, Reason: "client_gone", Waited: 0.5, Duration: 0.5}
		case id > 100:
			r.Answer(429, "queue_full", "1")
			line = Line{Time: came, Host: Host(id), Status: 429, Reason: "queue_full", Policy: "q"}
			r.Ended = came
		default:
			line.Departed = base.Add(time.Duration(turn) * interval)
			turn++
			if id > 0 {
				line.Waited = line.Departed.Sub(came).Seconds()
			}
			at := line.Departed.Add(200 * time.Microsecond)
			l.arrivals[id] = []time.Time{at}
			line.Time = at.Add(8 * time.Millisecond)
			r.Answer(200, "", "")
			r.Ended = line.Time
		}
		s.proxy.Log[id] = line
	}
	return s
}

func (s *story) line(id int, change func(*Line)) {
	line := s.proxy.Log[id]
	change(&line)
	s.proxy.Log[id] = line
}

func (s *story) audit() Findings { return s.Audit(s.terms, s.proxy, s.quiet) }

func TestAuditOfWhatOughtToBe(t *testing.T) {
	f := tell().audit()
	for _, p := range f.Problems {
		t.Error(p)
	}
	if f.Served != 100 || f.Refused != 19 || f.Left != 1 || f.Departed != 100 || f.Arrived != 100 || f.Unsent != 0 {
		t.Errorf("%+v", f)
	}
	if f.Departures != 0 || f.Late != 200*time.Microsecond || f.Behind > 1e-6 {
		t.Errorf("%+v", f)
	}
}

// TestAuditFinds has each kind of fault in a run that is sound otherwise.
func TestAuditFinds(t *testing.T) {
	for _, tt := range []struct {
		name, kind string
		spoil      func(*story)
	}{
		{"never ended", "ended", func(s *story) { s.requests[7].ends = 0 }},
		{"ended twice", "ended", func(s *story) { s.requests[7].ends = 2 }},
		{"no good answer", "ended", func(s *story) { s.requests[7].End, s.requests[7].Err = Broken, errors.New("cut") }},
		{"not in the log", "ended", func(s *story) { delete(s.proxy.Log, 110) }},
		{"another status in the log", "ended", func(s *story) { s.line(7, func(l *Line) { l.Status = 502 }) }},
		{"an answer from nowhere", "ended", func(s *story) { delete(s.arrivals, 7) }},
		{"an unexpected reason", "ended", func(s *story) {
			s.requests[110].Reason = "max_wait"
			s.line(110, func(l *Line) { l.Reason = "max_wait" })
		}},
		{"no Retry-After", "ended", func(s *story) { s.requests[110].RetryAfter = "" }},
		{"a stray", "ended", func(s *story) { s.arrive("other.example.com") }},
		{"sent twice", "twice", func(s *story) { s.arrivals[7] = append(s.arrivals[7], s.arrivals[7][0].Add(time.Second)) }},
		{"refused and sent", "refused", func(s *story) { s.arrivals[110] = []time.Time{s.arrivals[100][0].Add(interval)} }},
		{"gone and sent", "gone", func(s *story) { s.arrivals[leaver] = []time.Time{s.arrivals[100][0].Add(interval)} }},
		{"released after it had gone", "gone", func(s *story) { s.requests[50].End, s.requests[50].Ended = Left, s.requests[50].Sent }},
		{"two in one interval", "rate", func(s *story) {
			s.line(7, func(l *Line) { l.Departed = s.proxy.Log[8].Departed.Add(-interval / 2) })
			s.line(7, func(l *Line) { l.Waited = l.Departed.Sub(s.requests[7].Sent).Seconds() })
		}},
		{"arrivals in a bunch", "rate", func(s *story) {
			for id := range 10 {
				s.arrivals[50+id] = []time.Time{s.arrivals[50][0]}
			}
		}},
		{"a turn that nobody took", "idle", func(s *story) {
			for id, line := range s.proxy.Log {
				if !line.Departed.IsZero() && id > 40 {
					s.line(id, func(l *Line) {
						l.Departed, l.Time = l.Departed.Add(3*interval), l.Time.Add(3*interval)
						l.Waited += (3 * interval).Seconds()
					})
					s.arrivals[id] = []time.Time{s.arrivals[id][0].Add(3 * interval)}
				}
			}
		}},
		{"one left to wait at the end", "idle", func(s *story) {
			s.line(leaver, func(l *Line) { l.Waited, l.Duration, l.Time = 1.2, 1.2, l.Time.Add(700*time.Millisecond) })
		}},
		{"slower than the rate", "idle", func(s *story) {
			for id, line := range s.proxy.Log {
				if !line.Departed.IsZero() {
					late := line.Departed.Sub(s.began.Round(0)) / 20
					s.line(id, func(l *Line) {
						l.Departed, l.Time, l.Waited = l.Departed.Add(late), l.Time.Add(late), l.Waited+late.Seconds()
					})
					s.arrivals[id] = []time.Time{s.arrivals[id][0].Add(late)}
				}
			}
		}},
		{"more than its places", "places", func(s *story) {
			s.terms.Places = 2
			for id := 20; id < 23; id++ {
				s.line(id, func(l *Line) { l.Time = l.Time.Add(50 * time.Millisecond) })
			}
		}},
		{"overtaken", "order", func(s *story) {
			a, b := s.proxy.Log[30].Departed, s.proxy.Log[31].Departed
			s.line(30, func(l *Line) { l.Departed, l.Waited = b, l.Waited+interval.Seconds() })
			s.line(31, func(l *Line) { l.Departed, l.Waited = a, l.Waited-interval.Seconds() })
		}},
		{"overtaken before the proxy knew", "order", func(s *story) {
			s.requests[31].Began = s.requests[31].Began.Add(-time.Second)
			s.requests[31].Sent = s.requests[31].Sent.Add(-time.Second)
		}},
		{"a decision not counted", "counts", func(s *story) { s.proxy.Metrics["shapeproxy_limit_decisions_total"][2].Value-- }},
		{"a departure not counted", "counts", func(s *story) { s.proxy.Metrics["shapeproxy_limit_decisions_total"][1].Value-- }},
		{"a gone one counted twice", "counts", func(s *story) { s.proxy.Metrics["shapeproxy_limit_decisions_total"][3].Value++ }},
		{"a request not counted", "counts", func(s *story) { s.proxy.Metrics["shapeproxy_requests_total"][0].Value-- }},
		{"somebody waiting at the end", "counts", func(s *story) { s.proxy.Metrics["shapeproxy_queue_depth"][0].Value = 1 }},
		{"somebody unfinished at the end", "counts", func(s *story) { s.proxy.Metrics["shapeproxy_upstream_in_flight"][0].Value = 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tell()
			tt.spoil(s)
			f := s.audit()
			if !slices.ContainsFunc(f.Problems, func(p Problem) bool { return p.Kind == tt.kind }) {
				t.Errorf("found %v, and nothing of the kind %q", f.Problems, tt.kind)
			}
		})
	}
}

// TestAuditNetOfStalls excuses what the machine did, and only that.
func TestAuditNetOfStalls(t *testing.T) {
	s := tell()
	late := 5 * interval
	from := s.proxy.Log[40].Departed
	for id, line := range maps.Clone(s.proxy.Log) {
		if !line.Departed.IsZero() && id > 40 {
			s.line(id, func(l *Line) {
				l.Departed, l.Time, l.Waited = l.Departed.Add(late), l.Time.Add(late), l.Waited+late.Seconds()
			})
			s.arrivals[id] = []time.Time{s.arrivals[id][0].Add(late)}
		}
	}
	s.quiet.Add(from.Add(interval), from.Add(interval+late))
	f := s.audit()
	if len(f.Problems) > 0 || f.Idle > time.Millisecond || f.Net > 1e-6 || f.Behind < 0.04 {
		t.Errorf("%+v", f)
	}
}

func TestReadLog(t *testing.T) {
	line := func(id int) string {
		return fmt.Sprintf(`{"time":"2026-01-02T03:04:05.000000006Z","msg":"request","host":%q,"status":200,"departed":"2026-01-02T03:04:05Z","waited":0.5,"upstream_status":"error"}`+"\n", Host(id))
	}
	log, err := ReadLog(`{"msg":"listening"}` + "\n" + line(3) + line(4))
	if err != nil || len(log) != 2 || log[3].UpstreamStatus != -1 || log[3].wait().from.Nanosecond() != 500_000_000 {
		t.Errorf("%+v, %v", log, err)
	}
	for _, text := range []string{line(3) + line(3), "no JSON\n", strings.Replace(line(3), "r3.example", "r3x.example", 1)} {
		if _, err := ReadLog(text); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}
