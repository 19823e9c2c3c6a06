package execsession

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"execsession.dev/agentd/config"
	"execsession.dev/api/v1alpha1"
	"execsession.dev/controllers/workspacepod"
)

const (
	// maxNudges bounds the attempts to make an agent read documents that are right again.
	maxNudges = 3
	// nudgePause is longer than the kubelet takes to bring an annotation into a pod.
	nudgePause = 5 * time.Second
)

// Reasons of agentd for a policy that it has no document for; see package agentd, which
// the operator does not link. A document that is right and was read again cures them.
var curable = map[string]bool{
	"DocumentMissing":   true,
	"DocumentMalformed": true,
	"DocumentForged":    true,
	"DocumentForeign":   true,
	"DocumentOutdated":  true,
	"ProfileOutOfSync":  true,
}

// nudges counts them for one pod and profile.
type nudges struct {
	about string
	count int
	last  time.Time
}

// sealSession signs the session's document with a revision above every other. The
// revision counts as issued only once it is written.
func (r *Reconciler) sealSession(t *turn, above int64) (sealed string, revision int64, err error) {
	known := r.memory.of(client.ObjectKeyFromObject(t.session))
	revision = max(t.now.UnixMilli(), above+1, known.revision+1)
	doc := t.sessionDocument()
	doc.Revision = revision
	data, err := config.Seal(config.KindSession, doc, r.Keys.Private()...)
	if err != nil {
		return "", 0, fmt.Errorf("signing the session document: %w", err)
	}
	return string(data), revision, nil
}

func (t *turn) sessionDocument() config.SessionDocument {
	shell := t.session.Spec.Execution.Shell
	doc := config.SessionDocument{
		Version:   config.Version,
		Kind:      config.KindSession,
		Namespace: t.session.Namespace,
		Name:      t.session.Name,
		UID:       string(t.session.UID),
		Profile:   config.SessionProfile{UID: string(t.document.Profile.UID), Hash: t.document.Profile.Hash},
		Shell:     config.Shell{Path: shell.Path, Login: string(shell.Login), Persistence: string(shell.Persistence)},
	}
	if doc.Shell.Login == "" {
		doc.Shell.Login = config.LoginAllowed
	}
	if doc.Shell.Persistence == "" {
		doc.Shell.Persistence = config.PersistenceNone
	}
	return doc
}

// errRolledBack is a document of ours, but not the last one.
var errRolledBack = errors.New("it is older than the last one")

// deliver keeps the signed session document on the pod. Its change is what makes the
// kubelet bring a changed profile into the pod at once and not within a minute.
func (r *Reconciler) deliver(ctx context.Context, t *turn) error {
	if t.document == nil || t.pod == nil || !t.pod.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := r.deliverTo(ctx, t); err != nil {
		if apierrors.IsNotFound(err) {
			t.wait(v1alpha1.ReasonPodTerminating, "the pod is gone")
			return nil
		}
		return err
	}
	delivered := t.document.Profile
	t.session.Status.Profile = &delivered
	return nil
}

func (r *Reconciler) deliverTo(ctx context.Context, t *turn) error {
	found := r.lookAt(t)
	reread := t.repaired || r.mustNudge(t)
	if found.right() && !reread {
		return nil
	}
	if !found.right() {
		// The cache may be behind our own last write.
		live := &corev1.Pod{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(t.pod), live); err != nil {
			return fmt.Errorf("reading pod %q past the cache: %w", t.pod.Name, err)
		}
		if live.UID != t.pod.UID {
			return apierrors.NewNotFound(corev1.Resource("pods"), t.pod.Name)
		}
		t.pod = live
		if found = r.lookAt(t); found.right() && !reread {
			return nil
		}
	}
	revision, err := r.annotate(ctx, t, found.revision)
	if err != nil {
		return err
	}
	t.tellDelivery(found, revision)
	return nil
}

// carried is what a pod carries of the operator's.
type carried struct {
	revision int64
	// current says that the document says what it should.
	current bool
	// forged says why the document is not the one that the operator wrote last.
	forged error
	// stripped says that the operator's labels were changed.
	stripped bool
}

func (c carried) right() bool { return c.current && c.forged == nil && !c.stripped }

