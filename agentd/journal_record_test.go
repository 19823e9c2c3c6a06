package agentd

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"testing"
)

// Records are written by hand, and are what encoding/json would write: whatever is a record, with all that it tells.
func FuzzJournalIsJSON(f *testing.F) {
	for _, r := range []journalRecord{startOf(begun(1001)), startOf(begun(1002)), endOf(over(begun(1001))), {Told: 7}, {}} {
		data, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"v":3,"open":{"boot":"b","machine":"<&>","time":"2026-01-02T03:04:05.6Z","marks":4611686018427387904,"flawed":1},"closed":{"time":"2026-01-02T03:04:05+01:00"}}`))
	f.Add([]byte(`{"exit":{"id":1,"code":-1,"signal":"s","message":"\"\u2028","user":1,"system":2,"maxRSS":3,"bytes":4,"outputLost":true},"start":{"ticks":1,"tty":true}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r journalRecord
		if json.Unmarshal(data, &r) != nil {
			return
		}
		r.Version = journalVersion
		want, err := json.Marshal(r)
		if err != nil {
			return // It has a time that no record has.
		}
		line := appendRecord([]byte("before\n"), r)
		if sum := fmt.Sprintf("%08x", crc32.Checksum(want, castagnoli)); string(line) != "before\n"+sum+" "+string(want)+"\n" {
			t.Errorf("wrote %s\nwant %s %s", line, sum, want)
		}
	})
}
