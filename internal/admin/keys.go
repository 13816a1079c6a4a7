package admin

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// keyJSON is one key of a limit. What clients sent in headers, cookies and
// queries may be their secret, so of those no more is shown than tells them
// apart.
type keyJSON struct {
	ID  string `json:"id"`  // names the key in other calls
	Key any    `json:"key"` // its value, or a list of its parts

	// Of the busiest: about how many decisions were about it lately, and by how
	// much that may be too high.
	Count uint64 `json:"count,omitempty"`
	Error uint64 `json:"error,omitempty"`

	Limit      int64    `json:"limit"`
	Remaining  int64    `json:"remaining"`
	ResetAfter float64  `json:"reset_after_seconds"`
	RetryAfter *float64 `json:"retry_after_seconds"` // until one more is let through; null: never
}

// idOf is a name for a key that says nothing about it.
func idOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "id:" + hex.EncodeToString(sum[:8])
}

// keyOf describes a key of a limit that counts by these words.
func keyOf(words, key string, d limiter.Decision) keyJSON {
	k := keyJSON{ID: idOf(key), Key: shown(words, key), Limit: d.Limit, Remaining: d.Remaining, ResetAfter: d.ResetAfter.Seconds()}
	if d.RetryAfter != limiter.Never {
		s := d.RetryAfter.Seconds()
		k.RetryAfter = &s
	}
	return k
}

// shown is what may be seen of a key: a value, or the values of its parts, each
// of which stands behind its length.
func shown(words, key string) any {
	kinds := list(words)
	if words == "global" {
		return "global"
	}
	if len(kinds) == 1 {
		return masked(kinds[0], key)
	}
	var parts []string
	for _, kind := range kinds {
		length, rest, ok := strings.Cut(key, ":")
		n, err := strconv.Atoi(length)
		if !ok || err != nil || n < 0 {
			break // all such requests are one key, or it is only the beginning
		}
		n = min(n, len(rest))
		parts = append(parts, masked(kind, rest[:n]))
		key = rest[n:]
	}
	if parts == nil {
		return ""
	}
	return parts
}

// masked shows the beginning of what may be a secret, and a name for the whole.
func masked(kind, value string) string {
	kind, _, named := strings.Cut(kind, ":")
	if !named || kind == "path" || value == "" {
		return value
	}
	begin := ""
	if len(value) >= 16 {
		begin = strings.ToValidUTF8(value[:4], "")
	}
	return begin + "… " + idOf(value)
}

// mostKeys is how many of the busiest keys are known.
const mostKeys = 128

func (a *Admin) getKeys(w http.ResponseWriter, r *http.Request, l limitJSON, _ string) {
	top := 20
	if text := r.URL.Query().Get("top"); text != "" {
		var err error
		if top, err = strconv.Atoi(text); err != nil || top < 1 || top > mostKeys {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("top must be a number from 1 to %d", mostKeys))
			return
		}
	}
	busiest, err := a.opts.Busiest(l.Name, top)
	if err != nil {
		writeError(w, http.StatusConflict, err.Error())
		return
	}
	answer := struct {
		Keys []keyJSON `json:"keys"`
	}{[]keyJSON{}}
	for _, b := range busiest {
		d, err := a.opts.Key(l.Name, b.Key)
		if err != nil {
			break // the limit has just gone
		}
		k := keyOf(words(l.Key), b.Key, d)
		if k.Count, k.Error = b.Count, b.Error; b.Clipped {
			// Of a key whose whole is not known the state is not known either.
			k.ID, k.Limit, k.Remaining, k.ResetAfter, k.RetryAfter = "", 0, 0, 0, nil
		}
		answer.Keys = append(answer.Keys, k)
	}
	writeJSON(w, http.StatusOK, answer)
}

// words are those of a key as limiter.Status has them.
func words(key any) string {
	if list, ok := key.([]string); ok {
		return strings.Join(list, ", ")
	}
	return key.(string)
}

// resolve is the key that a path names: by its id, if it is one of the busiest,
// or by its value.
func (a *Admin) resolve(limit, named string) (string, bool) {
	if !strings.HasPrefix(named, "id:") {
		return named, true
	}
	busiest, err := a.opts.Busiest(limit, mostKeys)
	if err != nil {
		return "", false
	}
	for _, b := range busiest {
		if !b.Clipped && idOf(b.Key) == named {
			return b.Key, true
		}
	}
	return "", false
}

func (a *Admin) getKey(w http.ResponseWriter, _ *http.Request, l limitJSON, named string) {
	a.withKey(w, l, named, func(key string) error {
		d, err := a.opts.Key(l.Name, key)
		if err == nil {
			writeJSON(w, http.StatusOK, keyOf(words(l.Key), key, d))
		}
		return err
	})
}

func (a *Admin) deleteKey(w http.ResponseWriter, r *http.Request, l limitJSON, named string) {
	a.withKey(w, l, named, func(key string) error {
		if err := a.opts.Reset(l.Name, key); err != nil {
			return err
		}
		a.log.Info("key reset by the API", "limit", l.Name, "key", idOf(key), "client", r.RemoteAddr)
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
}

// withKey does something with a key of a limit.
func (a *Admin) withKey(w http.ResponseWriter, l limitJSON, named string, do func(key string) error) {
	key, ok := "", named == "global" || named == idOf("")
	if words(l.Key) != "global" {
		if key, ok = a.resolve(l.Name, named); !ok {
			writeError(w, http.StatusNotFound, "no key with this id is among the busiest; name it by its value")
			return
		}
	} else if !ok {
		writeError(w, http.StatusNotFound, "the limit counts all requests together, and its one key is global")
		return
	}
	if err := do(key); err != nil {
		writeError(w, http.StatusConflict, err.Error())
	}
}
