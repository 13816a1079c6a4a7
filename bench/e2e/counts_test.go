package e2e

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/shapeproxy/shapeproxy/internal/ledger"
)

// A verdict is what one limit said, in the words of
// shapeproxy_limit_decisions_total.
type verdict struct{ limit, decision, reason string }

func (v verdict) String() string {
	return strings.TrimSpace(v.limit + ": " + v.decision + " " + v.reason)
}

var (
	agreed   = verdict{"per-client", "admitted", ""}
	limited  = verdict{"per-client", "rejected", "limit"}
	admitted = verdict{"fragile", "admitted", ""}
	queued   = verdict{"fragile", "queued", ""}
	full     = verdict{"fragile", "rejected", "queue_full"}
	tooLong  = verdict{"fragile", "rejected", "max_wait"}
	gone     = verdict{"fragile", "gone", "client_gone"}
)

// verdict is what the last limit asked said, by the proxy's log.
func verdictOf(d ledger.Line) verdict {
	switch {
	case d.Policy != "" && d.Departed.IsZero():
		return verdict{d.Policy, "rejected", d.Reason}
	case d.Departed.IsZero():
		return verdict{"fragile", "gone", d.Reason}
	case d.Waited > 0:
		return queued
	}
	return admitted
}

// checkCounts adds up the decisions by every side's account, prints the table
// and fails where two accounts differ.
func (out *outcome) checkCounts(t *testing.T, reload bool) {
	clients, proxy, nginx := map[verdict]int{}, map[verdict]int{}, map[verdict]int{}
	through, cut := 0, 0
	for id, a := range out.answers {
		switch p := out.proxy[id]; {
		case a.policy != "":
			clients[verdict{a.policy, "rejected", a.reason}]++
		case a.left && p.Departed.IsZero():
			clients[verdictOf(p)]++ // gone, or refused as it left
		case a.left:
			cut++ // it left after its release, which it could not see
			through++
		default:
			through++
		}
	}
	for id, p := range out.proxy {
		v := verdictOf(p)
		proxy[v]++
		if _, arrived := out.nginx[id]; arrived {
			nginx[v]++
		}
	}
	proxy[agreed] = len(out.proxy) - proxy[limited]
	nginx[agreed] = len(out.nginx) - nginx[limited]
	departed := proxy[admitted] + proxy[queued]
	counted := func(v verdict) int {
		return out.metrics.Sum("shapeproxy_limit_decisions_total", "limit", v.limit, "decision", v.decision, "reason", v.reason)
	}
	answered := out.metrics.Sum("shapeproxy_requests_total")
	// The limit let them go and counted that, but their clients left before
	// they were sent.
	unsent := counted(admitted) + counted(queued) - departed

	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 1, ' ', 0)
	fmt.Fprint(w, "| decision\t| clients\t| proxy's log\t| /metrics\t| nginx's log\t|\n| ---\t| ---\t| ---\t| ---\t| ---\t|\n")
	for _, v := range []verdict{agreed, limited, admitted, queued, full, tooLong, gone} {
		seen := fmt.Sprint(clients[v])
		if v == agreed || v == admitted || v == queued {
			seen = "–" // an answer does not say so
		}
		fmt.Fprintf(w, "| %s\t| %s\t| %d\t| %d\t| %d\t|\n", v, seen, proxy[v], counted(v), nginx[v])
		if seen != "–" && clients[v] != proxy[v] {
			t.Errorf("%s: %d by the clients, %d by the proxy's log", v, clients[v], proxy[v])
		}
		spare := counted(v) - proxy[v]
		if v == gone {
			spare = -spare
		}
		if spare != 0 && !(spare > 0 && (v == admitted || v == queued || v == gone)) {
			t.Errorf("%s: %d by the proxy's log, %d by /metrics", v, proxy[v], counted(v))
		}
		if nginx[v] > 0 && (v == limited || v == full || v == tooLong || v == gone) {
			t.Errorf("%s: %d of them reached nginx", v, nginx[v])
		}
		if proxy[v] == 0 && (v != tooLong || reload) {
			t.Errorf("%s: never, so that the run shows nothing about it", v)
		}
	}
	fmt.Fprintf(w, "| departed\t| %d\t| %d\t| %d\t| %d\t|\n", through, departed, counted(admitted)+counted(queued), len(out.nginx))
	fmt.Fprintf(w, "| all requests\t| %d\t| %d\t| %d\t| %d\t|\n", len(out.answers), len(out.proxy), answered, len(out.nginx))
	w.Flush()
	t.Logf("counts by decision; %d clients left before they were sent though released, %d after\n%s", unsent, cut, table.String())

	if n := proxy[gone] - counted(gone); n != unsent {
		t.Errorf("%d released and not sent, but %d more gone by the proxy's log than by /metrics", unsent, n)
	}
	if through != departed {
		t.Errorf("%d departed by the clients, %d by the proxy's log", through, departed)
	}
	if missing := departed - len(out.nginx); missing < 0 || missing > cut {
		t.Errorf("%d departed, %d arrived at nginx", departed, len(out.nginx))
	}
	if n := len(out.answers); len(out.proxy) != n || answered != n {
		t.Errorf("%d requests, %d in the proxy's log, %d in /metrics", n, len(out.proxy), answered)
	}
	if others := len(out.proxy) - departed - proxy[limited] - proxy[full] - proxy[tooLong] - proxy[gone]; others != 0 {
		t.Errorf("%d requests have another decision than those in the table", others)
	}
	if reload && out.metrics.Sum("shapeproxy_config_last_reload_successful") != 1 {
		t.Error("the reload failed")
	}
}
