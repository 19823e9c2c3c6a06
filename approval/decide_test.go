package approval

import (
	"errors"
	"strings"
	"testing"
)

func TestDecide(t *testing.T) {
	never := Policy{Escalation: EscalationNever}
	cases := map[string]struct {
		reason  string
		policy  Policy
		request Request
		verdict Verdict
		because Reason
		field   string // of the FieldError, "" for none
		says    string // part of the message
	}{
		"nothing asked": {
			reason: "the common case", policy: never, verdict: Run, because: ReasonDefault,
		},
		"default asked": {
			reason: "the same, spelled out", policy: never, request: Request{SandboxPermissions: UseDefault}, verdict: Run, because: ReasonDefault,
		},
		"default with justification": {
			reason: "the permissions are explicit", policy: never,
			request: Request{SandboxPermissions: UseDefault, Justification: "why not"}, verdict: Run, because: ReasonDefault,
		},
		"rule without escalation": {
			reason: "a suggestion that nobody takes up", policy: never, request: Request{PrefixRule: []string{"npm", "install"}}, verdict: Run, because: ReasonDefault,
		},
		"escalated": {
			reason: "never", policy: never, request: Request{SandboxPermissions: RequireEscalated, Justification: "needs the network", PrefixRule: []string{"curl"}},
			verdict: Refuse, because: ReasonEscalationNever, says: RequireEscalated,
		},
		"additional": {
			reason: "never", policy: never, request: Request{SandboxPermissions: WithAdditionalPermissions},
			verdict: Refuse, because: ReasonEscalationNever, says: WithAdditionalPermissions,
		},
		"unknown": {
			reason: "a value of another version", policy: never, request: Request{SandboxPermissions: "all"},
			verdict: Refuse, because: ReasonInvalidRequest, field: "sandbox_permissions", says: `"all"`,
		},
		"case counts": {
			reason: "values are spelled exactly", policy: never, request: Request{SandboxPermissions: "Use_Default"},
			verdict: Refuse, because: ReasonInvalidRequest, field: "sandbox_permissions",
		},
		"justification alone": {
			reason: "the caller forgot what it justifies", policy: never, request: Request{Justification: "needs the network"},
			verdict: Refuse, because: ReasonInvalidRequest, field: "justification", says: RequireEscalated,
		},
		"beyond": {
			reason: "asking for a wider sandbox in other words", policy: never, request: Request{Beyond: "sandbox.network Open is not within None"},
			verdict: Refuse, because: ReasonEscalationNever, says: "sandbox.network Open is not within None; the profile",
		},
		"no policy": {
			reason: "a forgotten policy allows nothing", verdict: Refuse, because: ReasonInvalidPolicy, field: "escalation",
		},
		"unknown policy": {
			reason: "a policy of another version allows nothing", policy: Policy{Escalation: "OnRequest"},
			verdict: Refuse, because: ReasonInvalidPolicy, field: "escalation", says: "OnRequest",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := Decide(c.policy, c.request)
			if got.Verdict != c.verdict || got.Reason != c.because || !strings.Contains(got.Message, c.says) {
				t.Errorf("%s: got %+v", c.reason, got)
			}
			if (got.Message == "") != (c.verdict == Run) {
				t.Errorf("%s: message %q with verdict %s", c.reason, got.Message, got.Verdict)
			}
			var field *FieldError
			if errors.As(got.Err, &field) != (c.field != "") || (field != nil && field.Field != c.field) {
				t.Errorf("%s: got error %v, want one about %q", c.reason, got.Err, c.field)
			}
		})
	}
}
