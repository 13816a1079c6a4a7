//go:build !unix

package h1

// quiet cannot be asked here: a dead connection is found when it is written to.
func quiet(uintptr) bool { return true }
