package admin

import (
	"net/http"

	"github.com/shapeproxy/shapeproxy/shaping"
)

// waiterJSON is one request in a queue.
type waiterJSON struct {
	Key    any     `json:"key,omitempty"` // whose queue it is, masked; none if it is not one of the busiest
	Class  string  `json:"class"`
	Flow   any     `json:"flow,omitempty"` // the value of fair_by, masked
	Waited float64 `json:"waited_seconds"`
}

// mostWaiting is how many of a queue are shown.
const mostWaiting = 100

func (a *Admin) getWaiting(w http.ResponseWriter, _ *http.Request, l limitJSON, _ string) {
	waiting, err := a.opts.Waiting(l.Name, mostWaiting)
	if err != nil {
		writeError(w, http.StatusConflict, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Depth   int          `json:"depth"`
		Waiting []waiterJSON `json:"waiting"`
	}{l.Depth, waiters(l, waiting)})
}

func waiters(l limitJSON, waiting []shaping.Waiting) []waiterJSON {
	all := make([]waiterJSON, len(waiting))
	for i, one := range waiting {
		all[i] = waiterJSON{Class: one.Class.String(), Waited: one.Waited.Seconds()}
		if one.Known {
			all[i].Key = shown(words(l.Key), one.Key)
		}
		if l.FairBy != nil {
			all[i].Flow = shown(words(l.FairBy), one.Flow)
		}
	}
	return all
}
