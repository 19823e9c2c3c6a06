package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// configFlag names the file; it cannot be in the file.
const configFlag = "config"

// layer fills in the flags that were not given, from AGENTD_* variables and then from
// the file. When the operator wrote the command line it does nothing: an image's
// environment must not turn a pod's agent into a local one.
func layer(flags *pflag.FlagSet) error {
	if flags.Changed("verify-key") {
		return nil
	}
	v := viper.New()
	v.SetEnvPrefix("agentd")
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	v.AutomaticEnv()
	if path := v.GetString(configFlag); path != "" && !flags.Changed(configFlag) {
		if err := flags.Set(configFlag, path); err != nil {
			return err
		}
	}
	if path := flags.Lookup(configFlag).Value.String(); path != "" {
		v.SetConfigFile(path)
		if err := v.ReadInConfig(); err != nil {
			return fmt.Errorf("reading --config %q: %w", path, err)
		}
		for _, key := range v.AllKeys() {
			if key == configFlag || flags.Lookup(key) == nil {
				return fmt.Errorf("reading --config %q: %q is no flag of agentd serve", path, key)
			}
		}
	}
	var failed error
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || flag.Name == configFlag || flag.Name == "help" || !v.IsSet(flag.Name) {
			return
		}
		if err := flags.Set(flag.Name, v.GetString(flag.Name)); err != nil && failed == nil {
			failed = fmt.Errorf("setting --%s from the environment or the file: %w", flag.Name, err)
		}
	})
	return failed
}