func (r *Reconciler) lookAt(t *turn) carried {
	found := carried{stripped: labelsMissing(t)}
	var have config.SessionDocument
	have, found.current, found.forged = r.readSession(t, t.pod)
	found.revision = have.Revision
	return found
}

// readSession reads the document on a pod: whether it is one of ours, and whether it
// says what it should.
func (r *Reconciler) readSession(t *turn, pod *corev1.Pod) (have config.SessionDocument, current bool, forged error) {
	text, found := pod.Annotations[v1alpha1.AnnotationSession]
	if !found {
		return have, false, errors.New("it was removed")
	}
	have, forged = config.OpenSession([]byte(text), r.Keys.Public())
	if forged != nil {
		return config.SessionDocument{}, false, forged
	}
	want := t.sessionDocument()
	if err := have.CheckIdentity(config.Identity{Namespace: want.Namespace, Name: want.Name, UID: want.UID}); err != nil {
		return config.SessionDocument{}, false, err
	}
	if have.Revision < r.lastRevision(t) {
		return have, false, errRolledBack
	}
	want.Revision = have.Revision
	return have, have == want, nil
}

// lastRevision is the newest that we issued or that the agent has seen.
func (r *Reconciler) lastRevision(t *turn) int64 {
	last := r.memory.of(client.ObjectKeyFromObject(t.session)).revision
	if report, _ := r.Agents.Newest(t.pod.UID); report != nil {
		last = max(last, report.Status.Policy.SessionRevision)
	}
	return last
}

func labelsMissing(t *turn) bool {
	for key, value := range workspacepod.Labels(t.session) {
		if t.pod.Labels[key] != value {
			return true
		}
	}
	return false
}

// annotate writes the document and the operator's labels, and nothing else.
func (r *Reconciler) annotate(ctx context.Context, t *turn, above int64) (revision int64, err error) {
	sealed, revision, err := r.sealSession(t, max(above, r.lastRevision(t)))
	if err != nil {
		return 0, err
	}
	changed := t.pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationSession, sealed)
	for key, value := range workspacepod.Labels(t.session) {
		metav1.SetMetaDataLabel(&changed.ObjectMeta, key, value)
	}
	if err := r.Patch(ctx, changed, client.MergeFrom(t.pod)); err != nil {
		return 0, fmt.Errorf("writing the session document to pod %q: %w", t.pod.Name, err)
	}
	t.pod = changed
	r.memory.of(client.ObjectKeyFromObject(t.session)).revision = revision
	return revision, nil
}

func (t *turn) tellDelivery(found carried, revision int64) {
	switch {
	case found.forged != nil:
		restored.WithLabelValues("session").Inc()
		t.warn(t.pod, v1alpha1.ReasonPolicyRestored, "RestorePolicy",
			"annotation %s of pod %s was changed by somebody else (%v); restored as revision %d",
			v1alpha1.AnnotationSession, t.pod.Name, found.forged, revision)
	case found.stripped:
		restored.WithLabelValues("labels").Inc()
		t.warn(t.pod, v1alpha1.ReasonPolicyRestored, "RestorePolicy", "labels of pod %s were changed by somebody else; restored", t.pod.Name)
	case !found.current:
		t.normal(t.pod, v1alpha1.ReasonProfileDelivered, "DeliverProfile",
			"delivered generation %d of %s %s", t.document.Profile.Generation, t.document.Profile.Kind, t.document.Profile.Name)
	}
}

// mustNudge says whether the agent should be made to read again: it refuses a document
// though the right one is there, because it read while a wrong one was.
func (r *Reconciler) mustNudge(t *turn) bool {
	report, _ := r.Agents.Newest(t.pod.UID)
	if report == nil || report.Status.Policy.Valid || !curable[report.Status.Policy.Reason] {
		return false
	}
	known := r.memory.of(client.ObjectKeyFromObject(t.session))
	about := report.Boot + "/" + t.document.Profile.Hash + "/" + report.Status.Policy.Reason
	if known.nudges.about != about {
		known.nudges = nudges{about: about, last: t.now}
	}
	if known.nudges.count >= maxNudges {
		return false
	}
	// It may be reading at this moment.
	if wait := known.nudges.last.Add(nudgePause).Sub(t.now); wait > 0 {
		t.again = wait
		return false
	}
	known.nudges.count++
	known.nudges.last = t.now
	return true
}
