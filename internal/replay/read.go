package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// A Source is one log.
type Source struct {
	Name string
	io.Reader
}

// Open opens the named files; "-" is standard input.
func Open(names []string, stdin io.Reader) (sources []Source, size int64, err error) {
	var files []*os.File
	for _, name := range names {
		if name == "-" {
			sources = append(sources, Source{"standard input", stdin})
			size = -1
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, 0, err
		}
		files = append(files, f)
		if info, err := f.Stat(); err == nil && size >= 0 {
			size += info.Size()
		}
		sources = append(sources, Source{name, f})
	}
	return sources, size, nil
}

// Close closes the files of Open.
func Close(sources []Source) {
	for _, s := range sources {
		if f, ok := s.Reader.(*os.File); ok && f != os.Stdin {
			_ = f.Close() // only read
		}
	}
}

// longestLine bounds a line of a log: NGINX takes request heads of 32 KiB.
const longestLine = 1 << 20

// A Tally says what became of the lines of the logs.
type Tally struct {
	Lines     int `json:"lines"`
	Requests  int `json:"requests"`
	NoRequest int `json:"no_request"` // lines about something that was no HTTP request
	Unread    int `json:"unread"`     // lines that are not in the log's format
	// FirstUnread names the first of those.
	FirstUnread string `json:"first_unread,omitempty"`
}

// each calls do for every request of the sources. The record is reused.
func each(sources []Source, format *format, tally *Tally, do func(*record)) error {
	for _, s := range sources {
		if err := eachOf(s, format, tally, do); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	if tally.Requests == 0 {
		err := errors.New("there is no request in the log")
		if tally.FirstUnread != "" {
			err = fmt.Errorf("%w; %s is not in its format", err, tally.FirstUnread)
		}
		return err
	}
	return nil
}

func eachOf(s Source, format *format, tally *Tally, do func(*record)) error {
	text := bufio.NewReaderSize(s.Reader, 64<<10)
	if magic, _ := text.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(text)
		if err != nil {
			return err
		}
		text = bufio.NewReaderSize(unzipped, 64<<10)
	}
	var parse parser
	if format != nil {
		parse = format.parse
	}
	var r record
	clock := new(clockText)
	lines := bufio.NewScanner(text)
	lines.Buffer(make([]byte, 64<<10), longestLine)
	number := 0
	for lines.Scan() {
		number++
		line := lines.Text()
		if line == "" {
			continue
		}
		if parse == nil {
			var err error
			if parse, err = detect(line); err != nil {
				return err
			}
		}
		tally.Lines++
		r.clear()
		err := parse(line, &r, clock)
		if err == nil && (r.at.Unix() < 0 || r.at.Unix() > latest) {
			err = errLine
		}
		switch {
		case errors.Is(err, errLine):
			if tally.Unread++; tally.FirstUnread == "" {
				tally.FirstUnread = fmt.Sprintf("line %d of %s", number, s.Name)
			}
		case errors.Is(err, errRequest):
			tally.NoRequest++
		case errors.Is(err, errOther):
			tally.Lines--
		default:
			tally.Requests++
			do(&r)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", number+1, err)
	}
	return nil
}
