package jsonline

import (
	"encoding/json"
	"testing"
	"time"
)

// everything has a field of each kind.
type everything struct {
	Int      int64     `json:"int"`
	SomeInt  int64     `json:"someInt,omitempty"`
	Uint     uint64    `json:"uint"`
	SomeUint uint64    `json:"someUint,omitempty"`
	Text     string    `json:"text"`
	SomeText string    `json:"someText,omitempty"`
	SomeTrue bool      `json:"someTrue,omitempty"`
	Time     time.Time `json:"time"`
	Inner    struct {
		Only string `json:"only,omitempty"`
	} `json:"inner"`
}

func (e everything) line() ([]byte, error) {
	o := Into([]byte("before "))
	o.Open("")
	o.Int("int", e.Int)
	o.SomeInt("someInt", e.SomeInt)
	o.Uint("uint", e.Uint)
	o.SomeUint("someUint", e.SomeUint)
	o.Text("text", e.Text)
	o.SomeText("someText", e.SomeText)
	o.SomeTrue("someTrue", e.SomeTrue)
	o.Time("time", e.Time)
	o.Open("inner")
	o.SomeText("only", e.Inner.Only)
	o.Close()
	o.Close()
	return o.End()
}

// FuzzObject holds every kind of field to what encoding/json makes of it.
func FuzzObject(f *testing.F) {
	f.Add(int64(0), uint64(0), "", int64(0), int64(0), 0, false)
	f.Add(int64(-1), uint64(1)<<63, "plain text, and then ~", int64(1_700_000_000), int64(123456789), 0, true)
	f.Add(int64(1), uint64(1), "<a href=\"x\">&amp;</a>\\ \b\f\n\r\t\x00\x1f\x7f", int64(-62_135_596_800), int64(0), 3600, true)
	f.Add(int64(7), uint64(7), "\xff\xfe€\u2028\u2029\U0001F600\xed\xa0\x80", int64(1), int64(100), -5*3600-30*60, false)
	f.Add(int64(7), uint64(7), "a year of five digits", int64(300_000_000_000), int64(0), 0, false)
	f.Add(int64(7), uint64(7), "a zone with seconds", int64(0), int64(0), 17, false)
	f.Add(int64(7), uint64(7), "a zone beyond a day", int64(0), int64(0), 25*3600, false)
	f.Fuzz(func(t *testing.T, n int64, u uint64, text string, seconds, nanos int64, zone int, set bool) {
		e := everything{Int: n, SomeInt: n, Uint: u, SomeUint: u, Text: text, SomeText: text, SomeTrue: set}
		e.Time = time.Unix(seconds, nanos).In(time.FixedZone("", zone))
		if zone == 0 {
			e.Time = e.Time.UTC()
		}
		e.Inner.Only = text
		want, wantErr := json.Marshal(e)
		got, err := e.line()
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if err == nil && string(got) != "before "+string(want) {
			t.Errorf("wrote %s\nwant  %s", got, want)
		}
	})
}
