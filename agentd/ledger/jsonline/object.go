package jsonline

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Object writes one object, field by field. Begin it with Open and an empty name.
type Object struct {
	data []byte
	err  error
}

// Into returns an object that is appended to data.
func Into(data []byte) *Object { return &Object{data: data} }

// End is what was written. The error is that of a time which JSON has no text for.
func (o *Object) End() ([]byte, error) { return o.data, o.err }

// Open begins an object; every field until Close is one of it.
func (o *Object) Open(name string) {
	if name != "" {
		o.name(name)
	}
	o.data = append(o.data, '{')
}

// Close ends the object that was begun last.
func (o *Object) Close() { o.data = append(o.data, '}') }

// name begins a field. Names are plain words.
func (o *Object) name(name string) {
	if o.data[len(o.data)-1] != '{' {
		o.data = append(o.data, ',')
	}
	o.data = append(o.data, '"')
	o.data = append(o.data, name...)
	o.data = append(o.data, '"', ':')
}

// Int writes a number.
func (o *Object) Int(name string, n int64) {
	o.name(name)
	o.data = strconv.AppendInt(o.data, n, 10)
}

// SomeInt leaves 0 out.
func (o *Object) SomeInt(name string, n int64) {
	if n != 0 {
		o.Int(name, n)
	}
}

// Uint writes a number.
func (o *Object) Uint(name string, n uint64) {
	o.name(name)
	o.data = strconv.AppendUint(o.data, n, 10)
}

// SomeUint leaves 0 out.
func (o *Object) SomeUint(name string, n uint64) {
	if n != 0 {
		o.Uint(name, n)
	}
}

// SomeTrue leaves false out.
func (o *Object) SomeTrue(name string, set bool) {
	if set {
		o.name(name)
		o.data = append(o.data, "true"...)
	}
}

// Text writes a string.
func (o *Object) Text(name, text string) {
	o.name(name)
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(text) //nolint:errchkjson // a string is always encoded
			o.data = append(o.data, quoted...)
			return
		}
	}
	o.data = append(o.data, '"')
	o.data = append(o.data, text...)
	o.data = append(o.data, '"')
}

// SomeText leaves the empty string out.
func (o *Object) SomeText(name, text string) {
	if text != "" {
		o.Text(name, text)
	}
}

// Time writes a time.
func (o *Object) Time(name string, t time.Time) {
	o.name(name)
	o.data = append(o.data, '"')
	data, err := t.AppendText(o.data)
	if err != nil {
		o.err = fmt.Errorf("encoding %s: %w", name, err)
		return
	}
	o.data = data
	o.data = append(o.data, '"')
}
