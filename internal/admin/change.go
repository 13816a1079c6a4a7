package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// maxBody bounds what a call may send.
const maxBody = 64 << 10

// readObject reads a body that is one JSON object, with numbers as TOML would
// have them; empty if there is no body.
func readObject(w http.ResponseWriter, r *http.Request) (map[string]any, error) {
	malformed := errors.New("the body is not one JSON object of at most 64 KiB")
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.UseNumber()
	begin, err := d.Token()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if begin != json.Delim('{') {
		return nil, malformed
	}
	// Name by name, as the last of two with the same name would count unseen.
	fields := make(map[string]any)
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, malformed
		}
		if _, twice := fields[name]; twice {
			return nil, fmt.Errorf("%.60q is there twice; send each field once", name)
		}
		var v any
		if d.Decode(&v) != nil {
			return nil, malformed
		}
		fields[name] = v
	}
	if _, err := d.Token(); err != nil {
		return nil, malformed
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object in the body")
	}
	for name, v := range fields {
		number, ok := v.(json.Number)
		if !ok {
			continue
		}
		if n, err := number.Int64(); err == nil {
			fields[name] = n
		} else if f, err := number.Float64(); err == nil && !math.IsInf(f, 0) {
			fields[name] = f
		} else {
			return nil, errors.New(name + " is no number that can be used")
		}
	}
	return fields, nil
}

// patchLimit changes a limit that runs.
func (a *Admin) patchLimit(w http.ResponseWriter, r *http.Request, l limitJSON, _ string) {
	fields, err := readObject(w, r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	if len(fields) == 0 {
		writeError(w, http.StatusBadRequest, `there is nothing to change; send an object such as {"rate": "20/s"}`)
		return
	}
	changed := slices.Sorted(maps.Keys(fields))
	if problems := a.opts.Change(l.Name, fields); len(problems) > 0 {
		writeJSON(w, http.StatusUnprocessableEntity, struct {
			Error    string   `json:"error"`
			Problems []string `json:"problems"`
		}{strings.Join(problems, "; "), problems})
		return
	}
	a.log.Info("limit changed by the API, until the next reload", "limit", l.Name, "fields", strings.Join(changed, ","), "client", r.RemoteAddr)
	a.answerChanged(w, l.Name)
}

// postPause stops a queue.
func (a *Admin) postPause(w http.ResponseWriter, r *http.Request, l limitJSON, _ string) {
	fields, err := readObject(w, r)
	var d time.Duration
	if err == nil {
		d, err = pauseFor(fields)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	a.steer(w, r, l, "paused", func() error { return a.opts.Pause(l.Name, d) })
}

// pauseFor is how long a pause is to last; 0 if nothing is said.
func pauseFor(fields map[string]any) (time.Duration, error) {
	for name := range fields {
		if name != "for" {
			return 0, errors.New(`the body may say for how long and nothing else, such as {"for": "30s"}`)
		}
	}
	v, ok := fields["for"]
	if !ok {
		return 0, nil
	}
	text, _ := v.(string)
	d, err := limiter.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, errors.New(`for must be a duration such as "30s"; without it the pause lasts until resume`)
	}
	return d, nil
}

// postResume lets a queue go on.
func (a *Admin) postResume(w http.ResponseWriter, r *http.Request, l limitJSON, _ string) {
	a.steer(w, r, l, "resumed", func() error { return a.opts.Resume(l.Name) })
}

// steer does something to the queue of a limit.
func (a *Admin) steer(w http.ResponseWriter, r *http.Request, l limitJSON, done string, do func() error) {
	if err := do(); err != nil {
		writeError(w, http.StatusConflict, err.Error())
		return
	}
	a.log.Info("queue "+done+" by the API", "limit", l.Name, "client", r.RemoteAddr)
	a.answerChanged(w, l.Name)
}
