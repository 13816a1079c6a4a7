package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

const asJSON = "Content-Type: application/json"

// What a call changes, in words: "change fragile map[…]".
func recording(done *[]string, log *bytes.Buffer) *Admin {
	note := func(format string, args ...any) { *done = append(*done, fmt.Sprintf(format, args...)) }
	return newAdmin(func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(log, nil))
		o.Change = func(limit string, fields map[string]any) []string {
			if fields["rate"] == "0" {
				return []string{"rate: must be above zero"}
			}
			note("change %s %v", limit, fields)
			return nil
		}
		o.Pause = func(limit string, d time.Duration) error {
			if limit != "fragile" {
				return errors.New("the limit has no queue")
			}
			note("pause %s %v", limit, d)
			return nil
		}
		o.Resume = func(limit string) error { note("resume %s", limit); return nil }
	})
}

func TestChanges(t *testing.T) {
	for _, test := range []struct {
		target, body string
		status       int
		done         string
	}{
		{"PATCH /api/limits/fragile", `{"rate": "5/s", "queue": 7, "dry_run": true}`, 200, "change fragile map[dry_run:true queue:7 rate:5/s]"},
		{"PATCH /api/limits/fragile", `{"queue": 7.5}`, 200, "change fragile map[queue:7.5]"}, // whoever decodes says no
		{"PATCH /api/limits/fragile", `{"rate": "0"}`, 422, ""},
		{"PATCH /api/limits/fragile", `{}`, 400, ""},
		{"PATCH /api/limits/fragile", ``, 400, ""},
		{"PATCH /api/limits/fragile", `[]`, 400, ""},
		{"PATCH /api/limits/fragile", `{"rate": "5/s"} {}`, 400, ""},
		{"PATCH /api/limits/fragile", `{"queue": 1e999}`, 400, ""},
		{"PATCH /api/limits/fragile", `{"rate": "` + strings.Repeat("9", maxBody) + `"}`, 400, ""},
		{"PATCH /api/limits/none", `{"rate": "5/s"}`, 404, ""},
		{"POST /api/limits/fragile/pause", ``, 200, "pause fragile 0s"},
		{"POST /api/limits/fragile/pause", `{"for": "1m30s"}`, 200, "pause fragile 1m30s"},
		{"POST /api/limits/fragile/pause", `{"for": 30}`, 400, ""},
		{"POST /api/limits/fragile/pause", `{"for": "-1s"}`, 400, ""},
		{"POST /api/limits/fragile/pause", `{"until": "1s"}`, 400, ""},
		{"POST /api/limits/per-client/pause", ``, 409, ""},
		{"POST /api/limits/none/pause", ``, 404, ""},
		{"POST /api/limits/fragile/resume", ``, 200, "resume fragile"},
		{"GET /api/limits/fragile/resume", ``, 405, ""},
		{"DELETE /api/limits/fragile", ``, 405, ""},
		{"POST /api/limits//pause", ``, 404, ""},
		{"POST /api/limits/fragile/pause/", ``, 404, ""},
	} {
		var done []string
		var log bytes.Buffer
		a := recording(&done, &log)
		w := ask(a, test.target, test.body, asJSON)
		if w.Code != test.status || strings.Join(done, "; ") != test.done {
			t.Errorf("%s %.40s: %d %q, want %d %q: %s", test.target, test.body, w.Code, done, test.status, test.done, w.Body)
		}
		if logged := strings.Contains(log.String(), "by the API"); logged != (test.done != "") {
			t.Errorf("%s: logged %q", test.target, log.String())
		}
	}
}

func TestPausedIsTold(t *testing.T) {
	a := newAdmin(func(o *Options) {
		o.Limits = func() []limiter.Status {
			all := limits()
			all[0].Paused, all[0].Resumes = limiter.PausedByOperator, 1500*time.Millisecond
			return all
		}
	})
	var l struct {
		Paused  string
		Resumes float64 `json:"resumes_in_seconds"`
	}
	if err := json.Unmarshal(ask(a, "GET /api/limits/fragile", "").Body.Bytes(), &l); err != nil || l.Paused != "operator" || l.Resumes != 1.5 {
		t.Errorf("%+v %v", l, err)
	}
}
