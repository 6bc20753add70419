/*
 * Overrides dlsym and dlvsym: looks at the first letters of the name, then jumps to the real
 * function.
 *
 * The override jumps, because the real function reads its return address to interpret RTLD_NEXT.
 * After a call, the real function would search behind this library instead of behind the program
 * (docs/cuda-facts.md, "The loader"). Other names cost a few byte compares: sanitizer runtimes
 * call dlsym before libc is ready. Only names that begin with "cu", "nv" or "dl" reach C code. No
 * lock.
 *
 *     dlsym(handle, name)            calls loader_answer(handle, name, version or NULL, caller)
 *     dlvsym(handle, name, version)  returns its value; without one, jumps to the real function
 *
 * Labels of an override: 1 jumps to the real function; 2 asks loader_answer(); 3 finds the real
 * function, which is not known yet; 4 and 5 compare the second letter.
 *
 * Both are exported under libc's symbol versions (gpucache.map). A library that is searched before
 * this one, and overrides them, asks for dlvsym(RTLD_NEXT, "dlsym", version), which needs a
 * versioned definition. A call of that library must then reach the next versioned definition, as
 * natively: it gets the entries "by_version".
 */
#if defined(__x86_64__)
#define FIRST_VERSION GLIBC_2.2.5

    .macro keep_arguments
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rsi
    .cfi_adjust_cfa_offset 8
    push %rdx
    .cfi_adjust_cfa_offset 8
    .endm

    .macro take_arguments_back
    pop %rdx
    .cfi_adjust_cfa_offset -8
    pop %rsi
    .cfi_adjust_cfa_offset -8
    pop %rdi
    .cfi_adjust_cfa_offset -8
    .endm

    .macro override function, next, keep_version
    .globl \function
    .hidden \function
    .type \function, @function
    .p2align 4
\function:
    .cfi_startproc
    endbr64
    test %rsi, %rsi
    jz 1f
    cmpb $'c', (%rsi)
    je 4f
    cmpb $'d', (%rsi)
    je 5f
    cmpb $'n', (%rsi)
    jne 1f
    cmpb $'v', 1(%rsi)
    je 2f
1:  mov \next(%rip), %rax
    test %rax, %rax
    jz 3f
    jmp *%rax
2:  keep_arguments
    .if \keep_version
    .else
    xor %edx, %edx
    .endif
    mov 24(%rsp), %rcx
    call loader_answer
    mov %rdx, %rcx
    take_arguments_back
    test %rcx, %rcx
    jz 1b
    ret
3:  keep_arguments
    call loader_find_next
    take_arguments_back
    jmp 1b
4:  cmpb $'u', 1(%rsi)
    je 2b
    jmp 1b
5:  cmpb $'l', 1(%rsi)
    je 2b
    jmp 1b
    .cfi_endproc
    .size \function, . - \function
    .endm

#elif defined(__aarch64__)
#define FIRST_VERSION GLIBC_2.17

    .macro keep_arguments
    stp x29, x30, [sp, #-48]!
    .cfi_adjust_cfa_offset 48
    stp x0, x1, [sp, #16]
    str x2, [sp, #32]
    .endm

    .macro take_arguments_back
    ldp x0, x1, [sp, #16]
    ldr x2, [sp, #32]
    ldp x29, x30, [sp], #48
    .cfi_adjust_cfa_offset -48
    .endm

    .macro override function, next, keep_version
    .globl \function
    .hidden \function
    .type \function, %function
    .p2align 4
\function:
    .cfi_startproc
    hint #34                                /* bti c */
    cbz x1, 1f
    ldrb w9, [x1]
    cmp w9, #'c'
    b.eq 4f
    cmp w9, #'d'
    b.eq 5f
    cmp w9, #'n'
    b.ne 1f
    ldrb w9, [x1, #1]
    cmp w9, #'v'
    b.eq 2f
1:  adrp x16, \next
    ldr x16, [x16, :lo12:\next]
    cbz x16, 3f
    br x16
2:  keep_arguments
    .if \keep_version
    .else
    mov x2, xzr
    .endif
    mov x3, x30
    bl loader_answer
    mov x9, x1
    mov x10, x0
    take_arguments_back
    cbz x9, 1b
    mov x0, x10
    ret
3:  keep_arguments
    bl loader_find_next
    take_arguments_back
    b 1b
4:  ldrb w9, [x1, #1]
    cmp w9, #'u'
    b.eq 2b
    b 1b
5:  ldrb w9, [x1, #1]
    cmp w9, #'l'
    b.eq 2b
    b 1b
    .cfi_endproc
    .size \function, . - \function
    .endm

#else
#error "dlsym.S knows x86-64 and aarch64"
#endif

    /* Exports one function under two versions, as libc does. */
    .macro export name, function, first
    .globl \name\()_first, \name\()_latest
    .set \name\()_first, \function
    .set \name\()_latest, \function
    .symver \name\()_first, \name\()@\first
    .symver \name\()_latest, \name\()@@GLIBC_2.34
    .endm

    .text
    override loader_dlsym_entry, loader_next_dlsym, 0
    override loader_dlvsym_entry, loader_next_dlvsym, 1
    override loader_dlsym_by_version, loader_versioned_dlsym, 0
    override loader_dlvsym_by_version, loader_versioned_dlvsym, 1
    export dlsym, loader_dlsym_entry, FIRST_VERSION
    export dlvsym, loader_dlvsym_entry, FIRST_VERSION

    .section .note.GNU-stack, "", %progbits

#if defined(__x86_64__)
    /*
     * The linker marks the library as ready for indirect branch tracking and shadow stacks (CET)
     * only if every object is marked.
     */
    .section .note.gnu.property, "a", %note
    .p2align 3
    .long 4, 16, 5                          /* lengths, NT_GNU_PROPERTY_TYPE_0 */
    .asciz "GNU"
    .long 0xc0000002, 4, 3, 0               /* GNU_PROPERTY_X86_FEATURE_1_AND: IBT and SHSTK */
#endif
