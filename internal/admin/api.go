package admin

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// limitJSON is a limit in the names and spellings of the configuration, and
// its state. What its algorithm does not take is left out.
type limitJSON struct {
	Name      string            `json:"name"`
	Algorithm limiter.Algorithm `json:"algorithm"`
	Rate      string            `json:"rate,omitempty"`
	MinRate   string            `json:"min_rate,omitempty"`
	MaxRate   string            `json:"max_rate,omitempty"`
	Burst     int64             `json:"burst,omitempty"`
	Queue     *int              `json:"queue,omitempty"`
	MaxWait   string            `json:"max_wait,omitempty"`
	MaxPlaces any               `json:"max_in_flight,omitempty"` // a number, or "auto"
	LeastIn   int               `json:"min_in_flight,omitempty"`
	MostIn    int               `json:"max_in_flight_limit,omitempty"`
	Limit     int64             `json:"limit,omitempty"`
	Window    string            `json:"window,omitempty"`
	TimeZone  string            `json:"timezone,omitempty"`
	Key       any               `json:"key"` // a word, or a list of words
	Missing   string            `json:"missing_key"`
	Exempt    []string          `json:"exempt"`
	MaxKeys   int               `json:"max_keys"`
	Cost      any               `json:"cost,omitempty"` // a number, or the header's word
	FairBy    any               `json:"fair_by,omitempty"`
	Promote   string            `json:"promote_after,omitempty"`
	ShedAbove string            `json:"shed_above,omitempty"`
	Reserve   *apiReserve       `json:"reserve,omitempty"`
	Deadline  string            `json:"deadline_header,omitempty"`
	Status    int               `json:"status"`
	DryRun    bool              `json:"dry_run"`
	Store     string            `json:"store,omitempty"`
	StoreDown string            `json:"store_down,omitempty"`
	Routes    []string          `json:"routes"`

	Effective *float64 `json:"effective_rate,omitempty"` // requests a second
	Places    int      `json:"effective_max_in_flight,omitempty"`
	Paused    string   `json:"paused,omitempty"` // why nothing leaves the queue
	Resumes   float64  `json:"resumes_in_seconds,omitempty"`
	Sheds     string   `json:"sheds,omitempty"` // the best priority of which some are refused for the waits of others

	Depth      int           `json:"depth"`
	FleetDepth *int          `json:"fleet_depth,omitempty"` // of a queue that proxies share
	OldestWait float64       `json:"oldest_wait_seconds"`
	InFlight   *int          `json:"in_flight,omitempty"` // where max_in_flight bounds it
	Keys       int           `json:"keys"`
	Decisions  decisionsJSON `json:"decisions"`
}

// decisionsJSON counts since the start of the program. Rejected has only the
// reasons that occurred.
type decisionsJSON struct {
	Admitted uint64                    `json:"admitted"`
	Queued   uint64                    `json:"queued"`
	Rejected map[limiter.Reason]uint64 `json:"rejected"`
	Gone     uint64                    `json:"gone"`
}

