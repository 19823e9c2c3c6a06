#include "textflag.h"

// The limiter: a whole program, of which limiterImage makes an executable file. No Go code ever calls it, and it
// knows nothing of Go. It gets the number of its own descriptor as the first byte of its first argument; one
// below lies the status pipe. Four bytes follow with seven bits each of the number of a thread of its parent, or 0. The rest
// of that argument is the program's path, the others are the program's.

#define SYS_write 1
#define SYS_sched_yield 24
#define SYS_nanosleep 35
#define SYS_execve 59
#define SYS_fcntl 72
#define SYS_getppid 110
#define SYS_exit_group 231
#define SYS_tgkill 234
#define SYS_prlimit64 302
#define ETIMEDOUT 110
#define F_SETFD 2
#define FD_CLOEXEC 1

TEXT limiter<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ    0(SP), AX           // the number of arguments
	LEAQ    8(SP), R13          // the arguments
	LEAQ    8(R13)(AX*8), R12   // behind them and a zero, the environment
	MOVQ    0(R13), R14         // the first argument
	MOVBLZX 0(R14), BX

	// Both descriptors end with the exec; this is how whoever waits knows of it.
	MOVL    $SYS_fcntl, AX
	MOVL    BX, DI
	MOVL    $F_SETFD, SI
	MOVL    $FD_CLOEXEC, DX
	SYSCALL
	SUBL    $1, BX
	MOVL    $SYS_fcntl, AX
	MOVL    BX, DI
	MOVL    $F_SETFD, SI
	MOVL    $FD_CLOEXEC, DX
	SYSCALL

	// The thread ends while this program starts, mostly sooner. Signal 0 asks; what is refused to this program is refused
	// to the one that follows, and a parent that is gone has no such thread.
	XORL    R15, R15
	MOVL    $1, R8
digit:
	SHLL    $7, R15
	MOVBLZX 0(R14)(R8*1), AX
	ANDL    $0x7F, AX
	ORL     AX, R15
	ADDL    $1, R8
	CMPL    R8, $5
	JNE     digit
	TESTL   R15, R15
	JEQ     alone
	MOVL    $SYS_getppid, AX
	SYSCALL
	MOVL    AX, R9
	MOVL    $10200, R8          // 200 turns for others, then 10 s
ask:
	MOVL    $SYS_tgkill, AX
	MOVL    R9, DI
	MOVL    R15, SI
	XORL    DX, DX
	SYSCALL
	TESTQ   AX, AX
	JNE     alone
	SUBL    $1, R8
	JEQ     stays
	CMPL    R8, $10000
	JLT     doze
	MOVL    $SYS_sched_yield, AX
	SYSCALL
	JMP     ask
doze:
	MOVQ    $0, -16(SP)
	MOVQ    $1000000, -8(SP)    // nanoseconds
	MOVL    $SYS_nanosleep, AX
	LEAQ    -16(SP), DI
	XORL    SI, SI
	SYSCALL
	JMP     ask
stays:
	MOVQ    $-ETIMEDOUT, AX
	MOVL    $2, R9              // about the thread
	JMP     failed

alone:
	MOVL    $0x400800, R8       // imageBase + imageTable
next:
	MOVQ    0(R8), SI
	CMPQ    SI, $-1
	JEQ     run
	MOVL    $SYS_prlimit64, AX
	XORL    DI, DI
	LEAQ    8(R8), DX
	XORL    R10, R10
	SYSCALL
	MOVL    $1, R9              // about a limit
	TESTQ   AX, AX
	JNE     failed
	ADDQ    $24, R8
	JMP     next

run:
	MOVL    $SYS_execve, AX
	LEAQ    5(R14), DI
	LEAQ    8(R13), SI
	MOVQ    R12, DX
	SYSCALL
	XORL    R9, R9              // about the program

failed:
	NEGQ    AX
	SHLQ    $32, R9
	ORQ     R9, AX
	MOVQ    AX, 0(SP)
	MOVL    $SYS_write, AX
	MOVL    BX, DI
	MOVQ    SP, SI
	MOVL    $8, DX
	SYSCALL
	MOVL    $SYS_exit_group, AX
	MOVL    $127, DI
	SYSCALL
	INT     $3

	// limiterEnd
	LONG    $0x21646E65
	LONG    $0x0A646E65

// func limiterCode() unsafe.Pointer
TEXT ·limiterCode(SB), NOSPLIT, $0-8
	LEAQ    limiter<>(SB), AX
	MOVQ    AX, ret+0(FP)
	RET
