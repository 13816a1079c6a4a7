package admin

import (
	"embed"
	"io"
	"net/http"

	"github.com/shapeproxy/shapeproxy/internal/uplot"
)

//go:embed page
var page embed.FS

// pageFiles are the live page, by path. It needs nothing from elsewhere.
var pageFiles = map[string]pageFile{
	"/":              {"text/html; charset=utf-8", ours("index.html")},
	"/page.css":      {"text/css; charset=utf-8", ours("page.css")},
	"/icon.svg":      {"image/svg+xml", ours("icon.svg")},
	"/page.js":       {javascript, ours("page.js")},
	"/card.js":       {javascript, ours("card.js")},
	"/panels.js":     {javascript, ours("panels.js")},
	"/plots.js":      {javascript, ours("plots.js")},
	"/ask.js":        {javascript, ours("ask.js")},
	"/words.js":      {javascript, ours("words.js")},
	"/uplot.js":      {javascript, uplot.JS},
	"/uplot.css":     {"text/css; charset=utf-8", uplot.CSS},
	"/uplot.license": {"text/plain; charset=utf-8", uplot.License},
}

const javascript = "text/javascript; charset=utf-8"

func ours(name string) string {
	content, err := page.ReadFile("page/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(content)
}

type pageFile struct {
	contentType string
	content     string
}

func (f pageFile) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", f.contentType)
	_, _ = io.WriteString(w, f.content)
}
