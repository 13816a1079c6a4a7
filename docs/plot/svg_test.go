package plot

import (
	"fmt"
	"strings"
	"time"
)

// A run is what became of a stream of requests in one queue. All instants are
// counted from its start.
type run struct {
	length   time.Duration
	arrivals []arrival
	depth    []sample // after each change, in order of time
	capacity int
}

type arrival struct {
	at       time.Duration
	refused  bool
	departed time.Duration // unless refused
}

type sample struct {
	at    time.Duration
	depth int
}

const (
	width  = 860
	left   = 128.0 // of the time axis
	right  = 836.0
	bin    = 100 * time.Millisecond
	barGap = 1.2
)

// One band a question, all over the same time axis: top is where its area
// begins, bottom its baseline.
type band struct{ top, bottom float64 }

var (
	arriving  = band{62, 132}
	waiting   = band{170, 282}
	departing = band{318, 342}
)

const (
	axisY  = 362.0
	height = 424
)

// Colours for a light and for a dark page. The card has a ground of its own, so
// that the picture is legible on any page.
const style = `<style>
  svg { --ground: #ffffff; --line: #d8dee4; --grid: #eef1f4; --text: #1f2328; --soft: #59636e;
        --in: #8250df; --no: #d1242f; --queue: #0969da; --out: #1a7f37; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #0d1117; --line: #30363d; --grid: #1b212a; --text: #e6edf3; --soft: #9198a1;
          --in: #b392f0; --no: #ff7b72; --queue: #58a6ff; --out: #3fb950; } }
  text { font: 13px system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; fill: var(--soft); }
  .name { font-weight: 600; fill: var(--text); }
  .note { font-size: 12px; }
  .end { text-anchor: end; } .mid { text-anchor: middle; }
  .ground { fill: var(--ground); stroke: var(--line); }
  .grid { stroke: var(--grid); } .axis { stroke: var(--line); } .full { stroke: var(--soft); stroke-dasharray: 4 4; }
  text.no { fill: var(--no); }
  .in { fill: var(--in); } .no { fill: var(--no); } .out { fill: var(--out); }
  .queue { fill: var(--queue); fill-opacity: .18; stroke: var(--queue); stroke-width: 1.6; }
</style>
`

// drawing collects the elements of an SVG.
type drawing struct {
	strings.Builder
	length time.Duration
}

func (d *drawing) x(at time.Duration) float64 {
	return left + (right-left)*float64(at)/float64(d.length)
}

func (d *drawing) add(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func (d *drawing) text(x, y float64, class, format string, args ...any) {
	d.add(`<text x="%.1f" y="%.1f" class="%s">%s</text>`, x, y, class, fmt.Sprintf(format, args...))
}

func (d *drawing) line(x1, y1, x2, y2 float64, class string) {
	d.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

func (d *drawing) rect(x, y, w, h float64, class string) {
	d.add(`<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f" class="%s"/>`, x, y, w, h, class)
}

// svg draws the run: how many came in each tenth of a second, how many waited,
// and when each one left.
func (r run) svg(title string) string {
	d := &drawing{length: r.length}
	d.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`,
		width, height, width, height, title)
	d.WriteString(style)
	d.add(`<rect x="0.5" y="0.5" width="%d" height="%d" rx="8" class="ground"/>`, width-1, height-1)
	d.text(24, 32, "name", "%s", title)

	for at := time.Duration(0); at <= r.length; at += time.Second {
		d.line(d.x(at), arriving.top-8, d.x(at), axisY, "grid")
		d.text(d.x(at), axisY+18, "mid note", "%d s", at/time.Second)
	}
	for _, b := range []band{arriving, waiting} {
		d.line(left, b.bottom, right, b.bottom, "axis")
	}
	d.line(left, axisY, right, axisY, "axis")

	r.drawArrivals(d)
	r.drawDepth(d)
	r.drawDepartures(d)
	r.drawLegend(d)
	d.WriteString("</svg>\n")
	return d.String()
}

func (r run) drawArrivals(d *drawing) {
	let, refused := make([]int, r.length/bin), make([]int, r.length/bin)
	most := 1 // in one bin
	for _, a := range r.arrivals {
		i := a.at / bin
		if a.refused {
			refused[i]++
		} else {
			let[i]++
		}
		most = max(most, let[i]+refused[i])
	}
	d.text(24, arriving.bottom-38, "name", "arrive")
	d.text(24, arriving.bottom-21, "note", "in each")
	d.text(24, arriving.bottom-5, "note", "100 ms")
	unit := (arriving.bottom - arriving.top) / float64(most)
	for i := range let {
		x, w := d.x(time.Duration(i)*bin)+barGap/2, d.x(bin)-d.x(0)-barGap
		y := arriving.bottom - float64(let[i])*unit
		if let[i] > 0 {
			d.rect(x, y, w, float64(let[i])*unit, "in")
		}
		if refused[i] > 0 {
			h := float64(refused[i]) * unit
			d.rect(x, y-h, w, h, "no")
			d.text(x+w+5, y-h+10, "note no", "%d refused", refused[i])
		}
		if refused[i] == 0 && let[i] > 1 && i+1 < len(let) && let[i+1] == 0 {
			d.text(x+w+5, y+10, "note", "%d", let[i])
		}
	}
}

func (r run) drawDepth(d *drawing) {
	y := func(depth int) float64 {
		return waiting.bottom - (waiting.bottom-waiting.top)*float64(depth)/float64(r.capacity)
	}
	d.text(24, waiting.bottom-38, "name", "wait")
	d.text(24, waiting.bottom-21, "note", "in the queue")
	for _, n := range []int{0, r.capacity / 2, r.capacity} {
		d.text(left-8, y(n)+4, "end note", "%d", n)
	}
	d.line(left, y(r.capacity), right, y(r.capacity), "full")
	d.text(right, y(r.capacity)-6, "end note", "full: whoever comes now is refused at once")

	var path strings.Builder
	fmt.Fprintf(&path, "M%.2f %.2f", d.x(0), y(0))
	for _, s := range r.depth {
		fmt.Fprintf(&path, "H%.2fV%.2f", d.x(s.at), y(s.depth))
	}
	fmt.Fprintf(&path, "H%.2f", d.x(r.length))
	d.add(`<path d="%s" class="queue"/>`, path.String())
}

func (r run) drawDepartures(d *drawing) {
	d.text(24, departing.top+10, "name", "leave")
	d.text(24, departing.top+27, "note", "to the upstream")
	for _, a := range r.arrivals {
		if !a.refused && a.departed < r.length {
			d.rect(d.x(a.departed)-1.6, departing.top, 3.2, departing.bottom-departing.top, "out")
		}
	}
}

func (r run) drawLegend(d *drawing) {
	var refused int
	var longest time.Duration
	for _, a := range r.arrivals {
		if a.refused {
			refused++
		} else {
			longest = max(longest, a.departed-a.at)
		}
	}
	d.text(left, height-18, "note", "%d came, %d left, one each 100 ms and never two at once; %d refused; the longest wait was %.1f s",
		len(r.arrivals), len(r.arrivals)-refused, refused, longest.Seconds())
}
