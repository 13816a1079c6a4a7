package e2e

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// A request is one line of the access log, at its compressed time.
type request struct {
	id     int           // its place in the order of time
	at     time.Duration // when to send it, from the start of the run
	client string        // address
	method string
	target string // byte for byte
	proto  string // HTTP/1.0 or HTTP/1.1
	status int    // what the logged server answered
	size   int64  // bytes of that answer's body

	logged   time.Time
	patience time.Duration // the client leaves after this long; 0: it stays
}

// impatient is how long the clients that leave wait for their answer; every
// fortieth is one, so that places in the middle of the queue come free.
const (
	impatientEvery = 40
	impatient      = 150 * time.Millisecond
)

// combined stops behind the size: a line may be cut in the fields after it.
var combined = regexp.MustCompile(`^(\S+) \S+ \S+ \[([^]]+)\] "(\S+) (\S+) (HTTP/1\.[01])" (\d{3}) (\d+|-)`)

// readLog reads a gzipped access log in the combined format and sorts it by
// time, stably, as its lines are not in order and its stamps are whole seconds.
func readLog(file string) ([]request, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return parseLog(text)
}

func parseLog(text io.Reader) ([]request, error) {
	var all []request
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		m := combined.FindStringSubmatch(lines.Text())
		if m == nil {
			return nil, fmt.Errorf("not a line in the combined format: %q", lines.Text())
		}
		logged, err := time.Parse("02/Jan/2006:15:04:05 -0700", m[2])
		if err != nil {
			return nil, err
		}
		status, _ := strconv.Atoi(m[6])
		size, _ := strconv.ParseInt(m[7], 10, 64) // "-" is an empty body
		all = append(all, request{
			logged: logged, client: m[1], method: m[3], target: m[4], proto: m[5], status: status, size: size,
		})
	}
	slices.SortStableFunc(all, func(a, b request) int { return cmp.Compare(a.logged.Unix(), b.logged.Unix()) })
	return all, lines.Err()
}

// compress gives the requests their times: the minutes without any request are
// left out, and those that remain follow each other speed times as fast.
func compress(sorted []request, speed time.Duration) {
	var minute time.Time
	active := -1
	for i := range sorted {
		r := &sorted[i]
		if m := r.logged.Truncate(time.Minute); active < 0 || !m.Equal(minute) {
			minute = m
			active++
		}
		r.id = i
		r.at = (time.Duration(active)*time.Minute + r.logged.Sub(minute)) / speed
		if i%impatientEvery == impatientEvery-1 {
			r.patience = impatient
		}
	}
}
