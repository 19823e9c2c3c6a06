#include "textflag.h"

#define SYS_clone 56
#define SYS_exit 60
#define SYS_futex 202
// CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_SYSVSEM
#define threadFlags 0x50F00
// FUTEX_WAIT, FUTEX_PRIVATE_FLAG
#define futexWait 128

// func holdTask(word *uint32, most *unix.Timespec) int
//
// The new thread has the stack of its maker, and so must not touch it.
TEXT ·holdTask(SB), NOSPLIT, $0-24
	MOVQ    word+0(FP), R12
	MOVQ    most+8(FP), R13
	MOVL    $SYS_clone, AX
	MOVL    $threadFlags, DI
	XORL    SI, SI
	XORL    DX, DX
	XORL    R10, R10
	XORL    R8, R8
	SYSCALL
	TESTQ   AX, AX
	JEQ     child
	MOVQ    AX, ret+16(FP)
	RET

child:
	MOVL    $SYS_futex, AX
	MOVQ    R12, DI
	MOVL    $futexWait, SI
	XORL    DX, DX
	MOVQ    R13, R10
	SYSCALL
	MOVL    $SYS_exit, AX
	XORL    DI, DI
	SYSCALL
	INT     $3
