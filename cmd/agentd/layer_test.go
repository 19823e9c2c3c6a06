package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestLayer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agentd.yaml")
	if err := os.WriteFile(file, []byte("workspace: /from-file\nstop-grace: 4s\nsession: from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(t.TempDir(), "agentd.yaml")
	if err := os.WriteFile(wrong, []byte("wrokspace: /x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type values struct {
		workspace, session, key string
		grace                   time.Duration
		local                   bool
	}
	defaults := values{grace: time.Second}
	cases := map[string]struct {
		reason string
		args   []string
		env    map[string]string
		want   values
		err    string
	}{
		"Defaults":    {"nothing is given", nil, nil, defaults, ""},
		"File":        {"the file holds", []string{"--config", file}, nil, values{"/from-file", "from-file", "", 4 * time.Second, false}, ""},
		"Environment": {"a variable comes before the file", []string{"--config", file}, map[string]string{"AGENTD_SESSION": "from-env", "AGENTD_STOP_GRACE": "3s"}, values{"/from-file", "from-env", "", 3 * time.Second, false}, ""},
		"Flag":        {"a flag comes before all", []string{"--config", file, "--session", "from-flag"}, map[string]string{"AGENTD_SESSION": "from-env"}, values{"/from-file", "from-flag", "", 4 * time.Second, false}, ""},
		"FileByEnv":   {"the file is named by a variable", nil, map[string]string{"AGENTD_CONFIG": file}, values{"/from-file", "from-file", "", 4 * time.Second, false}, ""},
		"Operator": {"an image's environment changes nothing when the operator wrote the command line", []string{"--verify-key", "k"},
			map[string]string{"AGENTD_LOCAL": "true", "AGENTD_CONFIG": file, "AGENTD_SESSION": "x"}, values{key: "k", grace: time.Second}, ""},
		"UnknownKey": {"a misspelt key is told", []string{"--config", wrong}, nil, values{}, "wrokspace"},
		"BadValue":   {"so is a bad value", nil, map[string]string{"AGENTD_STOP_GRACE": "long"}, values{}, "stop-grace"},
		"NoFile":     {"and a file that is not there", []string{"--config", "/no/such.yaml"}, nil, values{}, "/no/such.yaml"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for variable, value := range tc.env {
				t.Setenv(variable, value)
			}
			var got values
			flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			flags.String("config", "", "")
			flags.StringVar(&got.workspace, "workspace", "", "")
			flags.StringVar(&got.session, "session", "", "")
			flags.StringVar(&got.key, "verify-key", "", "")
			flags.DurationVar(&got.grace, "stop-grace", time.Second, "")
			flags.BoolVar(&got.local, "local", false, "")
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			err := layer(flags)
			switch {
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("%s: got error %v, want one with %q", tc.reason, err, tc.err)
			case tc.err == "" && (err != nil || got != tc.want):
				t.Errorf("%s: got %+v, %v, want %+v", tc.reason, got, err, tc.want)
			}
		})
	}
}
