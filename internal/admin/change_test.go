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
	"github.com/shapeproxy/shapeproxy/shaping"
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
		o.Busiest = busiest
		o.Key = func(limit, key string) (limiter.Decision, error) {
			d := limiter.Decision{Limit: 10, Remaining: 3, ResetAfter: time.Second, RetryAfter: 1500 * time.Millisecond}
			if key == "costly" {
				d.RetryAfter = limiter.Never
			}
			return d, nil
		}
		o.Reset = func(limit, key string) error { note("reset %s %s", limit, key); return nil }
		o.Waiting = func(limit string, n int) ([]shaping.Waiting, error) {
			if limit != "fragile" {
				return nil, errors.New("the limit has no queue")
			}
			return []shaping.Waiting{
				{Known: true, Flow: "12:198.51.100.720:a-tenant-with-a-name", Waited: 1500 * time.Millisecond},
				{Class: 2, Waited: time.Second},
			}[:min(n, 2)], nil
		}
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
		{"PATCH /api/limits/fragile", `{"rate": "5/s", "queue": 7, "rate": "500/s"}`, 400, ""},
		{"PATCH /api/limits/fragile", `{"rate": "5/s", "r\u0061te": "500/s"}`, 400, ""},
		{"PATCH /api/limits/fragile", `{"rate": "5/s",}`, 400, ""},
		{"PATCH /api/limits/fragile", `{"rate": "5/s"`, 400, ""},
		{"PATCH /api/limits/fragile", `{"rate": "5/s"]`, 400, ""},
		{"PATCH /api/limits/fragile", `{"rate"}`, 400, ""},
		{"PATCH /api/limits/fragile", `{5: "rate"}`, 400, ""},
		{"PATCH /api/limits/fragile", `null`, 400, ""},
		{"POST /api/limits/fragile/pause", `{"for": "1s", "for": "1d"}`, 400, ""},
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
		{"DELETE /api/limits/per-client/keys/198.51.100.7", ``, 204, "reset per-client 198.51.100.7"},
		{"DELETE /api/limits/per-client/keys/2001:db8::%2F64", ``, 204, "reset per-client 2001:db8::/64"},
		{"DELETE /api/limits/per-client/keys/" + idOf("198.51.100.7"), ``, 204, "reset per-client 198.51.100.7"},
		{"DELETE /api/limits/per-client/keys/id:0000000000000000", ``, 404, ""},
		{"DELETE /api/limits/fragile/keys/global", ``, 204, "reset fragile "},
		{"DELETE /api/limits/fragile/keys/" + idOf(""), ``, 204, "reset fragile "},
		{"DELETE /api/limits/fragile/keys/abc", ``, 404, ""},
		{"DELETE /api/limits/fragile/keys/" + idOf("abc"), ``, 404, ""},
		{"GET /api/limits/fragile/keys/global", ``, 200, ""},
		{"GET /api/limits/fragile/keys/abc", ``, 404, ""},
		{"DELETE /api/limits/none/keys/a", ``, 404, ""},
		{"DELETE /api/limits/per-client/keys/", ``, 404, ""},
		{"POST /api/limits/per-client/keys/a", ``, 405, ""},
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

func busiest(limit string, n int) ([]limiter.Busy, error) {
	switch limit {
	case "per-client":
		return []limiter.Busy{{Key: "198.51.100.7", Count: 90}, {Key: "2001:db8::/64", Count: 5, Error: 1}}[:min(n, 2)], nil
	case "daily.quota":
		return []limiter.Busy{{Key: "7:example16:super-secret-one", Count: 3}, {Key: "7:example3:abc", Count: 2}, {Key: "7:example300:" + strings.Repeat("s", 100), Clipped: true, Count: 1}, {Key: ""}}, nil
	}
	return nil, errors.New("the keys are elsewhere")
}

// Keys by address are shown, secrets are not, and clipped ones have no state.
func TestKeys(t *testing.T) {
	var done []string
	a := recording(&done, new(bytes.Buffer))
	type keys struct {
		Keys []struct {
			ID                      string
			Key                     any
			Count, Error, Remaining int
			Retry                   *float64 `json:"retry_after_seconds"`
		}
	}
	read := func(target string) (status int, k keys) {
		t.Helper()
		w := ask(a, target, "")
		if err := json.Unmarshal(w.Body.Bytes(), &k); err != nil {
			t.Fatal(err)
		}
		return w.Code, k
	}
	_, k := read("GET /api/limits/per-client/keys?top=1")
	if len(k.Keys) != 1 || k.Keys[0].Key != "198.51.100.7" || k.Keys[0].Count != 90 || k.Keys[0].Remaining != 3 || *k.Keys[0].Retry != 1.5 {
		t.Errorf("%+v", k)
	}
	w := ask(a, "GET /api/limits/daily.quota/keys", "")
	for _, secret := range []string{"secret-one", "abc\"", "sssss"} {
		if strings.Contains(w.Body.String(), secret) {
			t.Errorf("%q is shown: %s", secret, w.Body)
		}
	}
	_, k = read("GET /api/limits/daily.quota/keys")
	want := []any{
		[]any{"example", "supe… " + idOf("super-secret-one")}, []any{"example", "… " + idOf("abc")},
		[]any{"example", "ssss… " + idOf(strings.Repeat("s", 100))}, "",
	}
	for i, one := range k.Keys {
		if fmt.Sprint(one.Key) != fmt.Sprint(want[i]) {
			t.Errorf("key %d is shown as %v, want %v", i, one.Key, want[i])
		}
	}
	if c := k.Keys[2]; c.ID != "" || c.Retry != nil {
		t.Errorf("the clipped key has a state: %+v", c)
	}
	for target, status := range map[string]int{
		"GET /api/limits/per-client/keys?top=0": 400, "GET /api/limits/per-client/keys?top=129": 400,
		"GET /api/limits/none/keys": 404, "GET /api/limits/fragile/keys": 409,
	} {
		if w := ask(a, target, ""); w.Code != status {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	if w := ask(a, "GET /api/limits/per-client/keys/costly", ""); !strings.Contains(w.Body.String(), `"retry_after_seconds": null`) {
		t.Errorf("%s", w.Body)
	}
}
