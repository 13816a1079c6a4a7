// Package uplot carries uPlot 1.6.32 (MIT licence, see LICENSE), which draws the
// plots of our pages: it is embedded so that no page asks another host.
package uplot

import _ "embed"

var (
	// JS defines the global uPlot.
	//go:embed uPlot.iife.min.js
	JS string
	// CSS lays its plots out.
	//go:embed uPlot.min.css
	CSS string
	// License must go wherever they go.
	//go:embed LICENSE
	License string
)
