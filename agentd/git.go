package agentd

import (
	"maps"
	"os"
	"syscall"
)

// gitCount is how many settings git finds in its environment.
const gitCount = "GIT_CONFIG_COUNT"

// gitEnvironment adds the variables that let git work at the top of a pod's workspace. The root of a volume is root's, whoever
// may write there, and git uses no repository in a folder of another user. It means to protect from neighbours, which a pod has
// none of: whoever can write there is one user in one sandbox. What somebody else told git by its environment is left alone.
func gitEnvironment(workspace string, set map[string]string) map[string]string {
	info, err := os.Stat(workspace)
	if err != nil {
		return set // commands will meet that too
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !known || int(owner.Uid) == os.Getuid() {
		return set
	}
	if _, told := set[gitCount]; told || os.Getenv(gitCount) != "" {
		return set
	}
	all := map[string]string{gitCount: "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": workspace}
	maps.Copy(all, set)
	return all
}
