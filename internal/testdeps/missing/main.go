// Command missing names, in one line, the tests that will be skipped on this
// machine; it is silent where none will.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/shapeproxy/shapeproxy/internal/testdeps"
)

func main() {
	var skipped []string
	for _, p := range testdeps.Programs {
		if _, err := testdeps.Look(p.Name); err != nil {
			skipped = append(skipped, fmt.Sprintf("%s (no %s)", p.Purpose, p.Name))
		}
	}
	if len(skipped) > 0 {
		fmt.Fprintf(os.Stderr, "skipped here: %s; make test-deps installs what is missing\n", strings.Join(skipped, ", "))
	}
}
