package fleet

import (
	"testing"
	"time"
)

// TestAlone: the server of three proxies is gone, and comes back empty. By local
// each counts by its third, and together they stay within the limit, without a queue
// and with one; on return no more passes at once than the limit lets.
func TestAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, limit string
		burst       int64 // of the limit
		load        func(*node)
	}{
		// Each is offered as much as all of them may take.
		{"decisions", "algorithm = \"token-bucket\"\nrate = \"100/s\"\nburst = 100\nstore_down = \"local\"", 100, func(d *node) { d.offer(20, 100) }},
		{"queue", line, 1, func(d *node) { d.overload(crowd) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := raise(t, 3, c.limit)
			for _, d := range f.nodes {
				c.load(d)
			}
			time.Sleep(length(2*time.Second, 5*time.Second)) // until nothing is left of the burst
			f.server.Kill()
			killed := time.Now()
			time.Sleep(length(2*time.Second, 10*time.Second))
			f.server.Restart()
			back := time.Now()
			for _, d := range f.nodes {
				f.until("each finds it again", func() bool { return len(d.logged("the store answers again")) > 0 })
			}
			time.Sleep(length(time.Second, 10*time.Second))
			over := time.Now()
			a := f.finish(200, 429)

			away, after := between(a.arrived, killed, back), between(a.arrived, back, over)
			lets := func(from, to time.Time) int { return int(100*to.Sub(from).Seconds()) + int(c.burst) }
			if c.burst == 1 {
				a.promised(t, 2)
			} else {
				// What each had let through on the server counts as used, so no second
				// burst is there.
				if len(away) > lets(killed, back)+3 {
					t.Errorf("%d passed in %v without the server, the limit lets %d", len(away), back.Sub(killed), lets(killed, back))
				}
				// It has forgotten all, so that a burst is there; and if the machine is
				// so busy that a call times out, the shares are there besides.
				if most := lets(back, over) + int(c.burst); len(after) > most {
					t.Errorf("%d passed in %v with the server again, at most %d may", len(after), over.Sub(back), most)
				}
			}
			if len(away) < 60 || len(after) < 30 {
				t.Errorf("%d passed without the server, %d after it", len(away), len(after))
			}
			if full {
				f.tell(a, c.name+" without the server", killed, back)
				f.tell(a, c.name+" with it again", back, over)
				t.Logf("the limit lets %d pass, and %d", lets(killed, back), lets(back, over))
				for _, d := range f.nodes {
					t.Logf("%s found it again after %v", d.name, d.logged("the store answers again")[0].Sub(back))
				}
				if c.burst == 1 {
					a.slack(t, f.stalls)
				}
			}
		})
	}
}
