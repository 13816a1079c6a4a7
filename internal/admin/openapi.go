package admin

import (
	_ "embed"
	"net/http"
)

// openAPI describes the API for programs. A test holds the handlers to it.
//
//go:embed openapi.json
var openAPI []byte

func (a *Admin) getOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI)
}
