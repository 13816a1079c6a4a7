package replay

import (
	_ "embed"
	"html/template"
	"io"
	"time"

	"github.com/shapeproxy/shapeproxy/internal/uplot"
)

var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageJS string

	page = template.Must(template.New("page").Funcs(template.FuncMap{
		"wait": wait, "reasons": reasons, "clip": clip,
		"time": func(t time.Time) string { return t.Format("2006-01-02 15:04:05 MST") },
	}).Parse(pageHTML))
)

// A Timeline is what is plotted of one limit: for each stretch of time what was
// offered, released and rejected a second, the greatest depth, and the longest
// wait of those who were released.
type Timeline struct {
	Name     string    `json:"name"`
	Side     string    `json:"side"` // A or B where two are compared
	Queue    bool      `json:"queue"`
	Time     []int64   `json:"time"` // seconds since 1970
	Offered  []float64 `json:"offered"`
	Released []float64 `json:"released"`
	Rejected []float64 `json:"rejected"`
	Depth    []int     `json:"depth"`
	Wait     []float64 `json:"wait"` // seconds
}

func (l *limitStats) timeline(side string) Timeline {
	t := Timeline{Name: l.conf.Name, Side: side, Queue: l.conf.Queue > 0}
	each := time.Duration(l.of.bin).Seconds()
	for i, b := range l.line {
		t.Time = append(t.Time, (l.of.began+int64(i)*l.of.bin)/int64(time.Second))
		t.Offered = append(t.Offered, float64(b.offered)/each)
		t.Released = append(t.Released, float64(b.released)/each)
		t.Rejected = append(t.Rejected, float64(b.rejected)/each)
		t.Depth = append(t.Depth, b.depth)
		t.Wait = append(t.Wait, time.Duration(b.wait).Seconds())
	}
	return t
}

// Timeline is that of a limit; empty if the configuration has none of that name.
func (r *Result) Timeline(limit string) Timeline {
	for _, l := range r.stats.limits {
		if l.conf.Name == limit {
			return l.timeline("")
		}
	}
	return Timeline{}
}

// HTML writes the report as one page that needs nothing from elsewhere.
func (r *Report) HTML(w io.Writer) error {
	all := []*Report{r}
	if r.Compare != nil {
		all = append(all, r.Compare)
	}
	type limitRow struct {
		Name string
		LimitReport
	}
	type routeRow struct {
		Name string
		RouteReport
	}
	type upstreamRow struct {
		Name string
		UpstreamReport
	}
	var data struct {
		*Report
		CSS, UPlotCSS template.CSS
		JS, UPlotJS   template.JS
		License       template.HTML
		Bin           time.Duration
		Limits        []limitRow
		Routes        []routeRow
		Upstreams     []upstreamRow
		Keys          []limitRow
		Timelines     []Timeline
		Notes         []string
	}
	data.Report = r
	data.CSS, data.JS = template.CSS(pageCSS), template.JS(pageJS)
	data.UPlotCSS, data.UPlotJS = template.CSS(uplot.CSS), template.JS(uplot.JS)
	data.License = template.HTML("<!-- uPlot:\n" + uplot.License + "-->")
	data.Bin = time.Duration(r.result.stats.bin)
	for i, one := range all {
		letter := ""
		if len(all) > 1 {
			letter = string(rune('A' + i))
		}
		for _, l := range one.result.stats.limits {
			name := side(all, i) + l.conf.Name
			data.Limits = append(data.Limits, limitRow{name, one.Limits[l.conf.Name]})
			if i == 0 && len(one.Limits[l.conf.Name].Busiest) > 0 {
				data.Keys = append(data.Keys, limitRow{l.conf.Name, one.Limits[l.conf.Name]})
			}
			data.Timelines = append(data.Timelines, l.timeline(letter))
		}
		for _, x := range one.result.stats.routes {
			data.Routes = append(data.Routes, routeRow{side(all, i) + x.Match, one.Routes[x.Match]})
		}
		for _, u := range one.result.stats.upstreams {
			data.Upstreams = append(data.Upstreams, upstreamRow{side(all, i) + u.name, one.Upstreams[u.name]})
		}
		for _, note := range one.Notes {
			data.Notes = append(data.Notes, side(all, i)+note)
		}
	}
	return page.Execute(w, data)
}
