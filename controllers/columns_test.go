package controllers_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"execsession.dev/agentd/ledger"
	"execsession.dev/api/v1alpha1"
)

// table is what kubectl asks for to show a session: without wide, columns of priority 0.
func (b *bench) table(name string, wide bool) map[string]string {
	b.Helper()
	c, err := discovery.NewDiscoveryClientForConfig(cluster)
	b.must(err)
	path := fmt.Sprintf("/apis/%s/namespaces/%s/execsessions/%s", v1alpha1.GroupVersion, b.namespace, name)
	data, err := c.RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(b.Context())
	b.must(err)
	var table metav1.Table
	b.must(json.Unmarshal(data, &table))
	shown := map[string]string{}
	for i, column := range table.ColumnDefinitions {
		if wide || column.Priority == 0 {
			shown[column.Name] = fmt.Sprint(table.Rows[0].Cells[i])
		}
	}
	return shown
}

func TestWhatKubectlGetShows(t *testing.T) {
	b := newBench(t)
	b.operator()
	b.profile()
	s := b.session("shown", func(s *v1alpha1.ExecSession) { s.Spec.Workspace.Image = "" })
	pod := b.pod(s)
	b.say(pod, "boot-1", b.run(pod), func(status *ledger.Status) { status.Processes = ledger.Processes{Running: 3} })
	b.has(s, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonRunning)

	want := map[string]string{"Name": "shown", "Ready": "True", "Agent": v1alpha1.ReasonAgentReady, "Node": "node-1", "Running": "3"}
	got := b.table("shown", false)
	if got["Age"] == "" {
		t.Error("no age is shown")
	}
	delete(got, "Age")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kubectl get: -want +got\n%s", diff)
	}
	if got := b.table("shown", true)["Image"]; got != "workspace:default" {
		t.Errorf("kubectl get -o wide shows image %q, want the operator's default", got)
	}
}
