// Package approval decides from a command's request and a policy whether it may
// run, with the reason. Decisions are pure functions of their input: they read no
// clock, no file and no state, so that the same question always has the same answer.
//
// A call of the exec_command tool may ask for more than its sandbox allows, with the
// arguments sandbox_permissions, justification and prefix_rule:
//
//	use_default, or nothing        run in the sandbox
//	require_escalated              run outside of the sandbox
//	with_additional_permissions    run in a wider sandbox
//
// The one policy today is EscalationNever, which refuses the last two and says so; it
// never runs such a command in the sandbox as if nothing had been asked, because
// the caller would take its failure for the command's own. A request that contradicts
// itself is the caller's mistake: the decision then carries a *FieldError.
package approval
