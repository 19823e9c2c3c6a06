package strictjson

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

type inner struct {
	Mode string `json:"mode"`
	Keys string `json:"keys,omitempty"`
}

type document struct {
	Sandbox inner             `json:"sandbox"`
	Plain   *inner            // without a tag
	List    []inner           `json:"list,omitempty"`
	Words   []string          `json:"words,omitempty"`
	Set     map[string]string `json:"set,omitempty"`
	Named   map[string]*inner `json:"named,omitempty"`
	Prefix  netip.Prefix      `json:"prefix,omitzero"`
	Count   int               `json:"count,omitempty"`
	Hidden  string            `json:"-"`
}

func TestDecode(t *testing.T) {
	cases := map[string]struct{ reason, text, refused string }{
		"whole":              {"all kinds of fields", `{"sandbox":{"mode":"a"},"Plain":{"keys":"b"},"list":[{"mode":"c"},null],"words":["d"],"set":{"E":"f","e":"g"},"named":{"h":{"mode":"i"}},"prefix":"10.0.0.0/8","count":3}`, ""},
		"a pair":             {"both halves are one character", `{"set":{"\ud83d\ude00":"\ud83d\ude00"}}`, ""},
		"escaped backslash":  {"no escape follows it", `{"words":["\\ud83d"]}`, ""},
		"replacement":        {"a character like any other, where it stands there", "{\"words\":[\"\ufffd\\ufffd\"]}", ""},
		"escaped name":       {"the same name", `{"s\u0061ndbox":{}}`, ""},
		"unknown":            {"a newer version's", `{"more":1}`, `"more"`},
		"unknown, deep":      {"a newer version's", `{"sandbox":{"more":1}}`, `"sandbox.more"`},
		"unknown, in a list": {"a newer version's", `{"list":[{},{"more":1}]}`, `"list[1].more"`},
		"unknown, in a map":  {"a newer version's", `{"named":{"x":{"more":1}}}`, `"named.x.more"`},
		"hidden":             {"not JSON's", `{"Hidden":"x"}`, `"Hidden"`},
		"hidden by its tag":  {"not JSON's", `{"-":"x"}`, `"-"`},
		"upper case":         {"another name", `{"sandbox":{"MODE":"x"}}`, `"sandbox.MODE"`},
		"long s":             {"folds to s", `{"` + "\u017f" + `andbox":{}}`, "andbox"},
		"escaped long s":     {"folds to s", `{"\u017fandbox":{}}`, "andbox"},
		"kelvin":             {"folds to k", `{"sandbox":{"` + "\u212a" + `eys":"x"}}`, "eys"},
		"lower case":         {"another name", `{"plain":{}}`, `"plain"`},
		"case beside":        {"one of them is unknown", `{"sandbox":{"mode":"x","Mode":"y"}}`, `"sandbox.Mode"`},
		"twice":              {"the last would win", `{"sandbox":{"mode":"x","mode":"y"}}`, `"sandbox.mode" is given twice`},
		"twice, escaped":     {"the last would win", `{"sandbox":{"mode":"x","m\u006fde":"y"}}`, `"sandbox.mode" is given twice`},
		"twice, in a map":    {"the last would win", `{"set":{"a":"x","a":"y"}}`, `"set.a" is given twice`},
		"twice, in a list":   {"the last would win", `{"list":[{"mode":"x","mode":"y"}]}`, `"list[0].mode" is given twice`},
		"something behind":   {"a second document", `{}{}`, "follows"},
		"nothing":            {"no document", ``, "EOF"},
		"half":               {"no document", `{"sandbox":`, "EOF"},
		"no JSON":            {"no document", `{sandbox}`, "invalid"},
		"wrong type":         {"a number", `{"count":"x"}`, "count"},
		"list for an object": {"another type", `{"sandbox":[{"x":1}]}`, "array"},
		"object for a list":  {"another type", `{"list":{"x":1}}`, "object"},
		"deep":               {"bounded", `{"words":` + strings.Repeat("[", 1<<20), "64"},
		"no UTF-8":           {"it would be replaced", "{\"words\":[\"\xff\"]}", "byte 11"},
		"no UTF-8, name":     {"it would be replaced", "{\"set\":{\"\xc3\":\"\"}}", "byte 9"},
		"surrogate, UTF-8":   {"no character", "{\"words\":[\"\xed\xa0\x80\"]}", "byte 11"},
		"high half":          {"it would be replaced", `{"words":["\ud800"]}`, "byte 11"},
		"low half":           {"it would be replaced", `{"words":["a\udc00"]}`, "byte 12"},
		"two high halves":    {"it would be replaced", `{"words":["\ud800\ud800"]}`, "byte 11"},
		"halves exchanged":   {"it would be replaced", `{"words":["\uDC00\uD800"]}`, "byte 11"},
		"half of a name":     {"it would be replaced", `{"set":{"\ud800":""}}`, "byte 9"},
		"half, then a word":  {"it would be replaced", `{"words":["\ud800abcdefg"]}`, "byte 11"},
		"half, newline":      {"it would be replaced", `{"words":["\ud800\ndc00"]}`, "byte 11"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var got document
			err := Decode([]byte(c.text), &got)
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got %v, want an error with %q (%s)", err, c.refused, c.reason)
			}
		})
	}
}

// FuzzDecode compares with a reading by hand: what is accepted has, in every object, the names of the fields
// and no others, each once, and the strings that stand there.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"sandbox":{"mode":"a"},"Plain":null,"list":[{"mode":"c"}],"words":["d"],"set":{"E":"f"},"named":{"h":{"keys":"i"}},"prefix":"10.0.0.0/8","count":3}`,
		"{\"\u017fandbox\":{\"mode\":\"x\"},\"sandbox\":{}}", `{"sandbox":{"MODE":"x","mode":"y"}}`, `{"sandbox":{"\u212aeys":"x"}}`,
		`{"words":["\ud800","\ud83d\ude00"]}`, "{\"words\":[\"\xff\"]}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got document
		if Decode(data, &got) != nil {
			return
		}
		var generic any
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.UseNumber()
		if err := decoder.Decode(&generic); err != nil || !utf8.Valid(data) {
			t.Fatalf("it is no JSON: %v", err)
		}
		object, _ := generic.(map[string]any)
		want := document{}
		read(t, object, map[string]any{
			"sandbox": &want.Sandbox, "Plain": &want.Plain, "list": &want.List, "words": &want.Words, "set": &want.Set,
			"named": &want.Named, "prefix": &want.Prefix, "count": &want.Count,
		})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, want %+v", data, got, want)
		}
		for _, part := range inners(object) {
			for name := range part {
				if name != "mode" && name != "keys" {
					t.Errorf("%s has %q and was accepted", data, name)
				}
			}
		}
	})
}

// read decodes each of the fields by itself, so that no name can stand for another.
func read(t *testing.T, object, fields map[string]any) {
	t.Helper()
	for name, value := range object {
		into, known := fields[name]
		if !known {
			t.Fatalf("the field %q was accepted", name)
		}
		text, err := json.Marshal(value)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatalf("field %q: %v", name, err)
		}
	}
}

// inners are the objects in it that are for an inner.
func inners(object map[string]any) []map[string]any {
	list, _ := object["list"].([]any)
	named, _ := object["named"].(map[string]any)
	values := append([]any{object["sandbox"], object["Plain"]}, list...)
	for _, value := range named {
		values = append(values, value)
	}
	var found []map[string]any
	for _, value := range values {
		if part, is := value.(map[string]any); is {
			found = append(found, part)
		}
	}
	return found
}
