// Package jsonline writes the JSON of records that are written for every command, without looking at types while it
// does. What it writes is byte for byte what encoding/json would.
package jsonline
