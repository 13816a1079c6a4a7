package admin

import (
	"net/http"
	"sync"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

const (
	refusalsKept = 20
	// Refusals that are alike and follow each other within this time are one
	// line, so that a flood does not push out what was before it.
	refusalsAlike = time.Second
)

// A refusal is told without anything that came from a client.
type refusal struct {
	route  string
	reason limiter.Reason
	dryRun bool
	first  time.Time
	count  uint64
}

// refusals are the last of one limit. It never grows.
type refusals struct {
	mu   sync.Mutex
	last [refusalsKept]refusal // a ring
	next int
}

func (r *refusals) add(route string, reason limiter.Reason, dryRun bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := &r.last[(r.next+refusalsKept-1)%refusalsKept]
	if newest.count > 0 && newest.route == route && newest.reason == reason && newest.dryRun == dryRun && now.Sub(newest.first) < refusalsAlike {
		newest.count++
		return
	}
	r.last[r.next] = refusal{route, reason, dryRun, now, 1}
	r.next = (r.next + 1) % refusalsKept
}

type refusalJSON struct {
	Time   int64          `json:"t"` // Unix time in milliseconds, of the first
	Reason limiter.Reason `json:"reason"`
	Route  string         `json:"route"`
	DryRun bool           `json:"dry_run"`
	Count  uint64         `json:"count"` // how many alike came within a second
}

// newest is all that are kept, the last one first.
func (r *refusals) newest() []refusalJSON {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []refusalJSON{}
	for i := range refusalsKept {
		if one := r.last[(r.next+2*refusalsKept-1-i)%refusalsKept]; one.count > 0 {
			all = append(all, refusalJSON{one.first.UnixMilli(), one.reason, one.route, one.dryRun, one.count})
		}
	}
	return all
}

func (a *Admin) getRefusals(w http.ResponseWriter, _ *http.Request, l limitJSON, _ string) {
	writeJSON(w, http.StatusOK, struct {
		Refusals []refusalJSON `json:"refusals"`
	}{a.opts.Tally.refusals(l.Name)})
}
