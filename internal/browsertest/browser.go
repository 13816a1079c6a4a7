// Package browsertest drives a real browser for the tests of our pages.
package browsertest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

// A Page is a Chromium with one page, driven by the DevTools protocol over
// a pair of pipes.
type Page struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	id      int
	session string
	said    []string
}

// Open starts a browser on url; it ends with the test. What goes wrong with it
// fails the test.
func Open(t *testing.T, url string) *Page {
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
	b := &Page{t: t, to: to, from: bufio.NewReader(from)}
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
	b.result(b.Call("Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var attached struct{ SessionID string }
	b.result(b.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &attached)
	b.session = attached.SessionID
	b.Call("Runtime.enable", nil)
	b.Call("Log.enable", nil)
	b.Call("Page.enable", nil)
	b.Call("Page.navigate", map[string]any{"url": url})
	return b
}

// Call sends a command and returns its result.
func (b *Page) Call(method string, params map[string]any) json.RawMessage {
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

func (b *Page) result(data json.RawMessage, v any) {
	b.t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		b.t.Fatal(err)
	}
}

// Eval is the value of a JavaScript expression in the page.
func (b *Page) Eval(expression string) any {
	b.t.Helper()
	var got struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.result(b.Call("Runtime.evaluate", map[string]any{
		"expression": expression, "awaitPromise": true, "returnByValue": true,
	}), &got)
	if got.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	return got.Result.Value
}

// Until waits for the condition to hold in the page.
func (b *Page) Until(condition string) {
	b.t.Helper()
	b.Eval(fmt.Sprintf(`new Promise((done) => {
		const look = () => (%s) ? done(true) : setTimeout(look, 20);
		look();
	})`, condition))
}

// Is checks the value of an expression.
func (b *Page) Is(expression string, want any) {
	b.t.Helper()
	if got := b.Eval(expression); got != want {
		b.t.Errorf("%s is %v, want %v", expression, got, want)
	}
}

// Resize makes the window as wide and as high as that, in CSS pixels; one below
// 500 is a phone's.
func (b *Page) Resize(width, height int) {
	b.t.Helper()
	b.Call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 2, "mobile": width < 500,
	})
}

// Prefer chooses the colour scheme, light or dark.
func (b *Page) Prefer(scheme string) {
	b.t.Helper()
	b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// Press presses a key and lets it go, as KeyboardEvent.key names it.
func (b *Page) Press(key string) {
	b.t.Helper()
	text := ""
	code := map[string]int{"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}[key]
	switch key {
	case "Enter":
		text = "\r"
	case " ":
		text = " "
	}
	b.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "text": text, "windowsVirtualKeyCode": code})
	b.Call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": code})
}

// Screenshot writes the whole page to a PNG file, for people to look at, if
// SHAPEPROXY_SCREENSHOTS names a folder.
func (b *Page) Screenshot(name string) {
	b.t.Helper()
	folder := os.Getenv("SHAPEPROXY_SCREENSHOTS")
	if folder == "" {
		return
	}
	b.Eval(`new Promise((done) => setTimeout(done, 1500))`) // pages draw by the second
	var got struct{ Data []byte }
	b.result(b.Call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}), &got)
	if err := os.WriteFile(filepath.Join(folder, name+".png"), got.Data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Complaints are the page's errors and exceptions until now, and what its policy
// kept it from.
func (b *Page) Complaints() []string { return b.said }
