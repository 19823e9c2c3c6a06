package execsession

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestPace(t *testing.T) {
	p, now := newPace(), time.Unix(1000, 0)
	for i := range noiseBurst {
		if wait := p.wait(now); wait != 0 {
			t.Fatalf("write %d of the first %d has to wait %s", i+1, noiseBurst, wait)
		}
	}
	wait := p.wait(now)
	if wait <= 0 || wait > noiseEvery {
		t.Fatalf("the next write waits %s, want up to %s", wait, noiseEvery)
	}
	// Asking does not take anything away.
	if again := p.wait(now); again != wait {
		t.Errorf("asking again says %s, want %s", again, wait)
	}
	if wait := p.wait(now.Add(wait)); wait != 0 {
		t.Errorf("after the wait there is another of %s", wait)
	}
	minute := now.Add(time.Hour)
	writes := 0
	for second := range 600 {
		if p.wait(minute.Add(time.Duration(second)*time.Second)) == 0 {
			writes++
		}
	}
	if most := noiseBurst + int(10*time.Minute/noiseEvery) + 1; writes > most {
		t.Errorf("ten busy minutes cost %d writes, want at most %d", writes, most)
	}
}

func TestCut(t *testing.T) {
	for _, text := range []string{"", "short", strings.Repeat("ä", 50), strings.Repeat("x", 20) + "日本"} {
		got := cut(text, 20)
		if len(got) > 20 || !utf8.ValidString(got) || len(text) <= 20 && got != text {
			t.Errorf("cut(%q) is %q", text, got)
		}
	}
}
