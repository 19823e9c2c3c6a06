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

// Server serves an agent to connections of frames and to those of gRPC, whichever a client begins.
type Server struct {
	grpc   *grpc.Server
	frames *frameServer
}

// NewServer makes a server. The interceptors are for either kind of connection, the other options for gRPC's.
func NewServer(agent AgentServer, unary grpc.UnaryServerInterceptor, streams grpc.StreamServerInterceptor, options ...grpc.ServerOption) *Server {
	s := &Server{frames: newFrameServer(unary, streams)}
	RegisterAgentServer(s.frames, agent)
	s.grpc = grpc.NewServer(append(options, grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(streams), grpc.Creds(handshake{insecure.NewCredentials(), s.frames}))...)
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
	s.frames.stop(late.Done())
	select {
	case <-done:
	case <-late.Done():
		s.grpc.Stop()
		<-done
	}
}

// handshake tells connections of frames from gRPC's by what they begin with. gRPC bounds its time.
type handshake struct {
	credentials.TransportCredentials
	frames *frameServer
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshake) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	begin := make([]byte, len(Preface))
	if _, err := io.ReadFull(conn, begin); err != nil {
		return nil, nil, err
	}
	if string(begin) != Preface {
		return h.TransportCredentials.ServerHandshake(&begunConn{Conn: conn, begin: begin})
	}
	h.frames.serve(conn)
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
