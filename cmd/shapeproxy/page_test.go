package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/shapeproxy/shapeproxy/internal/browsertest"
)

// load keeps n requests of three tenants on their way until the test ends.
func (p *process) load(t *testing.T, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for t.Context().Err() == nil {
				r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+p.addr+"/", nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("X-Tenant", []string{"a-tenant-with-a-long-name", "b", "c"}[i%3])
				if res, err := client.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}
		})
	}
	t.Cleanup(wg.Wait)
}

// The live page in a real browser, before a real proxy under load: it shows what
// happens, and what is done on it happens.
func TestLivePage(t *testing.T) {
	up := serveUpstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	p := start(t, `
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[log]
access = false
[upstream.u]
url = "`+up+`"
[limit.fragile]
algorithm = "leaky-bucket"
rate = "20/s"
queue = 40
fair_by = "header:X-Tenant"
[limit.login]
algorithm = "token-bucket"
rate = "1/h"
burst = 5
key = "client-ip"
[[route]]
match = "/"
upstream = "u"
limits = ["fragile"]
[[route]]
match = "/login"
upstream = "u"
limits = ["login"]
`)
	for range 6 {
		get(t, "http://"+p.addr+"/login")
	}
	limit := func(name string) (l struct {
		Paused string
		Rate   string
	}) {
		if err := json.Unmarshal([]byte(get(t, p.admin+"/api/limits/"+name).body), &l); err != nil {
			t.Error(err)
		}
		return l
	}

	b := browsertest.Open(t, p.admin+"/")
	b.Until(`document.querySelectorAll("article").length === 2`)
	b.Eval(`void (window.fragile = (s) => document.querySelectorAll("article")[0].querySelector(s))`)
	b.Eval(`void (window.login = (s) => document.querySelectorAll("article")[1].querySelector(s))`)
	b.Eval(`void (window.ask = (s) => document.querySelector("#ask " + s))`)
	b.Is(`fragile(".flow .in dd").textContent + fragile(".depth").textContent`, "00")

	p.load(t, 24)
	b.Until(`Number(fragile(".flow .out dd").textContent) > 0 && Number(fragile(".depth").textContent) > 9`)
	b.Until(`/ (ms|s)$/.test(fragile(".flow .p99 dd").textContent)`)
	b.Eval(`fragile(".waiting summary").click()`)
	b.Until(`fragile(".waiting tbody").rows.length > 9`)
	b.Is(`fragile(".whose").textContent`, "header:X-Tenant")
	b.Is(`fragile(".waiting").textContent.includes("tenant-with")`, false)
	b.Until(`/^by class: normal \d+; by header:X-Tenant: (.*: \d+, ){2}.*: \d+\.$/.test(fragile(".waiting .sum").textContent)`)

	// Nothing is done that is not confirmed.
	b.Eval(`fragile(".pause").click()`)
	b.Is(`ask("h2").textContent`, "Pause fragile?")
	b.Press("Escape")
	b.Until(`!document.getElementById("ask").open`)
	if l := limit("fragile"); l.Paused != "" {
		t.Errorf("a question is enough to pause: %+v", l)
	}
	b.Eval(`fragile(".pause").click()`)
	b.Eval(`ask(".ok").click()`)
	b.Until(`!fragile(".paused").hidden && document.getElementById("said").textContent === "fragile is paused."`)
	b.Is(`fragile(".why").textContent`, "Paused by an operator, until resumed.")
	if l := limit("fragile"); l.Paused != "operator" {
		t.Errorf("paused on the page: %+v", l)
	}
	b.Until(`fragile(".flow .out dd").textContent === "0" && Number(fragile(".depth").textContent) === 24`)

	b.Eval(`login(".refusals summary").click()`)
	b.Eval(`login(".keys summary").click()`)
	b.Until(`login(".refusals tbody").textContent.includes("limit/login")`)
	b.Until(`login(".refusals .sum").textContent.includes("busiest keys")`)
	b.Until(`login(".keys tbody").textContent.includes("0 of 5")`)
	for _, scheme := range []string{"light", "dark"} {
		b.Prefer(scheme)
		b.Resize(1200, 1000)
		b.Screenshot("page-" + scheme)
	}
	b.Resize(320, 800)
	b.Until(`document.documentElement.scrollWidth === document.documentElement.clientWidth`)
	b.Screenshot("page-phone")

	// The second click, by the keyboard alone.
	b.Eval(`fragile(".pause").focus()`)
	b.Press("Enter")
	b.Until(`document.getElementById("ask").open`)
	b.Screenshot("page-question")
	b.Is(`document.activeElement.textContent`, "Cancel")
	b.Press("Tab")
	b.Press("Enter")
	b.Until(`fragile(".paused").hidden && !document.getElementById("ask").open`)
	b.Is(`document.activeElement === fragile(".pause")`, true)
	if l := limit("fragile"); l.Paused != "" {
		t.Errorf("resumed on the page: %+v", l)
	}

	// A rate that is none is told in words, and one that is holds.
	change := func(rate string) {
		b.Eval(fmt.Sprintf(`{ const e = ask("[name=rate]"); e.value = %q; e.dispatchEvent(new Event("input", { bubbles: true })); }`, rate))
	}
	b.Eval(`fragile(".change").click()`)
	b.Is(`ask(".ok").disabled`, true)
	change("many")
	b.Is(`ask(".effect").textContent`, "rate 20/s → many")
	b.Eval(`ask(".ok").click()`)
	b.Until(`ask(".error").textContent.includes("rate")`)
	b.Is(`document.getElementById("ask").open`, true)
	b.Resize(1200, 1000)
	b.Screenshot("page-error")
	change("50/s")
	b.Eval(`ask(".ok").click()`)
	b.Until(`fragile(".words").textContent.includes("evenly at 50/s")`)
	if l := limit("fragile"); l.Rate != "50/s" {
		t.Errorf("changed on the page: %+v", l)
	}

	b.Eval(`login(".keys button").click()`)
	b.Is(`ask("h2").textContent`, "Reset 127.0.0.1 at login?")
	b.Eval(`ask(".ok").click()`)
	b.Until(`login(".keys tbody").textContent.includes("5 of 5")`)
	if body := get(t, p.admin+"/api/limits/login/keys/127.0.0.1").body; !strings.Contains(body, `"remaining": 5`) {
		t.Errorf("reset on the page: %s", body)
	}

	for _, said := range b.Complaints() {
		if !strings.Contains(said, "422") { // which the browser logs too
			t.Errorf("the page complains: %s", said)
		}
	}
}
