package codex

import (
	"encoding/json"
	"strconv"
	"strings"
)

func asString(into *string) setter {
	return func(field string, value json.RawMessage) error {
		if value[0] != '"' {
			return wrong(field, value, "must be a string")
		}
		if err := json.Unmarshal(value, into); err != nil {
			return wrong(field, value, "must be a string: %v", err)
		}
		return nil
	}
}

func asBool(take func(bool)) setter {
	return func(field string, value json.RawMessage) error {
		if s := string(value); s != "true" && s != "false" {
			return wrong(field, value, "must be true or false")
		}
		take(string(value) == "true")
		return nil
	}
}

// asWhole takes a whole number from lowest to highest.
func asWhole(lowest, highest int64, take func(int64)) setter {
	return func(field string, value json.RawMessage) error {
		if value[0] != '-' && (value[0] < '0' || value[0] > '9') {
			return wrong(field, value, "must be a number")
		}
		n, problem := wholeNumber(string(value))
		if problem == "" && n < lowest {
			problem = "must be at least " + strconv.FormatInt(lowest, 10)
		}
		if problem == "" && n > highest {
			problem = "must be at most " + strconv.FormatInt(highest, 10)
		}
		if problem != "" {
			return wrong(field, value, "%s", problem)
		}
		take(n)
		return nil
	}
}

// wholeNumber reads a JSON number exactly: by way of a float, 2^53+1 would become another
// number and 1e-400 would become 0.
func wholeNumber(text string) (n int64, problem string) {
	const fraction, tooLarge = "must be a whole number", "is too large"
	digits, negative := strings.CutPrefix(text, "-")
	exponent := int64(0)
	if at := strings.IndexAny(digits, "eE"); at >= 0 {
		var err error
		exponent, err = strconv.ParseInt(digits[at+1:], 10, 32)
		digits = digits[:at]
		if err != nil && strings.Trim(digits, "0.") == "" {
			return 0, ""
		}
		if err != nil && text[strings.IndexAny(text, "eE")+1] == '-' {
			return 0, fraction
		}
		if err != nil {
			return 0, tooLarge
		}
	}
	whole, decimals, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+decimals, "0")
	// The number is digits * 10^scale, with no zero at the end of digits.
	scale := exponent - int64(len(decimals))
	short := strings.TrimRight(digits, "0")
	scale += int64(len(digits) - len(short))
	switch {
	case short == "":
		return 0, ""
	case scale < 0:
		return 0, fraction
	case int64(len(short))+scale > 19:
		return 0, tooLarge
	}
	short += strings.Repeat("0", int(scale))
	if negative {
		short = "-" + short
	}
	n, err := strconv.ParseInt(short, 10, 64)
	if err != nil {
		return 0, tooLarge
	}
	return n, ""
}

func asStrings(into *[]string) setter {
	return func(field string, value json.RawMessage) error {
		var items []json.RawMessage
		if value[0] != '[' || json.Unmarshal(value, &items) != nil {
			return wrong(field, value, "must be an array of strings")
		}
		*into = make([]string, len(items))
		for i, item := range items {
			name := field + "[" + strconv.Itoa(i) + "]"
			if err := asString(&(*into)[i])(name, item); err != nil {
				return err
			}
		}
		return nil
	}
}

func asStringMap(into *map[string]string) setter {
	return func(field string, value json.RawMessage) error {
		if value[0] != '{' {
			return wrong(field, value, "must be an object of strings")
		}
		*into = map[string]string{}
		_, err := eachField(field, value, func(name string, value json.RawMessage) error {
			var s string
			err := asString(&s)(qualified(field, name), value)
			(*into)[name] = s
			return err
		})
		return err
	}
}
