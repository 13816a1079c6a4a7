package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
)

// A topView is the terminal's picture of the last event. Its messages are a
// topSnapshot, topLost, topDone, and what the user does.
type topView struct {
	client *topClient
	ctx    context.Context // of calls

	snapshot      topSnapshot
	live          bool
	said          string // what went wrong, or has been done
	selected      string // the limit's name, as others may come before it
	asking        string // the limit that a question is about
	resumes       bool   // it is whether to resume
	width, height int
}

type topLost struct{ err error }

// topDone is what came of a call.
type topDone struct {
	what string
	err  error
}

var _ tea.Model = (*topView)(nil)

// Init implements tea.Model.
func (v *topView) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (v *topView) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		v.width, v.height = msg.Width, msg.Height
	case topSnapshot:
		if !v.live {
			v.said = ""
		}
		v.snapshot, v.live = msg, true
		if v.index(v.selected) < 0 && len(msg.Limits) > 0 {
			v.selected = msg.Limits[0].Name
		}
		if v.index(v.asking) < 0 {
			v.asking = "" // it was removed meanwhile
		}
	case topLost:
		v.live = false
		if msg.err != nil {
			v.said = msg.err.Error()
		}
	case topDone:
		if v.said = msg.what; msg.err != nil {
			v.said = msg.err.Error()
		}
	case tea.KeyPressMsg:
		return v, v.key(msg.String())
	}
	return v, nil
}

func (v *topView) index(limit string) int {
	for i, l := range v.snapshot.Limits {
		if l.Name == limit {
			return i
		}
	}
	return -1
}

func (v *topView) key(key string) tea.Cmd {
	if key == "ctrl+c" {
		return tea.Quit
	}
	if v.asking != "" {
		limit, resumes := v.asking, v.resumes
		switch key {
		case "y", "Y":
			v.asking, v.said = "", ""
			return func() tea.Msg { return v.steer(limit, resumes) }
		case "n", "N", "esc", "q":
			v.asking, v.said = "", ""
		}
		return nil
	}
	switch key {
	case "q":
		return tea.Quit
	case "up", "k":
		v.move(-1)
	case "down", "j":
		v.move(+1)
	case "p":
		v.ask()
	}
	return nil
}

func (v *topView) move(by int) {
	if n := len(v.snapshot.Limits); n > 0 {
		v.selected = v.snapshot.Limits[min(max(0, v.index(v.selected)+by), n-1)].Name
	}
}

// ask puts the question whether to pause the selected limit, or to let it go on.
func (v *topView) ask() {
	i := v.index(v.selected)
	switch {
	case i < 0 || !v.live:
	case v.snapshot.Limits[i].Queue == 0:
		v.said = v.selected + " has no queue that could be paused."
	default:
		v.said = ""
		v.asking, v.resumes = v.selected, v.snapshot.Limits[i].Paused == "operator"
	}
}

func (v *topView) steer(limit string, resumes bool) topDone {
	if resumes {
		return topDone{limit + " goes on.", v.client.resume(v.ctx, limit)}
	}
	return topDone{limit + " is paused, until resumed.", v.client.pause(v.ctx, limit)}
}

var (
	topBold     = lipgloss.NewStyle().Bold(true)
	topFaint    = lipgloss.NewStyle().Faint(true)
	topSelected = lipgloss.NewStyle().Reverse(true)
	topWarning  = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.Yellow)
)

// View implements tea.Model.
func (v *topView) View() tea.View {
	view := tea.NewView(strings.Join(v.lines(), "\n"))
	view.AltScreen = true
	return view
}

func (v *topView) lines() []string {
	state := "live"
	switch {
	case !v.live && v.snapshot.Limits == nil:
		state = "connecting"
	case !v.live:
		state = "reconnecting; the numbers are old"
	case !v.snapshot.Ready:
		state = "live; not ready: starting or draining"
	}
	lines := []string{topBold.Render("shapeproxy") + " " + v.cut(v.client.Admin+"  "+state, len("shapeproxy "))}

	upstreams := align(upstreamRows(v.snapshot.Upstreams))
	rows := align(limitRows(v.snapshot.Limits))
	lines = append(lines, "", topFaint.Render(v.cut("  "+rows[0], 0)))
	first, last := v.window(len(rows)-1, len(upstreams))
	for i, row := range rows[1:] {
		switch l := v.snapshot.Limits[i]; {
		case i < first || i >= last:
		case l.Name == v.selected:
			lines = append(lines, topSelected.Render(v.cut("> "+row, 0)))
		case l.Paused != "":
			lines = append(lines, topWarning.Render(v.cut("  "+row, 0)))
		default:
			lines = append(lines, v.cut("  "+row, 0))
		}
	}
	if hidden := len(rows) - 1 - (last - first); hidden > 0 {
		lines = append(lines, topFaint.Render(v.cut(fmt.Sprintf("  and %d more, by up and down", hidden), 0)))
	}
	lines = append(lines, "")
	for i, row := range upstreams {
		if row = v.cut("  "+row, 0); i == 0 {
			row = topFaint.Render(row)
		}
		lines = append(lines, row)
	}
	lines = append(lines, "")
	switch {
	case v.asking != "" && v.resumes:
		lines = append(lines, topWarning.Render(v.cut("Let "+v.asking+" go on? y/n", 0)))
	case v.asking != "":
		lines = append(lines, topWarning.Render(v.cut("Pause "+v.asking+" until resumed? Who waits stays. y/n", 0)))
	case v.said != "":
		lines = append(lines, v.cut(v.said, 0))
	default:
		lines = append(lines, topFaint.Render(v.cut("up, down: select   p: pause or resume   q: quit", 0)))
	}
	return lines
}

