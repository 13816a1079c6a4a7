package assemble

import (
	"errors"
	"strconv"

	"github.com/shapeproxy/shapeproxy/limiter"
)

// errCost is what a trusted proxy hears of a cost that it sent. It names no
// value, which is the client's.
var errCost = errors.New("the header that says what the request costs must hold one whole number, 0 or more")

// readCost puts the cost that a request's header says into its key. Without the
// header it is one.
func readCost(key *limiter.Key, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	// Of two costs none is the one that was meant. ParseUint takes no sign.
	cost, err := strconv.ParseUint(lines[0], 10, 63)
	if len(lines) > 1 || err != nil {
		return errCost
	}
	key.Cost, key.Free = int64(cost), cost == 0
	return nil
}
