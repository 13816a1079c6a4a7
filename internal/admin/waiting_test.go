package admin

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// Who waits is told by class and flow, and of a header no more than tells its
// values apart.
func TestWaitingIsTold(t *testing.T) {
	var done []string
	w := ask(recording(&done, new(bytes.Buffer)), "GET /api/limits/fragile/waiting", "")
	var got struct {
		Depth   int
		Waiting []map[string]any
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"key": "global", "class": "high", "waited_seconds": 1.5, "flow": []any{"198.51.100.7", "a-te… " + idOf("a-tenant-with-a-name")}},
		{"class": "low", "waited_seconds": 1.0, "flow": ""},
	}
	if got.Depth != 12 || !reflect.DeepEqual(got.Waiting, want) {
		t.Errorf("%d %v, want 12 %v", got.Depth, got.Waiting, want)
	}
	if w := ask(recording(&done, new(bytes.Buffer)), "GET /api/limits/per-client/waiting", ""); w.Code != 409 || !strings.Contains(w.Body.String(), "no queue") {
		t.Errorf("a limit without a queue: %d %s", w.Code, w.Body)
	}
}