// window says which of n limits have room beside what else is shown.
func (v *topView) window(n, upstreams int) (first, last int) {
	room := n
	if others := 3 + 1 + 1 + upstreams + 2; v.height > 0 {
		room = max(1, min(n, v.height-others))
	}
	first = min(max(0, v.index(v.selected)-room/2), max(0, n-room))
	return first, min(n, first+room)
}

// plain is s without anything that would steer a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, s)
}

// cut is s without what does not fit into a line that has so much in it already.
func (v *topView) cut(s string, taken int) string {
	s = plain(s)
	if room := v.width - taken; v.width > 0 && utf8.RuneCountInString(s) > room {
		return string([]rune(s)[:max(0, room)])
	}
	return s
}

// limitRows is a table with its head.
func limitRows(limits []topLimit) [][]string {
	rows := [][]string{{"LIMIT", "DEPTH", "OLDEST", "IN/S", "OUT/S", "REJECTED/S", "WAIT P50", "P99", "STATE"}}
	for _, l := range limits {
		row := []string{l.Name, "-", "-", "-", "-", "-", "-", "-", l.state()}
		if l.Queue > 0 {
			row[1] = strconv.Itoa(l.Depth)
			if l.Key == "global" { // others have a queue for each key
				row[1] += "/" + strconv.Itoa(l.Queue)
			}
		}
		if l.Depth > 0 {
			row[2] = topSeconds(l.OldestWait)
		}
		if n := len(l.Samples); n > 0 {
			s := l.Samples[n-1]
			row[3], row[4], row[5] = topRate(s.In), topRate(s.Out), topRate(s.Rejected)
		}
		if l.Waits != nil {
			row[6], row[7] = topSeconds(l.Waits.P50), topSeconds(l.Waits.P99)
		}
		rows = append(rows, row)
	}
	return rows
}

func (l *topLimit) state() string {
	var all []string
	if l.Paused != "" {
		s := "paused: " + l.Paused
		if l.Resumes > 0 {
			s += ", for " + topSeconds(l.Resumes)
		}
		all = append(all, s)
	}
	if l.DryRun {
		all = append(all, "dry run")
	}
	return strings.Join(all, "; ")
}

func upstreamRows(upstreams []topUpstream) [][]string {
	rows := [][]string{{"UPSTREAM", "IN FLIGHT", "HEALTHY", "BREAKER"}}
	for _, u := range upstreams {
		healthy := 0
		for _, a := range u.Addresses {
			if a.Healthy {
				healthy++
			}
		}
		breaker := u.Breaker
		if breaker == "" {
			breaker = "-"
		}
		rows = append(rows, []string{u.Name, strconv.FormatInt(u.InFlight, 10), fmt.Sprintf("%d of %d", healthy, len(u.Addresses)), breaker})
	}
	return rows
}

// align makes lines of rows: the first and the last column to the left, the others
// to the right.
func align(rows [][]string) []string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = plain(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		var b strings.Builder
		for c, cell := range row {
			switch pad := strings.Repeat(" ", widths[c]-utf8.RuneCountInString(cell)); c {
			case 0:
				b.WriteString(cell + pad)
			case len(row) - 1:
				b.WriteString("  " + cell)
			default:
				b.WriteString("  " + pad + cell)
			}
		}
		lines[i] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// A tenth matters only where there are few.
func topRate(n float64) string {
	if n == 0 || n >= 9.95 {
		return strconv.FormatFloat(math.Round(n), 'f', -1, 64)
	}
	return strconv.FormatFloat(n, 'f', 1, 64)
}

func topSeconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
