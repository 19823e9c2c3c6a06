package config

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"execsession.dev/sandbox"
)

// FuzzPolicyDocument reads any bytes as a document, or as the payload of one that the operator signed. Nothing fails but
// with an error of this package; what is accepted was signed, and it says exactly what the payload says: no word of it is
// passed over, none is added, and it means the same when it is written and read again.
func FuzzPolicyDocument(f *testing.F) {
	public, private := newKey(f, 0)
	_, stranger := newKey(f, 1)
	for _, seed := range policySeeds(f) {
		f.Add([]byte(seed), true)
	}
	profile := profileDocument()
	f.Add(mustSeal(f, KindProfile, profile, private), false)
	f.Add(mustSeal(f, KindProfile, profile, stranger, private), false)
	f.Add(mustSeal(f, KindProfile, profile, stranger), false)
	f.Add(mustSeal(f, KindSession, sessionDocument(mustHash(f, KindProfile, profile)), private), false)
	f.Add([]byte(`{"version":1,"payload":"{}","signatures":[{"keyID":"","value":""}]}`), false)
	keys := []ed25519.PublicKey{public}
	f.Fuzz(func(t *testing.T, data []byte, signed bool) {
		file := data
		if signed {
			if !utf8.Valid(data) {
				t.Skip("no JSON text")
			}
			file = sealRaw(t, KindProfile, string(data), private)
		}
		doc, hash, err := OpenProfile(file, keys)
		if err != nil {
			refusedCleanly(t, err)
			if !reflect.DeepEqual(doc, ProfileDocument{}) || hash != "" {
				t.Errorf("an error came with %+v and %q", doc, hash)
			}
			return
		}
		payload := signedPayload(t, file, KindProfile, public)
		if hash != hashPayload(payload) {
			t.Errorf("the hash %s is of something else", hash)
		}
		again, err := payloadOf(KindProfile, doc)
		if err != nil {
			t.Fatalf("what was accepted is refused when it is written: %v", err)
		}
		sameMeaning(t, payload, string(again))
		reopened, _, err := OpenProfile(mustSeal(t, KindProfile, doc, private), keys)
		if err != nil || !cmp.Equal(doc, reopened) {
			t.Errorf("read again, it is %+v, %v", reopened, err)
		}
	})
}

// policyChanges are what an attacker would try in a policy.
var policyChanges = [][2]string{
	{`"network":{"mode":"None"}`, `"network":{"mode":"Open"}`},
	{`"network":{"mode":"None"}`, `"network":{"mode":"None"},"network":{"mode":"Open"}`},
	{`"network":{"mode":"None"}`, `"network":{"mode":"None"},"Network":{"mode":"Open"}`},
	{`"network":{"mode":"None"}`, `"network":{"mode":"None","MODE":"Open"}`},
	{`"network":{"mode":"None"}`, `"network":{"MODE":"None"}`},
	{`"network":{"mode":"None"}`, `"network":{"mode":"None","allowedDomains":["*"]}`},
	{`"network":{"mode":"None"}`, `"network":{"mode":"None","\u006dode":"Open"}`},
	{`"sandbox":`, `"\u017fandbox":{},"sandbox":`},
	{`"approval":`, "\"\u017fandbox\":{\"network\":{\"mode\":\"Open\"}},\"approval\":"},
	{`"network":{"mode":"None"}`, "\"network\":{\"mode\":\"None\"},\"networ\u212a\":{\"mode\":\"Open\"}"},
	{`"mode":"WorkspaceWrite"`, `"mode":"WorkspaceWrite","deniedPaths":["/srv/\ud800"]`},
	{`"mode":"WorkspaceWrite"`, `"mode":"WorkspaceWrite","deniedPaths":["/srv/\ufffd","/\ud83d\ude00"]`},
	{`"mode":"WorkspaceWrite"`, "\"mode\":\"WorkspaceWrite\",\"deniedPaths\":[\"/srv/\xff\"]"},
	{`"network":{"mode":"None"}`, `"network":null`},
	{`"network":{"mode":"None"}`, `"network":{"mode":"None","extra":1}`},
	{`"mode":"WorkspaceWrite"`, `"mode":"WorkspaceWrite","writableRoots":["/","/../etc"]`},
	{`"mode":"WorkspaceWrite"`, `"mode":"WorkspaceWrite","writableRoots":["/srv\u0000"]`},
	{`"enforcement":"Required"`, `"enforcement":"Required "`},
	{`"enforcement":"Required"`, `"enforcement":"Required","minLandlockABI":1e1`},
	{`"secretExcludes":true`, `"secretExcludes":false`},
	{`"secretExcludes":true,`, ``},
	{`,"secretExcludes":true`, ``},
	{`"protectedProcesses":8`, `"protectedProcesses":9999999999999999999`},
	{`"version":1`, `"version":2`},
	{`"kind":"Profile"`, `"kind":"Session"`},
	{`}}}`, `}}}}`},
}

