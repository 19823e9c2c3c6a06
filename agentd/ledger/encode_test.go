package ledger

import (
	"encoding/json"
	"testing"
	"time"
)

// What is written by hand is what encoding/json would write, field by field.
func TestEncodeIsJSON(t *testing.T) {
	now := time.Unix(1_700_000_000, 120_000_000).UTC()
	head := Record{Version: Version, Boot: "0123abcd", Seq: 7, Time: now}
	cases := map[string]struct {
		reason string
		change func(*Record)
	}{
		"Started": {"what is always there", func(r *Record) {
			r.Type, r.Started = TypeStarted, &Started{ID: 1000, Program: "sh", Digest: "sha256:00"}
		}},
		"StartedAll": {"everything", func(r *Record) { r.Type, r.Started = TypeStarted, &Started{1, "p\xff", "d", "<c> \"\n", true} }},
		"Exited":     {"what is always there", func(r *Record) { r.Type, r.Exited = TypeExited, &Exited{ID: 1000, Reason: "Exited"} }},
		"ExitedAll": {"everything", func(r *Record) {
			r.Type, r.Exited = TypeExited, &Exited{1, "Signaled", -137, "SIGKILL", now, now, 1 << 63, "€ & more"}
		}},
		"ExitedYear":  {"a time that JSON has no text for", func(r *Record) { r.Type, r.Exited = TypeExited, &Exited{EndTime: time.Unix(1<<40, 0)} }},
		"Both":        {"more than one body", func(r *Record) { r.Started, r.Exited = &Started{}, &Exited{} }},
		"WithAnother": {"more than one body", func(r *Record) { r.Started, r.Denied = &Started{}, &Denied{} }},
		"Refused":     {"another body", func(r *Record) { r.Type, r.Refused = TypeRefused, &Refused{Reason: "x", Message: "<y>"} }},
		"None":        {"no body", func(*Record) {}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := head
			tc.change(&r)
			want, wantErr := json.Marshal(r)
			got, err := encode(r)
			if (err != nil) != (wantErr != nil) || err == nil && string(got) != string(want) {
				t.Errorf("%s: wrote %s (%v)\nwant  %s (%v)", tc.reason, got, err, want, wantErr)
			}
		})
	}
}

// A field that a record gets later must be written by hand too.
func FuzzEncodeIsJSON(f *testing.F) {
	f.Add([]byte(`{"v":1,"boot":"b","seq":3,"time":"2026-01-02T03:04:05.6Z","type":"exited","exited":{"id":1,"reason":"r","exitCode":1,"signal":"s","startTime":"2026-01-02T03:04:05Z","endTime":"2026-01-02T03:04:05+01:00","outputBytes":9,"message":"m"}}`))
	f.Add([]byte(`{"started":{"id":1,"program":"p","digest":"d","command":"c","tty":true}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Record
		if json.Unmarshal(data, &r) != nil {
			return
		}
		want, wantErr := json.Marshal(r)
		got, err := encode(r)
		if (err != nil) != (wantErr != nil) || err == nil && string(got) != string(want) {
			t.Errorf("wrote %s (%v)\nwant  %s (%v)", got, err, want, wantErr)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	now := time.Now().UTC()
	r := Record{
		Version: Version, Boot: "0123456789abcdef0123456789abcdef", Seq: 4711, Time: now, Type: TypeExited,
		Exited: &Exited{ID: 12345, Reason: "Exited", StartTime: now, EndTime: now, OutputBytes: 100},
	}
	for b.Loop() {
		if _, err := encode(r); err != nil {
			b.Fatal(err)
		}
	}
}
