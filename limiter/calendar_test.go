package limiter

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // the zones, whatever the machine has
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// TestCalendarWindows: days with an hour more or less, months of every length,
// and clocks that are changed over midnight.
func TestCalendarWindows(t *testing.T) {
	for _, tt := range []struct {
		unit             Calendar
		zone             string
		now, start, next string // UTC
	}{
		{Daily, "UTC", "2026-11-30 23:59:59", "2026-11-30 00:00:00", "2026-12-01 00:00:00"},
		{Daily, "Europe/Berlin", "2026-03-29 12:00:00", "2026-03-28 23:00:00", "2026-03-29 22:00:00"},        // 23 hours
		{Daily, "Europe/Berlin", "2026-10-25 00:30:00", "2026-10-24 22:00:00", "2026-10-25 23:00:00"},        // 25 hours
		{Daily, "Asia/Kathmandu", "2026-06-01 18:15:00", "2026-06-01 18:15:00", "2026-06-02 18:15:00"},       // +05:45
		{Daily, "America/Sao_Paulo", "2018-11-04 03:00:00", "2018-11-04 03:00:00", "2018-11-05 02:00:00"},    // 00:00 to 01:00
		{Daily, "America/Sao_Paulo", "2018-11-04 02:59:59", "2018-11-03 03:00:00", "2018-11-04 03:00:00"},    // the day before
		{Daily, "America/St_Johns", "2010-11-07 02:45:00", "2010-11-07 02:30:00", "2010-11-08 03:30:00"},     // 00:01 back to 23:01,
		{Daily, "America/St_Johns", "2010-11-07 02:29:59", "2010-11-06 02:30:00", "2010-11-07 02:30:00"},     // which is yesterday again
		{Daily, "Pacific/Apia", "2011-12-30 09:59:59", "2011-12-29 10:00:00", "2011-12-30 10:00:00"},         // there was no 30th
		{Daily, "Pacific/Apia", "2011-12-30 10:00:00", "2011-12-30 10:00:00", "2011-12-31 10:00:00"},         // but the 31st
		{Monthly, "UTC", "2026-02-28 23:59:59", "2026-02-01 00:00:00", "2026-03-01 00:00:00"},                // 28 days
		{Monthly, "UTC", "2028-02-29 12:00:00", "2028-02-01 00:00:00", "2028-03-01 00:00:00"},                // 29
		{Monthly, "UTC", "2026-12-31 23:59:59", "2026-12-01 00:00:00", "2027-01-01 00:00:00"},                // 31, and a year ends
		{Monthly, "Europe/Berlin", "2026-03-31 21:59:59", "2026-02-28 23:00:00", "2026-03-31 22:00:00"},      // 31 days less an hour
		{Monthly, "Pacific/Kiritimati", "2026-04-30 10:00:00", "2026-04-30 10:00:00", "2026-05-31 10:00:00"}, // +14
	} {
		at := func(s string) int64 {
			v, err := time.Parse(time.DateTime, s)
			if err != nil {
				t.Fatal(err)
			}
			return v.UnixNano()
		}
		w := newWindows(Policy{Algorithm: FixedWindow, Limit: 1, Calendar: tt.unit, Location: zone(t, tt.zone)})
		if got, want := w.at(at(tt.now)), (interval{at(tt.start), at(tt.next)}); got != want {
			t.Errorf("%s in %s at %s: from %s to %s, want %s to %s", tt.unit, tt.zone, tt.now,
				time.Unix(0, got.start).UTC(), time.Unix(0, got.end).UTC(), tt.start, tt.next)
		}
	}
}

// TestCalendarAgainstTheClocks: minute by minute, a window begins just when the
// clocks first show a later date, and lasts until the next one begins.
func TestCalendarAgainstTheClocks(t *testing.T) {
	for _, tt := range []struct {
		zone string
		from time.Time
	}{
		{"America/New_York", time.Date(2026, 3, 6, 0, 0, 0, 0, time.UTC)},
		{"America/St_Johns", time.Date(2010, 11, 5, 0, 0, 0, 0, time.UTC)},
		{"America/Havana", time.Date(2026, 3, 6, 0, 0, 0, 0, time.UTC)},
		{"America/Havana", time.Date(2026, 10, 30, 0, 0, 0, 0, time.UTC)},
		{"Africa/Cairo", time.Date(2026, 4, 23, 0, 0, 0, 0, time.UTC)},
		{"Asia/Beirut", time.Date(2026, 3, 27, 0, 0, 0, 0, time.UTC)},
		{"Pacific/Apia", time.Date(2011, 12, 28, 0, 0, 0, 0, time.UTC)},
		{"Australia/Lord_Howe", time.Date(2026, 10, 2, 0, 0, 0, 0, time.UTC)},
	} {
		for _, unit := range []Calendar{Daily, Monthly} {
			loc := zone(t, tt.zone)
			date := func(at time.Time) int {
				y, m, d := at.In(loc).Date()
				if unit == Monthly {
					d = 0
				}
				return (y*12+int(m))*32 + d
			}
			w := newWindows(Policy{Algorithm: FixedWindow, Limit: 1, Calendar: unit, Location: loc})
			latest, last := date(tt.from), w.at(tt.from.UnixNano())
			for now := tt.from; now.Before(tt.from.Add(5 * 24 * time.Hour)); now = now.Add(time.Minute) {
				got := w.at(now.UnixNano())
				if later := date(now) > latest; later != (got != last) {
					t.Fatalf("%s, %s at %s: window from %s, the one before from %s", tt.zone, unit, now.In(loc),
						time.Unix(0, got.start).In(loc), time.Unix(0, last.start).In(loc))
				}
				if got != last && (got.start != now.UnixNano() || last.end != got.start) {
					t.Fatalf("%s, %s: a window of %v at %s follows one of %v", tt.zone, unit, got, now.In(loc), last)
				}
				latest, last = max(latest, date(now)), got
			}
		}
	}
}

