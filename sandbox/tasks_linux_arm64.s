#include "textflag.h"

#define SYS_exit 93
#define SYS_futex 98
#define SYS_clone 220
// CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_SYSVSEM
#define threadFlags 0x50F00
// FUTEX_WAIT, FUTEX_PRIVATE_FLAG
#define futexWait 128

// func holdTask(word *uint32, most *unix.Timespec) int
//
// The new thread has the stack of its maker, and so must not touch it.
TEXT ·holdTask(SB), NOSPLIT, $0-24
	MOVD    word+0(FP), R19
	MOVD    most+8(FP), R20
	MOVD    $threadFlags, R0
	MOVD    ZR, R1
	MOVD    ZR, R2
	MOVD    ZR, R3
	MOVD    ZR, R4
	MOVD    $SYS_clone, R8
	SVC
	CBZ     R0, child
	MOVD    R0, ret+16(FP)
	RET

child:
	MOVD    R19, R0
	MOVD    $futexWait, R1
	MOVD    ZR, R2
	MOVD    R20, R3
	MOVD    $SYS_futex, R8
	SVC
	MOVD    ZR, R0
	MOVD    $SYS_exit, R8
	SVC
	UNDEF
