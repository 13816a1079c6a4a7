package limiter

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// A Calendar names windows that people's calendars have, for quotas such as
// 1000 a month. Their length is what the calendar says: a day may have 23 or 25
// hours, a month 28 to 31 days.
type Calendar string

// The calendar windows. Both begin with the first instant of a date where the
// clocks show the Policy's Location.
const (
	Daily   Calendar = "day"
	Monthly Calendar = "month"
)

// About is the length of an ordinary window of the calendar, for what needs one
// number; zero if c is none.
func (c Calendar) About() time.Duration {
	switch c {
	case Daily:
		return 24 * time.Hour
	case Monthly:
		return 30 * 24 * time.Hour
	}
	return 0
}

// validate says what is wrong with a window that the calendar gives, or returns
// nil.
func (c Calendar) validate(p Policy) error {
	switch {
	case c.About() == 0:
		return fmt.Errorf("calendar must be %q or %q, not %q", Daily, Monthly, c)
	case p.Algorithm != FixedWindow:
		return fmt.Errorf("calendar is only for a %s: a window that slides begins with no date", FixedWindow)
	case p.Window != 0:
		return errors.New("window must be zero where the calendar gives it")
	}
	return nil
}

// windows divide time: by a grid, or by the calendar of a place.
type windows struct {
	grid
	calendar *calendar // nil: the grid
}

func newWindows(p Policy) windows {
	if p.Calendar == "" {
		return windows{grid: newGrid(int64(p.Window))}
	}
	loc := p.Location
	if loc == nil {
		loc = time.UTC
	}
	return windows{calendar: &calendar{unit: p.Calendar, loc: loc}}
}

// at is the window that now is in.
func (w windows) at(now int64) interval {
	if w.calendar != nil {
		return w.calendar.at(now)
	}
	start := w.start(now)
	return interval{start, start + w.length}
}

// An interval reaches from start to just before end.
type interval struct{ start, end int64 }

func (i interval) length() int64 { return i.end - i.start }

// A calendar remembers the window that was asked for last, as the rules of a
// time zone take some hundred nanoseconds to read.
type calendar struct {
	unit Calendar
	loc  *time.Location
	last atomic.Pointer[interval]
}

func (c *calendar) at(now int64) interval {
	if i := c.last.Load(); i != nil && i.start <= now && now < i.end {
		return *i
	}
	y, m, d := time.Unix(0, now).In(c.loc).Date()
	step := func() { d++ }
	if c.unit == Monthly {
		d, step = 1, func() { m++ }
	}
	i := interval{start: begins(y, m, d, c.loc)}
	for step(); ; step() {
		// Clocks that go back over midnight show the day before once more, in a
		// day that has begun.
		if i.end = begins(y, m, d, c.loc); now < i.end {
			break
		}
		i.start = i.end
	}
	c.last.Store(&i)
	return i
}

// begins is the first instant at which clocks in loc show that date or a later
// one: where they go forward over midnight, that is 01:00, and a date that they
// skip has no length. time.Date does not say which of two readings it takes.
func begins(y int, m time.Month, d int, loc *time.Location) int64 {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	// No zone is so far from UTC that the date could have begun by then.
	t := midnight.Add(-48 * time.Hour).In(loc)
	for {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		if !end.IsZero() && !end.After(t) {
			end = t.Add(time.Minute) // around a year's end after 2037 it may be the start
		}
		at := midnight.Add(-time.Duration(offset) * time.Second)
		if end.IsZero() || at.Before(end) {
			if at.Before(t) {
				at = t
			}
			return at.UnixNano()
		}
		t = end
	}
}
