package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// maxDepth bounds what is looked at before anybody knows who wrote it.
const maxDepth = 64

// Decode decodes the one value in data.
func Decode(data []byte, into any) error {
	if err := CheckText(data); err != nil {
		return err
	}
	check := names{decoder: json.NewDecoder(bytes.NewReader(data))}
	if err := check.value("", reflect.TypeOf(into)); err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the document")
	}
	return nil
}

// names reads the names in a value.
type names struct {
	decoder *json.Decoder
	depth   int
}

// value reads the next value, which is for a type, and refuses names that are not the type's. The type is nil where
// none is known: what reads such a value by itself sees to its names.
func (n *names) value(path string, t reflect.Type) error {
	token, err := n.decoder.Token()
	if err != nil {
		return err
	}
	if _, opens := token.(json.Delim); !opens {
		return nil
	}
	if n.depth++; n.depth > maxDepth {
		return fmt.Errorf("more than %d objects and lists lie in one another", maxDepth)
	}
	defer func() { n.depth-- }()
	t = content(t)
	if token == json.Delim('{') {
		return n.object(path, t)
	}
	for i := 0; n.decoder.More(); i++ {
		if err := n.value(fmt.Sprintf("%s[%d]", path, i), element(t)); err != nil {
			return err
		}
	}
	_, err = n.decoder.Token()
	return err
}

func (n *names) object(path string, t reflect.Type) error {
	seen := map[string]bool{}
	for n.decoder.More() {
		token, err := n.decoder.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		field := strings.TrimPrefix(path+"."+name, ".")
		inner := element(t)
		if t != nil && t.Kind() == reflect.Struct {
			known := false
			if inner, known = fieldType(t, name); !known {
				return fmt.Errorf("unknown field %q; names count with their case", field)
			}
		}
		if seen[name] { // a map's names are data, and differ where their letters do
			return fmt.Errorf("field %q is given twice", field)
		}
		seen[name] = true
		if err := n.value(field, inner); err != nil {
			return err
		}
	}
	_, err := n.decoder.Token()
	return err
}

// content is the type behind pointers, or nil for one that reads its values itself.
func content(t reflect.Type) reflect.Type {
	for ; t != nil; t = t.Elem() {
		for _, reader := range []reflect.Type{reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()} {
			if t.Implements(reader) || reflect.PointerTo(t).Implements(reader) {
				return nil
			}
		}
		if t.Kind() != reflect.Pointer {
			break
		}
	}
	return t
}

// element is the type of a list's or a map's values.
func element(t reflect.Type) reflect.Type {
	if t == nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Map, reflect.Slice, reflect.Array:
		return t.Elem()
	default:
		return nil
	}
}

// fieldType is the type of the field that has exactly this name in JSON.
func fieldType(t reflect.Type, name string) (reflect.Type, bool) {
	for _, field := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case !field.IsExported() || tag == "-" || len(field.Index) > 1 || field.Anonymous:
			continue // fields of embedded types are nowhere in use, and so refused
		case tag == "":
			tag = field.Name
		}
		if tag == name {
			return field.Type, true
		}
	}
	return nil, false
}
