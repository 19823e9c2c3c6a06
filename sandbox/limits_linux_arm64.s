#include "textflag.h"

// The limiter: see limits_linux_amd64.s.

#define SYS_fcntl 25
#define SYS_write 64
#define SYS_exit_group 94
#define SYS_execve 221
#define SYS_prlimit64 261
#define F_SETFD 2
#define FD_CLOEXEC 1

TEXT limiter<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVD    0(RSP), R0          // the number of arguments
	ADD     $8, RSP, R19        // the arguments
	ADD     R0<<3, R19, R20
	ADD     $8, R20, R20        // behind them and a zero, the environment
	MOVD    0(R19), R21         // the first argument
	MOVBU   0(R21), R22

	// Both descriptors end with the exec; this is how whoever waits knows of it.
	MOVD    R22, R0
	MOVD    $F_SETFD, R1
	MOVD    $FD_CLOEXEC, R2
	MOVD    $SYS_fcntl, R8
	SVC
	SUB     $1, R22, R22
	MOVD    R22, R0
	MOVD    $F_SETFD, R1
	MOVD    $FD_CLOEXEC, R2
	MOVD    $SYS_fcntl, R8
	SVC

	// imageBase + imageTable, in steps: no constant may lie behind the code.
	MOVD    $0x40, R23
	LSL     $16, R23, R23
	ADD     $0x800, R23, R23
next:
	MOVD    0(R23), R1
	CMN     $1, R1
	BEQ     run
	MOVD    ZR, R0
	ADD     $8, R23, R2
	MOVD    ZR, R3
	MOVD    $SYS_prlimit64, R8
	SVC
	MOVD    $1, R24             // about a limit
	CBNZ    R0, failed
	ADD     $24, R23, R23
	JMP     next

run:
	ADD     $1, R21, R0
	ADD     $8, R19, R1
	MOVD    R20, R2
	MOVD    $SYS_execve, R8
	SVC
	MOVD    ZR, R24             // about the program

failed:
	NEG     R0, R0
	ORR     R24<<32, R0, R0
	MOVD    R0, 0(RSP)
	MOVD    R22, R0
	MOVD    RSP, R1
	MOVD    $8, R2
	MOVD    $SYS_write, R8
	SVC
	MOVD    $127, R0
	MOVD    $SYS_exit_group, R8
	SVC

	// limiterEnd
	WORD    $0x21646E65
	WORD    $0x0A646E65

// func limiterCode() unsafe.Pointer
TEXT ·limiterCode(SB), NOSPLIT, $0-8
	MOVD    $limiter<>(SB), R0
	MOVD    R0, ret+0(FP)
	RET
