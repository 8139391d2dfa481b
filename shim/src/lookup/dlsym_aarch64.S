/* dlsym_x86_64.S for 64-bit Arm. */
#if defined(__aarch64__)
    .macro entry function, real, hooked, caller, hook
    .globl \function
    .type \function, %function
\function:
    .cfi_startproc
    stp x29, x30, [sp, #-48]!
    .cfi_def_cfa_offset 48
    .cfi_offset 29, -48
    .cfi_offset 30, -40
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    mov x0, x1
    bl mizar_hook_of
    mov w9, w0
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_def_cfa_offset 0
    .cfi_restore 29
    .cfi_restore 30
    tbnz w9, #31, 1f
    mov \caller, x30
    mov \hook, w9
    b \hooked
1:  adrp x16, \real
    ldr x16, [x16, :lo12:\real]
    br x16
    .cfi_endproc
    .size \function, . - \function
    .endm

    .macro prepared function, real, prepare
    .globl \function
    .type \function, %function
\function:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    stp x1, x2, [sp, #16]
    bl \prepare
    ldp x1, x2, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_def_cfa_offset 0
    .cfi_restore 29
    .cfi_restore 30
    adrp x16, \real
    ldr x16, [x16, :lo12:\real]
    br x16
    .cfi_endproc
    .size \function, . - \function
    .endm

    .text
    .hidden mizar_hook_of, mizar_dlsym, mizar_dlvsym, mizar_real_dlsym, mizar_real_dlvsym
    entry dlsym, mizar_real_dlsym, mizar_dlsym, x2, w3
    .hidden mizar_before_dlopen, mizar_before_dlmopen, mizar_real_dlopen, mizar_real_dlmopen
    prepared dlopen, mizar_real_dlopen, mizar_before_dlopen
    prepared dlmopen, mizar_real_dlmopen, mizar_before_dlmopen
    entry dlvsym, mizar_real_dlvsym, mizar_dlvsym, x3, w4
#endif
    .section .note.GNU-stack, "", %progbits
