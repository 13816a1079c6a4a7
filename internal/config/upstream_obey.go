package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/identity"
	"github.com/shapeproxy/shapeproxy/limiter"
)

// Obey says how far an upstream's own word on its limits counts.
type Obey struct {
	On       bool          // that it throttles pauses what drains to it
	Trust    bool          // its RateLimit fields set the pace
	MaxPause time.Duration // no pause is longer
	By       identity.Key  // whose requests it throttles; global: everybody's
}

func defaultObey() Obey { return Obey{On: true, Trust: true, MaxPause: 5 * time.Minute} }

func (d *decoder) obey(t *table, o *Obey, b *Breaker) {
	t.flag("obey", &o.On)
	t.flag("trust", &o.Trust)
	t.duration("max_pause", &o.MaxPause)
	t.key("obey_by", `one of "global", `+keyWords, &o.By, identity.ParseKey)
	if o.On {
		if b != nil && b.WhenOpen == "wait" && len(o.By.Parts()) > 0 {
			t.bad("obey_by", "holds some requests back and when_open = \"wait\" of the breaker all of them, which is not possible together; write when_open = \"refuse\", or remove it")
		}
		return
	}
	for _, f := range []string{"trust", "max_pause", "obey_by"} {
		if t.has(f) {
			t.bad(f, "has no effect with obey = false; remove one of them")
		}
	}
}

// explain says it in words.
func (o *Obey) explain() string {
	whose := "everything"
	if len(o.By.Parts()) > 0 {
		whose = "what has the same " + strings.ReplaceAll(o.By.String(), ", ", " and ")
	}
	text := fmt.Sprintf("when the upstream throttles, %s is held back for as long as it asks, at most %s", whose, limiter.FormatDuration(o.MaxPause))
	if o.Trust {
		text += "; the pace is such that what it says is left lasts until the reset"
	}
	return text
}
