/*
 * Builds two libraries that differ in one function, whose call lies at the same offset in both. One
 * has its frame pointer in rbp; the other has a number there that is no address.
 */
#if defined(__x86_64__)
__asm__("    .text\n"
        "    .globl stacks_replaced\n"
        "    .type stacks_replaced, @function\n"
        "stacks_replaced:\n"
        "    .cfi_startproc\n"
        "    pushq %rbp\n"
        "    .cfi_def_cfa_offset 16\n"
        "    .cfi_offset 6, -16\n"
#if defined(STACKS_FIRST)
        "    movq %rsp, %rbp\n"
        "    .cfi_def_cfa_register 6\n"
#else
        "    movl $1, %ebp\n"
#endif
        "    .balign 16\n"
        "    movq %rdi, %rax\n"
        "    movq %rsi, %rdi\n"
        "    movl $1000, %esi\n"
        "    call *%rax\n"
        "    popq %rbp\n"
        "    .cfi_def_cfa 7, 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        "    .size stacks_replaced, . - stacks_replaced\n");
#else
int stacks_replaced(int (*allocate)(unsigned long long *, unsigned long), unsigned long long *to);

int stacks_replaced(int (*allocate)(unsigned long long *, unsigned long), unsigned long long *to) {
    int r = allocate(to, 1000);
    __asm__ volatile("" ::: "memory");
    return r;
}
#endif
