// Package agentd is the daemon that runs commands in one session: process id 1 of
// the workspace container, or a process on somebody's machine in local mode.
//
// # The flow
//
//	client --socket, peer checked--> service (package wire) --approval--> engine (unifiedexec)
//	                                     |                                  | StartFunc
//	config folder --watch--> policy -----+---- gate --> launcher (sandbox) -+--> process
//	                            \                                           |
//	                             +--------- reporter (ledger) <--- starts, exits ---> journal --> the next agentd
//
// # Invariants
//
//   - Without a valid policy nothing starts. The gate looks at the policy at the moment
//     of the start itself, so that a command that was admitted a moment earlier does not
//     slip through.
//   - A document counts only if the operator signed it, it is of this session and it is
//     not older than one that was seen. Anything else is refused and takes the policy
//     that was held with it: somebody is tampering.
//   - Commands that run keep running, and keep the policy that they started under.
//   - No call changes the policy. A peer that got past the check has no more rights than
//     a command that it could have started.
//   - What an agentd that was killed had told, its successor does not deny: starts and ends are journaled before they are
//     told, and a command whose end nobody saw gets a record that says so. See docs/design/journal.md.
//   - A peer ends commands, not the agent: only one on somebody's machine, which takes its policy from
//     nobody else, ends when it is told to.
//   - Standard output holds ledger records and nothing else. A reader of it that stalls
//     never makes a command wait.
package agentd

// Version is the version of this build; the linker sets it.
var Version = "dev"
