package proxy

import "time"

// A HealthPolicy says when an address is out, so that no request goes there.
//
// By requests: it is out after MaxFails connections in a row that could not be
// made, or took nothing, for FailTimeout. Then a single connection is tried; it
// is in again if that comes about, and out for as long again if not.
//
// With a Path, by checks too: it is out after Fails checks in a row that fail,
// and whyever it is out, it comes in after Passes in a row that pass.
type HealthPolicy struct {
	MaxFails    int // 0: they never take it out
	FailTimeout time.Duration

	Path          string // asked for by GET; empty: no checks
	Interval      time.Duration
	Timeout       time.Duration
	Fails, Passes int
}

func (p *HealthPolicy) checks() bool { return p.Path != "" }

// A health is the state of one address under a HealthPolicy. It reads no clock
// and takes no lock. The zero value is in.
type health struct {
	out     bool
	until   time.Time // when it is out: from when a connection may be tried
	probing bool      // one is being tried
	fails   int       // failures in a row
	checks  int       // checks in a row with one outcome: below zero they failed
}

// failed tells of a failure. It reports whether the address goes out by it.
func (h *health) failed(p *HealthPolicy, now time.Time) bool {
	if h.fails++; h.out || p.MaxFails == 0 || h.fails < p.MaxFails {
		return false
	}
	h.leave(p, now)
	return true
}

// answered tells of an answer, whatever its status. It reports whether the
// address comes in by it, as one can to which requests went all the same.
func (h *health) answered(p *HealthPolicy) bool {
	back := h.out && !p.checks()
	if back {
		*h = health{}
	}
	h.fails = 0
	return back
}

// due reports whether a connection is to be tried.
func (h *health) due(p *HealthPolicy, now time.Time) bool {
	return h.out && !p.checks() && !h.probing && !now.Before(h.until)
}

// probed tells what came of that. It reports whether the address comes in.
func (h *health) probed(p *HealthPolicy, now time.Time, ok bool) bool {
	if h.probing = false; !h.out {
		return false
	}
	if !ok {
		h.until = now.Add(p.FailTimeout)
		return false
	}
	*h = health{}
	return true
}

// checked tells of a check. It reports whether the address goes out or comes in
// by it.
func (h *health) checked(p *HealthPolicy, now time.Time, ok bool) bool {
	switch {
	case ok && h.checks < 0, !ok && h.checks > 0:
		h.checks = 0
	}
	if ok {
		h.checks++
	} else {
		h.checks--
	}
	switch {
	case h.out && h.checks >= p.Passes:
		h.out, h.fails = false, 0
		return true
	case !h.out && -h.checks >= p.Fails:
		h.leave(p, now)
		return true
	}
	return false
}

func (h *health) leave(p *HealthPolicy, now time.Time) {
	h.out, h.until, h.probing = true, now.Add(p.FailTimeout), false
	if h.checks > 0 {
		h.checks = 0 // those that passed before tell nothing of now
	}
}