func describe(s limiter.Status, d decisionsJSON) limitJSON {
	l := limitJSON{
		Name: s.Name, Algorithm: s.Algorithm, Key: oneOrList(s.Key), DryRun: s.DryRun,
		Missing: s.MissingKey, Exempt: list(s.Exempt), MaxKeys: s.MaxKeys, Status: s.RefusedWith,
		Store: s.Store, StoreDown: s.StoreDown,
		Routes: append([]string{}, s.Routes...),
		Paused: s.Paused, Resumes: s.Resumes.Seconds(),
		Depth: s.Depth, OldestWait: s.OldestWait.Seconds(), Keys: s.Keys, Decisions: d,
	}
	switch {
	case s.CostHeader != "":
		l.Cost = "header:" + s.CostHeader
	case s.Queue == 0 && s.Algorithm != limiter.Concurrency:
		l.Cost = s.Cost
	}
	if s.Algorithm.Windowed() {
		l.Limit, l.Window = s.Limit, limiter.FormatDuration(s.Window)
		if s.Calendar != "" {
			l.Window, l.TimeZone = string(s.Calendar), s.TimeZone
		}
		return l
	}
	if l.Burst, l.Queue = s.Burst, &s.Queue; s.Rate.Count > 0 {
		l.Rate, l.Effective = s.Rate.String(), &s.EffectivePerSecond
	}
	if s.MinRate.Count > 0 {
		l.Rate, l.MinRate, l.MaxRate = "auto", s.MinRate.String(), s.Rate.String()
	}
	if s.MaxInFlight > 0 {
		l.MaxPlaces, l.InFlight = s.MaxInFlight, &s.InFlight
	}
	if s.MinInFlight > 0 {
		l.MaxPlaces, l.LeastIn, l.MostIn, l.Places = "auto", s.MinInFlight, s.MaxInFlight, s.EffectiveInFlight
	}
	if s.ReserveHigh > 0 {
		l.Reserve = &apiReserve{s.ReserveHigh}
	}
	if s.Queue > 0 {
		if s.Store == "redis" {
			l.FleetDepth = &s.FleetDepth
		}
		l.MaxWait, l.Deadline = limiter.FormatDuration(s.MaxWait), s.DeadlineHeader
		if s.FairBy != "global" {
			l.FairBy = oneOrList(s.FairBy)
		}
		if s.ShedAbove > 0 {
			l.ShedAbove, l.Sheds = limiter.FormatDuration(s.ShedAbove), s.Sheds
		}
		if s.PromoteAfter > 0 {
			l.Promote = limiter.FormatDuration(s.PromoteAfter)
		}
	}
	return l
}

// list takes entries apart that are separated by a comma and a space.
func list(s string) []string {
	if s == "" {
		return []string{}
	}
	return strings.Split(s, ", ")
}

// oneOrList spells a key as the configuration does.
func oneOrList(key string) any {
	if words := list(key); len(words) > 1 {
		return words
	}
	return key
}

func (a *Admin) limits() []limitJSON {
	statuses := a.opts.Limits()
	all := make([]limitJSON, len(statuses))
	for i, s := range statuses {
		all[i] = describe(s, a.opts.Tally.decisions(s.Name))
	}
	return all
}

func (a *Admin) getLimits(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Limits []limitJSON `json:"limits"`
	}{a.limits()})
}

// limit is one limit as it stands.
func (a *Admin) limit(name string) (limitJSON, bool) {
	for _, s := range a.opts.Limits() {
		if s.Name == name {
			return describe(s, a.opts.Tally.decisions(name)), true
		}
	}
	return limitJSON{}, false
}

func noLimit(w http.ResponseWriter) {
	writeError(w, http.StatusNotFound, "there is no limit of this name; GET /api/limits lists them")
}

// answerChanged answers with a limit as it is now, if it still is.
func (a *Admin) answerChanged(w http.ResponseWriter, name string) {
	if l, ok := a.limit(name); ok {
		writeJSON(w, http.StatusOK, l)
	} else {
		noLimit(w)
	}
}

func (a *Admin) getLimit(w http.ResponseWriter, _ *http.Request, l limitJSON, _ string) {
	writeJSON(w, http.StatusOK, l)
}

func (a *Admin) postReload(w http.ResponseWriter, r *http.Request) {
	a.log.Info("reload asked for by the API", "client", r.RemoteAddr)
	problems, warnings := a.opts.Reload()
	status := http.StatusOK
	if len(problems) > 0 {
		status = http.StatusUnprocessableEntity
	}
	writeJSON(w, status, struct {
		OK       bool     `json:"ok"`
		Problems []string `json:"problems"`
		Warnings []string `json:"warnings"`
	}{len(problems) == 0, append([]string{}, problems...), append([]string{}, warnings...)})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // plain data of ours: it fails only when the client has gone
}

func writeError(w http.ResponseWriter, status int, why string) {
	writeJSON(w, status, struct {
		Error string `json:"error"`
	}{why})
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// An apiReserve is the share that is kept for high priority.
type apiReserve struct {
	High float64 `json:"high"`
}