// TestCalendarPartition: from any instant, in any order, windows meet without a
// gap, and the one of an instant holds it.
func TestCalendarPartition(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	for _, name := range []string{"UTC", "Europe/Berlin", "America/St_Johns", "America/Havana", "Asia/Gaza", "Africa/Casablanca", "Pacific/Apia", "Antarctica/Troll"} {
		for _, unit := range []Calendar{Daily, Monthly} {
			w := newWindows(Policy{Algorithm: FixedWindow, Limit: 1, Calendar: unit, Location: zone(t, name)})
			for range 2000 {
				now := r.Int64N(1 << 62)
				got := w.at(now)
				if now < got.start || now >= got.end {
					t.Fatalf("%s, %s: the window of %d is %v", name, unit, now, got)
				}
				if next := w.at(got.end); next.start != got.end || w.at(got.end-1) != got || w.at(got.start) != got {
					t.Fatalf("%s, %s: %v is followed by %v", name, unit, got, next)
				}
				if n := got.length(); n < int64(22*time.Hour) || n > int64(745*time.Hour+time.Hour) {
					t.Fatalf("%s, %s: %v is %v long", name, unit, got, time.Duration(n))
				}
			}
		}
	}
}

// TestCalendarQuota: a thousand a month, with a true RetryAfter over the end of
// a month and over a change of the clocks.
func TestCalendarQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC, 2000-01-01
		loc := zone(t, "Europe/Berlin")
		l, err := New(Policy{Algorithm: FixedWindow, Limit: 1000, Calendar: Monthly, Location: loc})
		if err != nil {
			t.Fatal(err)
		}
		for month := 1; month <= 14; month++ {
			if d := l.Take("a", 1000); !d.Allowed || d.Remaining != 0 {
				t.Fatalf("month %d: %+v", month, d)
			}
			d := l.Take("a", 1)
			next := time.Date(2000, time.Month(month+1), 1, 0, 0, 0, 0, loc)
			begin := time.Date(2000, time.Month(month), 1, 0, 0, 0, 0, loc)
			if d.Allowed || d.RetryAfter != time.Until(next) || d.ResetAfter != d.RetryAfter || d.Window != next.Sub(begin) {
				t.Fatalf("month %d: %+v", month, d)
			}
			time.Sleep(d.RetryAfter - 1)
			if l.Take("a", 1).Allowed {
				t.Fatalf("month %d: let through before its end", month)
			}
			time.Sleep(time.Nanosecond)
		}
	})
}

// TestCalendarAdopt: what was used stays used when a window comes from another
// place, or from no calendar.
func TestCalendarAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Policy{Algorithm: FixedWindow, Limit: 10, Window: 24 * time.Hour}
		l, err := New(p)
		if err != nil {
			t.Fatal(err)
		}
		l.Take("a", 7)
		for _, c := range []struct {
			unit Calendar
			loc  *time.Location
		}{{Daily, nil}, {Monthly, zone(t, "Asia/Tokyo")}, {Daily, zone(t, "America/Havana")}} {
			p.Window, p.Calendar, p.Location = 0, c.unit, c.loc
			if err := l.Adopt(p); err != nil {
				t.Fatal(err)
			}
			if d := l.Peek("a", 1); d.Remaining != 3 {
				t.Errorf("%v: %d remaining, want 3", c, d.Remaining)
			}
		}
	})
}

func TestCalendarValidate(t *testing.T) {
	for _, tt := range []struct {
		p    Policy
		want string
	}{
		{Policy{Algorithm: FixedWindow, Limit: 1, Calendar: "week"}, `"day" or "month", not "week"`},
		{Policy{Algorithm: FixedWindow, Limit: 1, Calendar: Daily, Window: time.Hour}, "window must be zero"},
		{Policy{Algorithm: FixedWindow, Calendar: Daily}, "limit must be at least 1"},
		{Policy{Algorithm: SlidingWindowLog, Limit: 1, Calendar: Daily}, "only for a fixed-window"},
		{Policy{Algorithm: TokenBucket, Burst: 1, Rate: Rate{1, 1}, Calendar: Daily}, "only for a fixed-window"},
	} {
		if err := tt.p.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.p, err, tt.want)
		}
	}
}
