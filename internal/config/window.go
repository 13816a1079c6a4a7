package config

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // for machines and images without the zones

	"github.com/shapeproxy/shapeproxy/limiter"
)

// window reads a duration, or a window of the calendar and whose clocks it goes
// by.
func (t *table) window(l *Limit) {
	t.quantity("window", `a duration such as "1m", or "day" or "month"`, func(s string) error {
		if c := limiter.Calendar(s); c == limiter.Daily || c == limiter.Monthly {
			l.Calendar, l.Window = c, 0
			return nil
		}
		d, err := limiter.ParseDuration(s)
		switch {
		case err != nil && !strings.ContainsAny(s, "0123456789"):
			err = fmt.Errorf("%q is not a window; write a duration such as \"1m\", or \"day\" or \"month\"", s)
		case err == nil && d <= 0:
			err = errors.New("must be above zero; write a duration such as \"1m\"")
		}
		if l.Window = d; err != nil {
			l.Window = time.Second // harmless
		}
		return err
	})
	l.Location = time.UTC
	t.text("timezone", `the name of a time zone such as "Europe/Berlin"`, func(s string) error {
		// "Local" would be whatever machine it runs on.
		loc, err := time.LoadLocation(s)
		if err != nil || s == "" || s == "Local" {
			return fmt.Errorf("%q is not a time zone; write a name of the IANA data base such as \"Europe/Berlin\", or \"UTC\"", s)
		}
		l.Location = loc
		return nil
	})
}

// dates checks what only windows of the calendar take, for an algorithm with
// windows.
func (t *table) dates(l *Limit) {
	switch {
	case l.Calendar != "" && l.Algorithm != limiter.FixedWindow:
		t.bad("window", "the window of %s slides, so it begins with no date; use algorithm = %q, or write a duration such as \"1d\"", l.Algorithm, limiter.FixedWindow)
		l.Calendar, l.Window = "", 24*time.Hour
	case l.Calendar == "" && t.has("timezone") && startsWithDigit(t.values["window"]):
		t.bad("timezone", "has no effect on a window that is a duration, which is aligned to UTC; write window = \"day\" or \"month\", or remove it")
	}
	if l.Calendar == "" {
		l.Location = nil
	}
}

// startsWithDigit reports whether a window is meant to be a duration.
func startsWithDigit(v any) bool {
	s, ok := v.(string)
	return ok && s != "" && '0' <= s[0] && s[0] <= '9'
}

// noWindow clears what only algorithms with windows take.
func (l *Limit) noWindow() { l.Limit, l.Window, l.Calendar, l.Location = 0, 0, "", nil }
