package unifiedexec

import (
	"os"
	"strconv"
	"strings"
)

// account is a user's entry in /etc/passwd; empty when there is none.
type account struct {
	name, home, shell string
}

// readAccount finds a user without the C library, so that a static binary works in any image.
func readAccount(path string, uid int) account {
	data, err := os.ReadFile(path)
	if err != nil {
		return account{}
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(fields) == 7 && fields[2] == strconv.Itoa(uid) {
			return account{name: fields[0], home: fields[5], shell: fields[6]}
		}
	}
	return account{}
}
