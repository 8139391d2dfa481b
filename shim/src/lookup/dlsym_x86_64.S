/*
 * dlsym(handle, name), dlvsym(handle, name, version), dlopen(file, mode) and dlmopen(space, file,
 * mode). libc's functions determine the caller by their return address, so they are reached by a
 * jump and not by a call.
 */
#if defined(__x86_64__)
    .macro entry function, real, hooked, caller, hook
    .globl \function
    .type \function, @function
\function:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    movq %rsi, %rdi
    call mizar_hook_of
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testl %eax, %eax
    js 1f
    movq (%rsp), \caller
    movl %eax, \hook
    jmp \hooked
1:  jmpq *\real(%rip)
    .cfi_endproc
    .size \function, . - \function
    .endm

    .macro prepared function, real, prepare
    .globl \function
    .type \function, @function
\function:
    .cfi_startproc
    endbr64
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call \prepare
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    movq %rax, %rdi
    jmpq *\real(%rip)
    .cfi_endproc
    .size \function, . - \function
    .endm

    .text
    .hidden mizar_hook_of, mizar_dlsym, mizar_dlvsym, mizar_real_dlsym, mizar_real_dlvsym
    entry dlsym, mizar_real_dlsym, mizar_dlsym, %rdx, %ecx
    .hidden mizar_before_dlopen, mizar_before_dlmopen, mizar_real_dlopen, mizar_real_dlmopen
    prepared dlopen, mizar_real_dlopen, mizar_before_dlopen
    prepared dlmopen, mizar_real_dlmopen, mizar_before_dlmopen
    entry dlvsym, mizar_real_dlvsym, mizar_dlvsym, %rcx, %r8d
#endif
    .section .note.GNU-stack, "", %progbits
