package e2e

import (
	"testing"
	"time"
)

func TestReadLog(t *testing.T) {
	requests, err := readLog("testdata/combined-10k.log.gz")
	if err != nil {
		t.Fatal(err)
	}
	compress(requests, speed)
	clients := make(map[string]int)
	busiest, last := 0, time.Duration(0)
	for i, r := range requests {
		clients[r.client]++
		busiest = max(busiest, clients[r.client])
		if r.at < last || i > 0 && r.logged.Before(requests[i-1].logged) {
			t.Fatalf("request %d, logged at %v, is out of order", r.id, r.logged)
		}
		// What was logged in one minute keeps its distances.
		if i > 0 && r.logged.Truncate(time.Minute).Equal(requests[i-1].logged.Truncate(time.Minute)) {
			if got, want := r.at-last, r.logged.Sub(requests[i-1].logged)/speed; (got - want).Abs() > 1 {
				t.Fatalf("request %d comes %v after the one before, want %v", r.id, got, want)
			}
		}
		last = r.at
	}
	if len(requests) != 10_000 || len(clients) != 1753 || busiest != 482 {
		t.Errorf("%d requests of %d clients, the busiest with %d; want 10000 of 1753 and 482", len(requests), len(clients), busiest)
	}
	if most := 84 * time.Minute / speed; last > most || last < most-time.Minute/speed {
		t.Errorf("the last of 84 active minutes ends at %v, want up to %v", last, most)
	}
}
