package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// A browser is a Chromium with one page, driven by the DevTools protocol over
// a pair of pipes.
type browser struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	id      int
	session string
	said    []string // errors and exceptions of the page
}

func openPage(t *testing.T, url string) *browser {
	t.Helper()
	chromium := testdeps.Need(t, "chromium")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a browser that hangs fails the test
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--no-proxy-server", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	theirIn, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// Wait then waits for the children too, which write to the profile to the last.
	cmd.Stderr = new(strings.Builder)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4, as the browser expects
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, to: to, from: bufio.NewReader(from)}
	t.Cleanup(func() {
		// It may be gone before it answers.
		if _, err := to.WriteString(`{"id":0,"method":"Browser.close"}` + "\x00"); err != nil {
			cancel()
		}
		_ = cmd.Wait()
		to.Close()
		from.Close()
	})

	var target struct{ TargetID string }
	b.result(b.call("Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var attached struct{ SessionID string }
	b.result(b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &attached)
	b.session = attached.SessionID
	b.call("Runtime.enable", nil)
	b.call("Log.enable", nil)
	b.call("Page.enable", nil)
	b.call("Page.navigate", map[string]any{"url": url})
	return b
}

// call sends a command and returns its result.
func (b *browser) call(method string, params map[string]any) json.RawMessage {
	b.t.Helper()
	b.id++
	message := map[string]any{"id": b.id, "method": method, "params": params}
	if params == nil {
		delete(message, "params")
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	data, err := json.Marshal(message)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(data, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		data, err := b.from.ReadBytes(0)
		if err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		var answer struct {
			ID     int
			Method string
			Params json.RawMessage
			Result json.RawMessage
			Error  json.RawMessage
		}
		if err := json.Unmarshal(data[:len(data)-1], &answer); err != nil {
			b.t.Fatal(err)
		}
		switch {
		case answer.ID == b.id && answer.Error != nil:
			b.t.Fatalf("%s: %s", method, answer.Error)
		case answer.ID == b.id:
			return answer.Result
		case answer.Method == "Runtime.exceptionThrown", answer.Method == "Log.entryAdded":
			b.said = append(b.said, string(answer.Params))
		}
	}
}

func (b *browser) result(data json.RawMessage, v any) {
	b.t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		b.t.Fatal(err)
	}
}

// eval is the value of a JavaScript expression in the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var got struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.result(b.call("Runtime.evaluate", map[string]any{
		"expression": expression, "awaitPromise": true, "returnByValue": true,
	}), &got)
	if got.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	return got.Result.Value
}

// until waits for the condition to hold in the page.
func (b *browser) until(condition string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`new Promise((done) => {
		const look = () => (%s) ? done(true) : setTimeout(look, 20);
		look();
	})`, condition))
}

func (b *browser) is(expression string, want any) {
	b.t.Helper()
	if got := b.eval(expression); got != want {
		b.t.Errorf("%s is %v, want %v", expression, got, want)
	}
}

func TestPageInABrowser(t *testing.T) {
	const markup = `/<img src="/x" onerror="document.title='owned'">`
	a := newAdmin(func(o *Options) {
		o.Token = "s3cret"
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

	b := openPage(t, strings.Replace(server.URL, "http://", "http://ops:s3cret@", 1)+"/")
	b.until(`document.querySelectorAll("article").length === 4`)
	b.is(`document.getElementById("connection").textContent`, "live")
	b.is(`document.getElementById("ready").hidden`, true)
	b.is(`document.getElementById("empty").hidden`, true)
	b.is(`document.getElementById("upstreams").textContent`, "billing3")
	b.is(`[...document.querySelectorAll("h2")].map((e) => e.textContent).join()`, "fragile,per-client,daily.quota,uploads")
	b.is(`[...document.querySelectorAll(".dry")].map((e) => !e.hidden).join()`, "false,true,false,false")
	b.is(`[...document.querySelectorAll(".queue")].map((e) => !e.hidden).join()`, "true,false,false,true")
	b.is(`document.querySelector(".words").textContent`,
		"Leaky bucket with a queue: requests leave evenly at 20/s; up to 40 wait, each at most 30s.")
	b.is(`document.querySelectorAll(".words")[3].textContent`,
		"Places: 4 at the upstream at once; up to 20 wait, each at most 5s.")
	b.is(`document.querySelectorAll(".facts")[3].textContent.includes("max_in_flight4in_flight3")`, true)
	b.is(`document.querySelector(".queue p").textContent`, "12 of 40 places waitingoldest 550 ms")
	b.is(`document.querySelector(".bar i").style.width`, "30%")
	b.is(`[...document.querySelectorAll(".plots")].map((e) => e.children.length).join()`, "2,1,1,2")

	// What the configuration holds is text, whatever it looks like.
	b.is(`document.querySelector(".facts").textContent.includes(`+string(must(json.Marshal(markup)))+`)`, true)
	b.is(`document.images.length + document.title`, "0shapeproxy")

	// Decisions show up with the next samples, in numbers and in the plot.
	refused := []limiter.Decision{{Policy: "per-client", Reason: limiter.ReasonLimit}}
	for range 100 {
		a.opts.Tally.Decided("/", refused)
	}
	b.until(`document.querySelectorAll("article")[1].querySelector("svg .rejected").getAttribute("d") !== ""`)
	b.is(`document.querySelectorAll(".facts")[1].textContent.includes("limit 100")`, true)

	for _, width := range []int{320, 390, 1440} {
		b.call("Emulation.setDeviceMetricsOverride", map[string]any{
			"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": width < 500,
		})
		b.is(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, 0.0)
	}
	if len(b.said) > 0 {
		t.Errorf("the page complains: %s", b.said)
	}

	stop() // the stream ends, and there is no new one
	b.until(`document.getElementById("connection").textContent === "reconnecting"`)
	b.is(`document.getElementById("limits").hasAttribute("data-stale")`, true)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
