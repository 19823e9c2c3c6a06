package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"
)

// filesConn is a connection over two pipes, the other side of a child's standard
// input and output.
type filesConn struct {
	in, out *os.File
}

func pipeConn(t *testing.T, cmd *exec.Cmd) net.Conn {
	t.Helper()
	childIn, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	in, childOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = childIn, childOut
	t.Cleanup(func() { _ = errors.Join(childIn.Close(), childOut.Close()) })
	return &filesConn{in: in, out: out}
}

func (c *filesConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *filesConn) Write(b []byte) (int, error) { return c.out.Write(b) }
func (c *filesConn) Close() error                { return errors.Join(c.in.Close(), c.out.Close()) }
func (c *filesConn) LocalAddr() net.Addr         { return &net.UnixAddr{} }
func (c *filesConn) RemoteAddr() net.Addr        { return &net.UnixAddr{} }
func (c *filesConn) SetDeadline(d time.Time) error {
	return errors.Join(c.in.SetDeadline(d), c.out.SetDeadline(d))
}
func (c *filesConn) SetReadDeadline(d time.Time) error  { return c.in.SetReadDeadline(d) }
func (c *filesConn) SetWriteDeadline(d time.Time) error { return c.out.SetWriteDeadline(d) }
