package config

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func newKey(tb testing.TB, seed byte) (ed25519.PublicKey, ed25519.PrivateKey) {
	tb.Helper()
	private := ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune('a'+seed)), ed25519.SeedSize)))
	return private.Public().(ed25519.PublicKey), private
}

func profileDocument() ProfileDocument {
	return ProfileDocument{
		Version: Version, Kind: KindProfile, Namespace: "team-a",
		Profile: ProfileRef{Kind: KindClusterSandboxProfile, Name: "default", UID: "11111111-2222", Generation: 3},
		Policy:  DefaultPolicy(),
	}
}

func sessionDocument(hash string) SessionDocument {
	return SessionDocument{
		Version: Version, Kind: KindSession, Namespace: "team-a", Name: "hello", UID: "aaaa-bbbb", Revision: 7,
		Profile: SessionProfile{UID: "11111111-2222", Hash: hash},
		Shell:   DefaultShell(),
	}
}

func mustHash(tb testing.TB, kind Kind, doc Document) string {
	tb.Helper()
	hash, err := Hash(kind, doc)
	if err != nil {
		tb.Fatal(err)
	}
	return hash
}

func mustSeal(tb testing.TB, kind Kind, doc Document, keys ...ed25519.PrivateKey) []byte {
	tb.Helper()
	data, err := Seal(kind, doc, keys...)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func TestSealThenOpen(t *testing.T) {
	public, private := newKey(t, 0)
	profile := profileDocument()
	profile.Policy.Environment.Set = map[string]string{"B": "<&>", "A": "ü"}
	data := mustSeal(t, KindProfile, profile, private)
	opened, hash, err := OpenProfile(data, []ed25519.PublicKey{public})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(profile, opened); diff != "" {
		t.Errorf("profile changed on its way (-sealed +opened):\n%s", diff)
	}
	if want := mustHash(t, KindProfile, profile); hash != want {
		t.Errorf("OpenProfile's hash is %s, Hash says %s", hash, want)
	}

	session := sessionDocument(hash)
	openedSession, err := OpenSession(mustSeal(t, KindSession, session, private), []ed25519.PublicKey{public})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(session, openedSession); diff != "" {
		t.Errorf("session changed on its way (-sealed +opened):\n%s", diff)
	}
	if err := CheckPair(opened, hash, openedSession); err != nil {
		t.Errorf("CheckPair: %v", err)
	}
}

// edit changes one field of a JSON object.
func edit(t *testing.T, data []byte, change func(map[string]any)) []byte {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	change(object)
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sealRaw signs any payload, as nobody but the operator could.
func sealRaw(t *testing.T, kind Kind, payload string, key ed25519.PrivateKey) []byte {
	t.Helper()
	data, err := json.Marshal(envelope{Version: Version, Payload: payload, Signatures: []signature{{
		KeyID: KeyID(key.Public().(ed25519.PublicKey)),
		Value: base64.StdEncoding.EncodeToString(ed25519.Sign(key, signedBytes(kind, payload))),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestOpenRefuses(t *testing.T) {
	public, private := newKey(t, 0)
	_, stranger := newKey(t, 1)
	session := sessionDocument("sha256:" + strings.Repeat("0", 64))
	good := mustSeal(t, KindSession, session, private)
	payload, err := json.Marshal(session)
	if err != nil {
		t.Fatal(err)
	}
	forged := func(change func(map[string]any)) []byte { return edit(t, good, change) }
	signed := func(change func(map[string]any)) []byte {
		return sealRaw(t, KindSession, string(edit(t, payload, change)), private)
	}

	cases := map[string]struct {
		reason string
		data   []byte
		want   error
	}{
		"Empty":        {"an annotation that was deleted projects as an empty file", nil, ErrMalformed},
		"NotJSON":      {"anything may be written into an annotation", []byte("hello"), ErrMalformed},
		"Null":         {"null decodes into anything", []byte("null"), ErrVersion},
		"Trailing":     {"two documents in one file are ambiguous", append(slices.Clip(good), "{}"...), ErrMalformed},
		"UnknownField": {"the envelope is strict", forged(func(o map[string]any) { o["comment"] = "x" }), ErrMalformed},
		"DuplicateField": {"two readers could disagree about which one holds",
			append([]byte(`{"VERSION":1,`), good[1:]...), ErrMalformed},
		"EnvelopeVersion": {"a newer envelope is not guessed at", forged(func(o map[string]any) { o["version"] = 2 }), ErrVersion},
		"PayloadTampered": {"the signature covers every byte of the payload", forged(func(o map[string]any) {
			o["payload"] = strings.Replace(o["payload"].(string), `"revision":7`, `"revision":8`, 1)
		}), ErrForged},
		"PayloadReformatted": {"also a byte that means nothing", forged(func(o map[string]any) {
			o["payload"] = o["payload"].(string) + " "
		}), ErrForged},
		"NoSignature":   {"unsigned is forged", forged(func(o map[string]any) { o["signatures"] = []any{} }), ErrForged},
		"StrangersKey":  {"a valid signature of somebody else", mustSeal(t, KindSession, session, stranger), ErrForged},
		"SignatureMuck": {"base64 is strict", forged(func(o map[string]any) { o["signatures"].([]any)[0].(map[string]any)["value"] = "!" }), ErrForged},
		"WrongKind": {"a profile's signature is not good for a session",
			mustSeal(t, KindProfile, profileDocument(), private), ErrForged},
		"KindInPayload": {"the payload's kind is checked as well", signed(func(o map[string]any) { o["kind"] = "Profile" }), ErrKind},
		"PayloadVersion": {"a newer document is not guessed at",
			signed(func(o map[string]any) { o["version"] = 2 }), ErrVersion},
		"PayloadUnknownField": {"a restriction that an old agentd does not know must not be lost",
			signed(func(o map[string]any) { o["deny"] = true }), ErrMalformed},
		"PayloadNotJSON": {"authentic, yet nothing", sealRaw(t, KindSession, "x", private), ErrMalformed},
		"PayloadCase": {"who reads names as they are written would find no such field",
			signed(func(o map[string]any) { o["Name"] = o["name"]; delete(o, "name") }), ErrMalformed},
		"PayloadHalfACharacter": {"it would be read as another one",
			sealRaw(t, KindSession, strings.Replace(string(payload), `"name":"`, `"name":"\ud800`, 1), private), ErrMalformed},
		"NoUTF8":       {"it would be read as another character", bytes.Replace(good, []byte("keyID\":\""), []byte("keyID\":\"\xff"), 1), ErrMalformed},
		"RevisionZero": {"revisions begin at 1", signed(func(o map[string]any) { o["revision"] = 0 }), ErrInvalid},
		"HashForm": {"a hash in another form would never match", signed(func(o map[string]any) {
			o["profile"].(map[string]any)["hash"] = "sha256:AB"
		}), ErrInvalid},
		"TooLarge": {"a document is bounded", []byte(strings.Repeat(" ", maxBytes+1)), ErrMalformed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := OpenSession(tc.data, []ed25519.PublicKey{public})
			if !errors.Is(err, tc.want) {
				t.Errorf("%s: got error %v, want %v", tc.reason, err, tc.want)
			}
		})
	}
}

// TestNothingIsForgotten: a field without a default may not be left out, be null or have another name, also where the
// zero value would be acceptable: the one that keeps secrets from commands is such a field.
func TestNothingIsForgotten(t *testing.T) {
	whole, err := json.Marshal(DefaultPolicy())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParsePolicy(whole); err != nil {
		t.Fatal(err)
	}
	for reason, change := range map[string]func(environment map[string]any){
		"left out":     func(e map[string]any) { delete(e, "secretExcludes") },
		"null":         func(e map[string]any) { e["secretExcludes"] = nil },
		"another name": func(e map[string]any) { e["SecretExcludes"] = true; delete(e, "secretExcludes") },
	} {
		changed := edit(t, whole, func(o map[string]any) { change(o["environment"].(map[string]any)) })
		if _, err := ParsePolicy(changed); !errors.Is(err, ErrMalformed) || !strings.Contains(strings.ToLower(err.Error()), `"environment.secretexcludes"`) {
			t.Errorf("%s: got %v", reason, err)
		}
	}
	empty := edit(t, whole, func(o map[string]any) {
		o["sandbox"].(map[string]any)["filesystem"].(map[string]any)["writableRoots"] = []any{}
	})
	if _, err := ParsePolicy(empty); err != nil {
		t.Errorf("an empty list is as good as none: %v", err)
	}
}

func TestRotation(t *testing.T) {
	oldPublic, oldPrivate := newKey(t, 0)
	newPublic, newPrivate := newKey(t, 1)
	session := sessionDocument("sha256:" + strings.Repeat("0", 64))
	both := mustSeal(t, KindSession, session, oldPrivate, newPrivate)
	oneBad := edit(t, both, func(o map[string]any) {
		signatures := o["signatures"].([]any)
		first, second := signatures[0].(map[string]any), signatures[1].(map[string]any)
		first["value"] = second["value"]
	})
	cases := map[string]struct {
		reason string
		data   []byte
		keys   []ed25519.PublicKey
		want   error
	}{
		"OldPod": {"a pod made before the rotation knows the old key only", both, []ed25519.PublicKey{oldPublic}, nil},
		"NewPod": {"a pod made after it knows the new one", both, []ed25519.PublicKey{newPublic}, nil},
		"Both":   {"in between it knows both", both, []ed25519.PublicKey{oldPublic, newPublic}, nil},
		"NoKeys": {"without keys nothing is authentic", both, nil, ErrForged},
		"OneBad": {"a bad signature of a known key is never passed over", oneBad, []ed25519.PublicKey{oldPublic, newPublic}, ErrForged},
		"BadKey": {"a key of another size is refused, not a panic", both, []ed25519.PublicKey{{1, 2}}, ErrForged},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := OpenSession(tc.data, tc.keys); !errors.Is(err, tc.want) {
				t.Errorf("%s: got error %v, want %v", tc.reason, err, tc.want)
			}
		})
	}
}

func TestSealRefuses(t *testing.T) {
	_, private := newKey(t, 0)
	if _, err := Seal(KindProfile, profileDocument()); err == nil {
		t.Error("sealing without a key must fail")
	}
	if _, err := Seal(KindSession, profileDocument(), private); !errors.Is(err, ErrKind) {
		t.Errorf("sealing a profile as a session: got %v, want %v", err, ErrKind)
	}
	if _, err := Seal(KindProfile, profileDocument(), ed25519.PrivateKey("short")); err == nil {
		t.Error("sealing with half a key must fail")
	}
}

func TestPolicyValidate(t *testing.T) {
	cases := map[string]struct {
		change func(*Policy)
		field  string
	}{
		"Zero":             {func(p *Policy) { *p = Policy{} }, "sandbox.filesystem.mode"},
		"FilesystemMode":   {func(p *Policy) { p.Sandbox.Filesystem.Mode = "writable" }, "sandbox.filesystem.mode"},
		"RelativeRoot":     {func(p *Policy) { p.Sandbox.Filesystem.WritableRoots = []string{"/a", "b"} }, "sandbox.filesystem.writableRoots[1]"},
		"UncleanPath":      {func(p *Policy) { p.Sandbox.Filesystem.DeniedPaths = []string{"/a/../b"} }, "sandbox.filesystem.deniedPaths[0]"},
		"NetworkMode":      {func(p *Policy) { p.Sandbox.Network.Mode = "" }, "sandbox.network.mode"},
		"Enforcement":      {func(p *Policy) { p.Sandbox.Enforcement = "Maybe" }, "sandbox.enforcement"},
		"NegativeABI":      {func(p *Policy) { p.Sandbox.MinLandlockABI = -1 }, "sandbox.minLandlockABI"},
		"LimitName":        {func(p *Policy) { p.Sandbox.Process.Limits = map[string]uint64{"files": 1} }, `sandbox.process.limits["files"]`},
		"Syscall":          {func(p *Policy) { p.Sandbox.Process.DeniedSyscalls = []string{"mount", ""} }, "sandbox.process.deniedSyscalls[1]"},
		"Escalation":       {func(p *Policy) { p.Approval.Escalation = "Sometimes" }, "approval.escalation"},
		"Inherit":          {func(p *Policy) { p.Environment.Inherit = "Most" }, "environment.inherit"},
		"SetName":          {func(p *Policy) { p.Environment.Set = map[string]string{"A=B": "c"} }, "environment.set"},
		"SetValue":         {func(p *Policy) { p.Environment.Set = map[string]string{"A": "\x00"} }, `environment.set["A"]`},
		"Exclude":          {func(p *Policy) { p.Environment.Exclude = []string{""} }, "environment.exclude[0]"},
		"MaxProcesses":     {func(p *Policy) { p.Limits.MaxProcesses = 0 }, "limits.maxProcesses"},
		"Protected":        {func(p *Policy) { p.Limits.ProtectedProcesses = 65 }, "limits.protectedProcesses"},
		"BackgroundPollMs": {func(p *Policy) { p.Limits.BackgroundPollMaxSeconds = 4 }, "limits.backgroundPollMaxSeconds"},
		"Ledger":           {func(p *Policy) { p.Output.Ledger = "Everything" }, "output.ledger"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			policy := DefaultPolicy()
			tc.change(&policy)
			err := policy.Validate()
			var field *FieldError
			if !errors.As(err, &field) || !errors.Is(err, ErrInvalid) {
				t.Fatalf("got error %v, want a FieldError", err)
			}
			if field.Field != tc.field {
				t.Errorf("the error names %q, want %q", field.Field, tc.field)
			}
		})
	}
	if err := DefaultPolicy().Validate(); err != nil {
		t.Errorf("the default policy is invalid: %v", err)
	}
}

func TestPairChecks(t *testing.T) {
	profile := profileDocument()
	hash := mustHash(t, KindProfile, profile)
	session := sessionDocument(hash)

	other := session
	other.UID = "cccc-dddd"
	if err := other.CheckIdentity(Identity{"team-a", "hello", "aaaa-bbbb"}); !errors.Is(err, ErrForeign) {
		t.Errorf("a session of the same name with another uid: got %v, want %v", err, ErrForeign)
	}
	if err := session.CheckIdentity(Identity{"team-a", "hello", "aaaa-bbbb"}); err != nil {
		t.Errorf("our own session: %v", err)
	}

	older, same, later := session, session, session
	older.Revision, later.Revision = 6, 8
	later.Shell.Login = LoginForbidden
	same.Shell.Login = LoginForbidden
	for name, tc := range map[string]struct {
		next SessionDocument
		want error
	}{
		"Copy":         {session, nil},
		"Later":        {later, nil},
		"Older":        {older, ErrOutdated},
		"SameRevision": {same, ErrOutdated},
	} {
		if err := session.CheckSuccessor(tc.next); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}

	moved, renamed := profile, profile
	moved.Namespace = "team-b"
	renamed.Profile.UID = "9999"
	for name, tc := range map[string]struct {
		profile ProfileDocument
		hash    string
		want    error
	}{
		"Fits":           {profile, hash, nil},
		"OtherNamespace": {moved, hash, ErrForeign},
		"OtherHash":      {profile, "sha256:" + strings.Repeat("0", 64), ErrOutOfSync},
		"OtherUID":       {renamed, hash, ErrForeign},
	} {
		if err := CheckPair(tc.profile, tc.hash, session); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}

func TestKeys(t *testing.T) {
	one, _ := newKey(t, 0)
	two, _ := newKey(t, 1)
	keys, err := ParseKeys(FormatKeys(one, two))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]ed25519.PublicKey{one, two}, keys); diff != "" {
		t.Errorf("keys changed on their way:\n%s", diff)
	}
	for _, text := range []string{"", ",", "AAAA", "not base64", FormatKeys(one) + ","} {
		if _, err := ParseKeys(text); err == nil {
			t.Errorf("ParseKeys(%q) must fail", text)
		}
	}
}

func FuzzOpenSession(f *testing.F) {
	public, private := newKey(f, 0)
	session := sessionDocument("sha256:" + strings.Repeat("0", 64))
	sealed := mustSeal(f, KindSession, session, private)
	f.Add(sealed)
	f.Add([]byte(`{"version":1,"payload":"{}","signatures":[{"keyID":"","value":""}]}`))
	f.Add([]byte(`[[[{"a":[]}]]]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		doc, err := OpenSession(data, []ed25519.PublicKey{public})
		if err == nil && doc != session {
			t.Fatalf("a document that nobody signed was opened: %s", data)
		}
	})
}

// FuzzParsePolicy: what is accepted means the same to a reader that takes names as they are written.
func FuzzParsePolicy(f *testing.F) {
	data, err := json.Marshal(DefaultPolicy())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"sandbox":{"filesystem":{"mode":"ReadOnly","writableRoots":["/a"]}}}`))
	for _, change := range policyChanges {
		f.Add([]byte(strings.Replace(string(data), change[0], change[1], 1)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		policy, err := ParsePolicy(data)
		if err != nil {
			return
		}
		written, err := json.Marshal(policy)
		if err != nil {
			t.Fatal(err)
		}
		sameMeaning(t, string(data), string(written))
		again, err := ParsePolicy(written)
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v\n%s", err, written)
		}
		if diff := cmp.Diff(policy, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}
