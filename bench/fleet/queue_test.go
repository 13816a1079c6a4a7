package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

const line = `algorithm = "leaky-bucket"
rate = "100/s"
queue = 1000
max_wait = "1m"`

// crowd is how many clients each proxy has all the time.
const crowd = 50

// overloaded wants all nodes to have clients who wait.
func (f *fleet) overloaded() {
	f.t.Helper()
	for _, d := range f.nodes {
		d.overload(crowd)
	}
	for _, d := range f.nodes {
		f.until("many wait at each", func() bool { return d.waiting() >= crowd/2 })
	}
}

// promised is the bound of docs/fleet.md for a queue with a burst of 1: at most
// rate × (t + 4 ms + e) + 3 in any interval, where e is no more than the timeout,
// and besides that what the changes of the server allow. What arrives may be
// late by different times.
func (a account) promised(t *testing.T, changes int64) {
	t.Helper()
	const held = 3 // by each line at a change: a burst and two departures
	burst := 3 + held*int64(len(a.of))*changes
	bound := 2*ledger.Notable + timeout
	if s := ledger.Slack(a.departed, hundred, burst); s > bound {
		t.Errorf("the departures need %v of slack besides %d, more than %v", s, burst, bound)
	}
	if s := ledger.Slack(a.arrived, hundred, burst); s > bound+a.late {
		t.Errorf("the arrivals need %v of slack besides %d, more than %v", s, burst, bound+a.late)
	}
}

// TestTwoProxies: two with too much each share a queue at 100/s, and then one is
// killed. What the server grants is never above the rate, nobody departs before it is
// granted, and the other goes on alone at the full rate.
func TestTwoProxies(t *testing.T) {
	t.Parallel()
	f := raise(t, 2, line)
	granted := f.watch(10 * time.Millisecond)
	f.overloaded()

	began := time.Now()
	time.Sleep(length(2*time.Second, 20*time.Second))
	ended := time.Now()
	f.nodes[1].kill()
	killed := time.Now()
	time.Sleep(length(2*time.Second, 10*time.Second))
	over := time.Now()
	a := f.finish(200)
	all, err := granted.stop()
	if err != nil {
		t.Fatal(err)
	}

	if s := ledger.Slack(slices.Clone(all), hundred, 1); s != 0 {
		t.Errorf("what was granted is above the rate by %v", s)
	}
	// Each departure has a grant of its own that was before it, by clocks that are the
	// same here but for how each process reckons.
	for i, at := range a.departed {
		if i >= len(all) || at.Before(all[i].Add(-time.Millisecond)) {
			t.Fatalf("departure %d of %d was not granted by then, of %d", i, len(a.departed), len(all))
		}
	}
	a.promised(t, 0)

	// On a busy machine some lapse, but each has its share.
	together := between(a.arrived, began, ended)
	x, y := len(between(a.of["a"], began, ended)), len(between(a.of["b"], began, ended))
	if x < len(together)/4 || y < len(together)/4 {
		t.Errorf("%d of one, %d of the other", x, y)
	}
	after := between(a.arrived, killed, over)
	if len(after) < 20 {
		t.Errorf("%d arrived in %v after one was killed", len(after), over.Sub(killed))
	}
	if full {
		f.tell(a, "two together", began, ended)
		f.tell(a, "one killed", ended, over)
		a.slack(t, f.stalls)
	}
}

// TestRestart: the server is killed, and comes back empty. Each goes on by its part,
// and both together again, without a burst.
func TestRestart(t *testing.T) {
	t.Parallel()
	f := raise(t, 2, line)
	f.overloaded()
	time.Sleep(length(time.Second, 5*time.Second))
	f.server.Kill()
	killed := time.Now()
	time.Sleep(length(1500*time.Millisecond, 5*time.Second))
	f.server.Restart()
	restarted := time.Now()
	for _, d := range f.nodes {
		f.until("each finds it again", func() bool { return len(d.logged("the store answers again")) > 0 })
	}
	time.Sleep(length(1500*time.Millisecond, 5*time.Second))
	over := time.Now()
	a := f.finish(200)
	a.promised(t, 2)
	for _, one := range []struct {
		name     string
		from, to time.Time
	}{{"without the server", killed, restarted}, {"with it again", restarted, over}} {
		some := between(a.arrived, one.from, one.to)
		if len(some) < 20 {
			t.Errorf("%s, %d arrived in %v", one.name, len(some), one.to.Sub(one.from))
		}
		if full {
			f.tell(a, one.name, one.from, one.to)
		}
	}
	if full {
		for _, d := range f.nodes {
			t.Logf("%s found it again after %v", d.name, d.logged("the store answers again")[0].Sub(restarted))
		}
		a.slack(t, f.stalls)
	}
}

// tell prints a row.
func (f *fleet) tell(a account, what string, from, to time.Time) {
	var each []string
	for _, d := range f.nodes {
		each = append(each, fmt.Sprint(len(between(a.of[d.name], from, to))))
	}
	p := paceOf(a.arrived, from, to)
	f.t.Logf("| %s, %.1f s | %d | %s | %d – %d | %.0f ms | %.0f ms |", what, to.Sub(from).Seconds(), len(between(a.arrived, from, to)),
		strings.Join(each, ", "), p.least, p.most, p.gap.Seconds()*1000, fullAfter(a.arrived, from, to, 98).Seconds()*1000)
}

// slack prints what was used of the promise.
func (a account) slack(t *testing.T, stalls *ledger.Stalls) {
	for burst := range int64(4) {
		t.Logf("slack besides %d: departures %v, arrivals %v", burst+1,
			ledger.Slack(a.departed, hundred, burst+1), ledger.Slack(a.arrived, hundred, burst+1))
	}
	t.Logf("from departure to arrival it took up to %v more or less; %v", a.late, stalls)
}
