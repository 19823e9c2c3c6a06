package wire

import (
	"context"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Server serves an agent to connections for calls and to those of gRPC, whichever a client begins.
type Server struct {
	grpc  *grpc.Server
	calls *callServer
}

// NewServer makes a server. The interceptor is for the calls of one request and one response on either kind of connection.
func NewServer(agent AgentServer, unary grpc.UnaryServerInterceptor, options ...grpc.ServerOption) *Server {
	s := &Server{calls: newCallServer(unary)}
	RegisterAgentServer(s.calls, agent)
	s.grpc = grpc.NewServer(append(options, grpc.UnaryInterceptor(unary), grpc.Creds(handshake{insecure.NewCredentials(), s.calls}))...)
	RegisterAgentServer(s.grpc, agent)
	return s
}

// Serve serves what the listener accepts until Stop.
func (s *Server) Serve(listener net.Listener) error { return s.grpc.Serve(listener) }

// Stop closes the listener, gives calls that are about to end a moment to do so, and ends what is left.
func (s *Server) Stop(patience time.Duration) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	late, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.calls.stop(late.Done())
	select {
	case <-done:
	case <-late.Done():
		s.grpc.Stop()
		<-done
	}
}

// handshake tells connections for calls from gRPC's by what they begin with. gRPC bounds its time.
type handshake struct {
	credentials.TransportCredentials
	calls *callServer
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshake) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	begin := make([]byte, len(CallPreface))
	if _, err := io.ReadFull(conn, begin); err != nil {
		return nil, nil, err
	}
	if string(begin) != CallPreface {
		return h.TransportCredentials.ServerHandshake(&begunConn{Conn: conn, begin: begin})
	}
	h.calls.serve(conn)
	return nil, nil, credentials.ErrConnDispatched
}

// Clone implements credentials.TransportCredentials.
func (h handshake) Clone() credentials.TransportCredentials { return h }

// begunConn is a connection whose beginning was read already.
type begunConn struct {
	net.Conn
	begin []byte
}

// Read implements net.Conn.
func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.begin) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.begin)
	c.begin = c.begin[n:]
	return n, nil
}
