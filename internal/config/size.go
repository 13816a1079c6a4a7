package config

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

var sizeForm = regexp.MustCompile(`^(\d+(?:\.\d+)?) ?([A-Za-z]*)$`)

var sizeUnits = map[string]float64{
	"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}

// parseSize reads a number of bytes: "512B", "64KiB", "10MB", "1.5GiB".
func parseSize(s string) (int64, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size; write a number and a unit (B, KB, KiB, MB, MiB, GB, GiB), such as \"64KiB\"", s)
	}
	unit, ok := sizeUnits[strings.ToLower(m[2])]
	if !ok && m[2] == "" {
		return 0, fmt.Errorf("a size needs a unit; write %q for bytes, or one of KB, KiB, MB, MiB, GB, GiB", s+"B")
	}
	if !ok {
		return 0, fmt.Errorf("%q is not a unit of size; write B, KB, KiB, MB, MiB, GB or GiB", m[2])
	}
	n, err := strconv.ParseFloat(m[1], 64)
	// Up to 2^53 bytes every float is exact.
	if n *= unit; err != nil || n > 1<<53 {
		return 0, fmt.Errorf("the size %q is too large", s)
	}
	if n != math.Trunc(n) {
		return 0, fmt.Errorf("%q is not a whole number of bytes", s)
	}
	return int64(n), nil
}

// formatSize is n as parseSize reads it, in the largest unit that needs no
// fraction.
func formatSize(n int64) string {
	for _, u := range []struct {
		name string
		n    int64
	}{{"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"KB", 1e3}} {
		if n >= u.n && n%u.n == 0 {
			return strconv.FormatInt(n/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
