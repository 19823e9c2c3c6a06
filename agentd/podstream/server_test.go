package podstream

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// program is what runs at the other end; its error becomes the exec's status.
type program func(stdin io.Reader, stdout, stderr io.Writer) error

// execServer answers pods/exec of pod "here" the way an API server does, over a
// WebSocket unless spdyOnly.
type execServer struct {
	program  program
	spdyOnly bool
	webSocks atomic.Int32
	spdys    atomic.Int32
	query    atomic.Pointer[http.Request]
}

func (s *execServer) start(t *testing.T) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

func (s *execServer) serve(w http.ResponseWriter, r *http.Request) {
	s.query.Store(r)
	if r.URL.Path != "/api/v1/namespaces/ns/pods/here/exec" {
		status := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "gone").Status()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write(encoded(status))
		return
	}
	if wsstream.IsWebSocketRequest(r) {
		s.webSocks.Add(1)
		if s.spdyOnly {
			http.Error(w, "only SPDY here", http.StatusForbidden)
			return
		}
		s.serveWebSocket(w, r)
		return
	}
	s.spdys.Add(1)
	s.serveSPDY(w, r)
}

func (s *execServer) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: []wsstream.ChannelType{
			wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.ReadChannel,
		}},
	})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = streams[1].Write(nil)
	writeStatus(streams[3], s.program(streams[0], streams[1], streams[2]))
}

func (s *execServer) serveSPDY(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return
	}
	opened := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, replied <-chan struct{}) error {
		opened <- stream
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	streams := map[string]httpstream.Stream{}
	for len(streams) < 4 {
		stream := <-opened
		streams[stream.Headers().Get(corev1.StreamType)] = stream
	}
	err := s.program(streams[corev1.StreamTypeStdin], streams[corev1.StreamTypeStdout], streams[corev1.StreamTypeStderr])
	_ = streams[corev1.StreamTypeStdout].Close()
	_ = streams[corev1.StreamTypeStderr].Close()
	writeStatus(streams[corev1.StreamTypeError], err)
	_ = streams[corev1.StreamTypeError].Close()
	<-conn.CloseChan()
}

var errExit3 = errors.New("exit 3")

func writeStatus(to io.Writer, err error) {
	status := metav1.Status{Status: metav1.StatusSuccess}
	switch {
	case errors.Is(err, errExit3):
		status = metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: "3"}}},
		}
	case err != nil:
		status = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
	}
	_, _ = to.Write(encoded(status))
}

func encoded(status metav1.Status) []byte {
	data, err := json.Marshal(status)
	if err != nil {
		panic(err) // It is made of strings.
	}
	return data
}
