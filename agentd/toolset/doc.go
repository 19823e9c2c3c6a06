// Package toolset is the home of the tool dialects that agents already speak, each a
// small package of its own below this one.
package toolset