// policySeeds are payloads: whole ones and such as an attacker would try.
func policySeeds(f *testing.F) []string {
	f.Helper()
	rich := profileDocument()
	rich.Policy.Sandbox = sandbox.Policy{
		Filesystem:  sandbox.Filesystem{Mode: sandbox.WorkspaceWrite, WritableRoots: []string{"/srv"}, ReadOnlyPaths: []string{"/srv/a"}, DeniedPaths: []string{"/srv/b"}},
		Network:     sandbox.Network{Mode: sandbox.ProxyNetwork, AllowedDomains: []string{"**.a.example"}, DeniedDomains: []string{"b.a.example"}, Methods: "Limited"},
		Process:     sandbox.Process{Limits: map[string]uint64{"core": 0}, DeniedSyscalls: []string{"sync"}},
		Enforcement: sandbox.BestEffort, MinLandlockABI: 3,
	}
	rich.Policy.Environment = Environment{Inherit: InheritCore, Exclude: []string{"A*"}, IncludeOnly: []string{"B"}, Set: map[string]string{"C": "d"}}
	var seeds []string
	for _, doc := range []ProfileDocument{profileDocument(), rich} {
		payload, err := payloadOf(KindProfile, doc)
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, string(payload))
	}
	plain := seeds[0]
	for _, change := range policyChanges {
		seeds = append(seeds, strings.Replace(plain, change[0], change[1], 1))
	}
	return append(seeds, "", "null", "[]", "{", plain+" ", plain+"{}", "\n"+plain, strings.Repeat("[", 20_000))
}

// refusedCleanly holds an error to what this package says of its errors.
func refusedCleanly(t *testing.T, err error) {
	t.Helper()
	known := []error{ErrMalformed, ErrForged, ErrVersion, ErrKind, ErrInvalid}
	if !slices.ContainsFunc(known, func(k error) bool { return errors.Is(err, k) }) {
		t.Errorf("an error of nobody: %v", err)
	}
}

// signedPayload verifies a document with a reader of its own.
func signedPayload(t *testing.T, file []byte, kind Kind, key ed25519.PublicKey) string {
	t.Helper()
	var sealed struct {
		Payload    string
		Signatures []struct{ KeyID, Value string }
	}
	if err := json.Unmarshal(file, &sealed); err != nil {
		t.Fatal(err)
	}
	for _, s := range sealed.Signatures {
		value, err := base64.StdEncoding.DecodeString(s.Value)
		if err == nil && ed25519.Verify(key, []byte(fmt.Sprintf("execsession.dev/%s\n%s", kind, sealed.Payload)), value) {
			return sealed.Payload
		}
	}
	t.Fatal("a document was accepted that the key did not sign")
	return ""
}

// sameMeaning compares two JSON texts value by value. An empty list or object is as good as none.
func sameMeaning(t *testing.T, read, written string) {
	t.Helper()
	generic := func(text string) any {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		var value any
		if err := decoder.Decode(&value); err != nil {
			t.Fatalf("%q was accepted, and is no JSON: %v", text, err)
		}
		return normal(value)
	}
	if diff := cmp.Diff(generic(read), generic(written)); diff != "" {
		t.Errorf("the document says otherwise than the payload (-payload +document):\n%s", diff)
	}
}

func normal(value any) any {
	switch v := value.(type) {
	case map[string]any:
		kept := map[string]any{}
		for name, inner := range v {
			if inner = normal(inner); inner != nil {
				kept[name] = inner
			}
		}
		if len(kept) == 0 {
			return nil
		}
		return kept
	case []any:
		if len(v) == 0 {
			return nil
		}
		list := make([]any, len(v))
		for i, inner := range v {
			list[i] = normal(inner)
		}
		return list
	}
	return value
}
