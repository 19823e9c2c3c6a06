package agentd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"execsession.dev/agentd/wire"
	"execsession.dev/approval"
	"execsession.dev/sandbox"
	"execsession.dev/unifiedexec"
)

// fieldError says which field of a request is at fault.
func fieldError(field, format string, args ...any) error {
	return withDetails(codes.InvalidArgument, field+": "+fmt.Sprintf(format, args...), &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: fmt.Sprintf(format, args...)}},
	})
}

// reasonError carries a reason that a client may branch on.
func reasonError(code codes.Code, reason, message string, metadata map[string]string) error {
	return withDetails(code, message, &errdetails.ErrorInfo{Reason: reason, Domain: wire.ErrorDomain, Metadata: metadata})
}

func withDetails(code codes.Code, message string, detail protoadapt.MessageV1) error {
	plain := status.New(code, message)
	detailed, err := plain.WithDetails(detail)
	if err != nil {
		// Only a detail that cannot be marshalled gets here; the message still says it all.
		return plain.Err()
	}
	return detailed.Err()
}

// reasonIn returns the reason of an error made by reasonError.
func reasonIn(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// plainErrors are the errors that need no details of their own.
var plainErrors = []struct {
	err    error
	code   codes.Code
	reason string
}{
	{unifiedexec.ErrUnknownProcess, codes.NotFound, wire.ReasonUnknownProcess},
	{unifiedexec.ErrStdinClosed, codes.FailedPrecondition, wire.ReasonStdinClosed},
	{unifiedexec.ErrNotTerminal, codes.FailedPrecondition, wire.ReasonNotTerminal},
	{unifiedexec.ErrTableFull, codes.ResourceExhausted, wire.ReasonTooManyProcesses},
	{unifiedexec.ErrClosed, codes.Unavailable, wire.ReasonStopping},
	{errPolicyReplaced, codes.FailedPrecondition, wire.ReasonPolicyInvalid},
}

// toStatus turns an error of the layers below into one of the protocol.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	if typed := typedStatus(err); typed != nil {
		return typed
	}
	for _, plain := range plainErrors {
		if errors.Is(err, plain.err) {
			return reasonError(plain.code, plain.reason, err.Error(), nil)
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// typedStatus knows the errors that carry values; nil for any other.
func typedStatus(err error) error {
	var (
		engineField   *unifiedexec.FieldError
		approvalField *approval.FieldError
		start         *unifiedexec.StartError
		setup         *sandbox.SetupError
		noPolicy      *policyError
	)
	switch {
	case errors.As(err, &engineField):
		return fieldError(engineField.Field, "%s", describe(engineField.Value, engineField.Problem))
	case errors.As(err, &approvalField):
		return fieldError(approvalField.Field, "%s", describe(approvalField.Value, approvalField.Reason))
	case errors.As(err, &start):
		return reasonError(codes.FailedPrecondition, wire.ReasonStartFailed, err.Error(), map[string]string{
			"errno": unix.ErrnoName(start.Errno), "path": start.Path,
		})
	case errors.As(err, &setup):
		return reasonError(codes.FailedPrecondition, wire.ReasonSandboxSetup, err.Error(), map[string]string{"stage": setup.Stage})
	case errors.As(err, &noPolicy):
		return reasonError(codes.FailedPrecondition, wire.ReasonPolicyInvalid, err.Error(), map[string]string{"reason": noPolicy.reason})
	}
	return nil
}

func describe(value, problem string) string {
	if value == "" {
		return problem
	}
	return strconv.Quote(value) + " " + problem
}

// recovered makes a handler's panic that call's error: the other commands are not to
// blame for it.
func recovered(log *slog.Logger, method string, err *error) {
	if r := recover(); r != nil {
		log.Error("a call panicked", "method", method, "panic", r, "stack", string(debug.Stack()))
		*err = status.Errorf(codes.Internal, "%s: agentd has a bug: %v", method, r)
	}
}

func unaryInterceptor(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
		defer recovered(log, info.FullMethod, &err)
		answer, err = handler(ctx, req)
		return answer, toStatus(err)
	}
}

func streamInterceptor(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer recovered(log, info.FullMethod, &err)
		return toStatus(handler(srv, stream))
	}
}
