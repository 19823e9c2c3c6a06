package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"execsession.dev/agentd/wire"
)

// ErrNoExitRecord is what every *NoExitRecordError is.
var ErrNoExitRecord = errors.New("no exit record")

// NoExitRecordError says that a command's end could not be learned.
type NoExitRecordError struct {
	// ProcessID is 0 when the start itself could not be confirmed: the command may or
	// may not have been started.
	ProcessID int32
	Err       error
}

func (e *NoExitRecordError) Error() string {
	if e.ProcessID == 0 {
		return fmt.Sprintf("the start of the command could not be confirmed, so it may or may not run: %v", e.Err)
	}
	return fmt.Sprintf("no exit record of process %d could be had: %v", e.ProcessID, e.Err)
}

// Is makes errors.Is(err, ErrNoExitRecord) true.
func (e *NoExitRecordError) Is(target error) bool { return target == ErrNoExitRecord }

// Unwrap gives the cause.
func (e *NoExitRecordError) Unwrap() error { return e.Err }

// ConnectionError says that the agent could not be reached, or that its answer was lost.
type ConnectionError struct {
	// Dialing is true when nothing was sent yet, so the agent can not have done anything.
	Dialing bool
	Err     error
}

func (e *ConnectionError) Error() string {
	if e.Dialing {
		return fmt.Sprintf("connecting to the agent: %v", e.Err)
	}
	return fmt.Sprintf("the connection to the agent broke: %v", e.Err)
}

// Unwrap gives the cause.
func (e *ConnectionError) Unwrap() error { return e.Err }

// StreamError says that one of the caller's own streams could not be read or written.
type StreamError struct {
	// Name says what was being done.
	Name string
	Err  error
}

func (e *StreamError) Error() string { return e.Name + ": " + e.Err.Error() }

// Unwrap gives the cause.
func (e *StreamError) Unwrap() error { return e.Err }

// local marks errors that did not come from gRPC.
func (e *StreamError) local() {}
func (e *Error) local()       {}

// Permanent marks an error of a Dial function as one that dialing again can not mend, as
// when the pod is gone.
func Permanent(err error) error { return &permanentError{err} }

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Error is what the agent answered instead of a result.
type Error struct {
	Code codes.Code
	// Reason is one of the wire's Reason constants, or empty.
	Reason string
	// Field is the field of the request that is wrong, or empty.
	Field    string
	Message  string
	Metadata map[string]string
}

func (e *Error) Error() string {
	if e.Field == "" || strings.Contains(e.Message, e.Field) {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Reason gives the reason of the agent's *Error within err, or "".
func Reason(err error) string {
	if answered, ok := errors.AsType[*Error](err); ok {
		return answered.Reason
	}
	return ""
}

// explain turns an error of a call over l into one of this package's errors.
func (l *link) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var local interface{ local() }
	if errors.As(err, &local) {
		return err
	}
	st := status.Convert(err)
	answered := &Error{Code: st.Code(), Message: st.Message()}
	detailed := answered.addDetails(st.Details())
	if !detailed && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !detailed && (st.Code() == codes.Unavailable || l.conn.Err() != nil) {
		return &ConnectionError{Err: l.cause(errors.New(st.Message()))}
	}
	return answered
}

// addDetails fills in what the details tell and reports whether there were any: an
// error that a transport made has none.
func (e *Error) addDetails(details []any) bool {
	found := false
	for _, detail := range details {
		switch d := detail.(type) {
		case *errdetails.BadRequest:
			if violations := d.GetFieldViolations(); len(violations) > 0 {
				found = true
				e.Field = violations[0].GetField()
			}
		case *errdetails.ErrorInfo:
			if d.GetDomain() == wire.ErrorDomain {
				found = true
				e.Reason, e.Metadata = d.GetReason(), d.GetMetadata()
			}
		}
	}
	return found
}
