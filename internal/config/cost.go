package config

import (
	"fmt"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// costForm is what cost may be.
const costForm = `a whole number, or the header that says it, such as "header:X-Cost"`

// cost reads what a request takes of the budget.
func (t *table) cost(l *Limit) {
	t.describe("cost", &node{AnyOf: []*node{wholeNumber(1, 1<<53), {Type: "string", Description: costForm}}})
	if _, isString := t.values["cost"].(string); !isString {
		t.count("cost", &l.Cost, 1, 1<<53)
		return
	}
	t.text("cost", costForm, func(s string) error {
		name, ok := strings.CutPrefix(s, "header:")
		switch {
		case !ok || !fieldName(name):
			return fmt.Errorf("%q is no cost; write %s", s, costForm)
		case strings.Contains(name, "_"):
			return fmt.Errorf("headers with _ in their names are dropped, so %q is never seen; use a name with -", name)
		}
		l.CostHeader = textproto.CanonicalMIMEHeaderKey(name)
		return nil
	})
}

// affordable checks that a request can pay the cost, in a limit that is in order
// otherwise.
func (t *table) affordable(l *Limit) {
	most, field := l.Burst, "burst"
	if l.Algorithm.Windowed() {
		most, field = l.Limit, "limit"
	}
	switch {
	case !t.has("cost"):
	case l.Queue > 0:
		if float64(l.Cost)*float64(l.Rate.Per) > float64(limiter.MaxPeriod)*float64(l.Rate.Count) {
			t.bad("cost", "takes longer than 36500d at rate = %q, so no request would ever be let through; raise rate, or write less", l.Rate)
		}
	case l.Cost > most:
		t.bad("cost", "is more than %s = %d, so no request would ever be let through; raise %s, or write less", field, most, field)
	}
}

// pays says what a request takes; "" if that is one.
func (l *Limit) pays() (text string) {
	many := "as many"
	switch {
	case l.CostHeader != "":
		text = fmt.Sprintf("a request counts as many as its header %s says, if a trusted proxy sends it, and else as one", l.CostHeader)
	case l.Cost > 1:
		many = strconv.FormatInt(l.Cost, 10)
		text = "each request counts as " + many
	default:
		return ""
	}
	if l.Queue > 0 {
		text += fmt.Sprintf(": it takes the time of %s, and one place in the queue", many)
	}
	return text
}
