package admin

import (
	_ "embed"
	"net/http"
)

var (
	//go:embed page/index.html
	pageHTML []byte
	//go:embed page/page.css
	pageCSS []byte
	//go:embed page/page.js
	pageJS []byte
	//go:embed page/icon.svg
	pageIcon []byte
)

// pageFiles are the live page, by path. It needs nothing from elsewhere.
var pageFiles = map[string]pageFile{
	"/":         {"text/html; charset=utf-8", pageHTML},
	"/page.css": {"text/css; charset=utf-8", pageCSS},
	"/page.js":  {"text/javascript; charset=utf-8", pageJS},
	"/icon.svg": {"image/svg+xml", pageIcon},
}

type pageFile struct {
	contentType string
	content     []byte
}

func (f pageFile) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", f.contentType)
	_, _ = w.Write(f.content)
}
