//go:build linux

// Command sandboxcases is what a hostile command of a session would try: forty cases, each of a few attempts.
//
//	sandboxcases list                    the table: case, profile, attempt, outcome, event
//	sandboxcases run CASE PROFILE        makes the case's attempts of a profile, each in a process of its own
//
// It prints a line of JSON for each attempt: {"case":17,"attempt":"process_vm_readv","outcome":"EPERM"}. An outcome is
// ok, the name of an errno, "signal SIGSYS", "exit 7" of a program, absent (the program is not installed here), or a
// sentence about what went wrong.
//
// cases.txt says what each has to end with, in a pod whose runtime has its default filter, and what the session's ledger
// has to tell. Its columns are the case, the profile, the attempt, the outcome and the event:
//
//	E rule/call   the sandbox itself refuses: a denied record of that rule and system call exists
//	R             the filter of the runtime refuses first, and the kernel asks nobody else: no record
//	I             Landlock or the kernel refuses: a profile with diagnostics would infer it, others say nothing
//	-             nothing is refused, or nothing that is told
//
// It is static and takes nothing from the product, so that it can be put into any image and under any other sandbox. It expects to be in
// the workspace of a session, and the files of the tools image (hack/images) in /srv.
package main
