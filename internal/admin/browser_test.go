package admin

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/browsertest"
	"github.com/shapeproxy/shapeproxy/limiter"
	"github.com/shapeproxy/shapeproxy/proxy"
)

func TestPageInABrowser(t *testing.T) {
	const markup = `/<img src="/x" onerror="document.title='owned'">`
	a := newAdmin(func(o *Options) {
		o.Token = "s3cret"
		o.Upstreams = func() []proxy.UpstreamStatus {
			return []proxy.UpstreamStatus{{
				Name: "billing", InFlight: 3, Guarded: true, Breaker: proxy.BreakerOpen,
				Addresses: []proxy.AddressStatus{{Address: "10.0.0.1:80", Healthy: true, InFlight: 3}, {Address: "10.0.0.2:80"}},
				Refused:   []proxy.Refusals{{Reason: limiter.ReasonPaused, Count: 7}, {Reason: limiter.ReasonShutdown}},
			}}
		}
		o.Limits = func() []limiter.Status {
			all := limits()
			all[0].Queue = 40
			all[0].Routes = append(all[0].Routes, markup)
			return append(all, limiter.Status{
				Name: "uploads", Algorithm: limiter.Concurrency, MaxInFlight: 4, InFlight: 3, Queue: 20, MaxWait: 5 * time.Second, Key: "global",
			})
		}
	})
	a.SetReady(true)
	stop := run(a)
	server := httptest.NewServer(a.Handler())
	defer server.Close()
	defer stop()

	b := browsertest.Open(t, strings.Replace(server.URL, "http://", "http://ops:s3cret@", 1)+"/")
	b.Until(`document.querySelectorAll("article").length === 4`)
	b.Is(`document.getElementById("connection").textContent`, "live")
	b.Is(`document.getElementById("ready").hidden`, true)
	b.Is(`document.getElementById("empty").hidden`, true)
	b.Is(`document.getElementById("upstreams").innerText.replace(/\s+/g, "")`, "billing3inflightbreakeropen10.0.0.1:80,3inflight10.0.0.2:80isleftout,0inflightnotsent:paused7")
	b.Is(`[...document.querySelectorAll("article h2")].map((e) => e.textContent).join()`, "fragile,per-client,daily.quota,uploads")
	b.Is(`[...document.querySelectorAll(".dry")].map((e) => !e.hidden).join()`, "false,true,false,false")
	b.Is(`[...document.querySelectorAll(".queue")].map((e) => !e.hidden).join()`, "true,false,false,true")
	b.Is(`document.querySelector(".words").textContent`,
		"Leaky bucket with a queue: requests leave evenly at 20/s; up to 40 wait, each at most 30s.")
	b.Is(`document.querySelectorAll(".words")[3].textContent`,
		"Places: 4 at the upstream at once; up to 20 wait, each at most 5s.")
	b.Is(`document.querySelectorAll(".facts")[3].textContent.includes("max_in_flight4in_flight3")`, true)
	b.Is(`document.querySelector(".queue p").textContent`, "12 of 40 places waitingoldest 550 ms")
	b.Is(`document.querySelector(".bar i").style.width`, "30%")
	b.Is(`[...document.querySelectorAll("div.decisions canvas, div.depths canvas")].filter((e) => e.clientWidth > 100).length`, 6.0)

	// What the configuration holds is text, whatever it looks like.
	b.Is(`document.querySelector(".facts").textContent.includes(`+string(must(json.Marshal(markup)))+`)`, true)
	b.Is(`document.images.length + document.title`, "0shapeproxy")

	// Decisions show up with the next samples, in numbers and in the plot.
	refused := []limiter.Decision{{Policy: "per-client", Reason: limiter.ReasonLimit}}
	for range 100 {
		a.opts.Tally.Decided("/", refused)
	}
	b.Until(`document.querySelectorAll(".facts")[1].textContent.includes("rejectedlimit")`)
	b.Is(`document.querySelectorAll(".facts")[1].textContent.includes("limit 100")`, true)

	// What is asked for only when somebody looks comes with the credentials too.
	b.Eval(`document.querySelectorAll(".keys summary")[1].click()`)
	b.Until(`document.querySelectorAll(".keys .sum")[1].textContent === "Nobody has asked yet."`)

	for _, width := range []int{320, 390, 1440} {
		b.Resize(width, 800)
		b.Is(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, 0.0)
	}
	if said := b.Complaints(); len(said) > 0 {
		t.Errorf("the page complains: %s", said)
	}

	stop() // the stream ends, and there is no new one
	b.Until(`document.getElementById("connection").textContent === "reconnecting"`)
	b.Is(`document.getElementById("limits").hasAttribute("data-stale")`, true)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
