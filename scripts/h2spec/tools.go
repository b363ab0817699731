// Package tools names the program that is built here, so that its dependencies stand in go.mod and
// go.sum: h2spec 2.2.1 is older than Go's modules and has none of its own.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
