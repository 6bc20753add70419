/*
 * The kernels of the programs, under the names and with the parameters of the simulator's built-in
 * ones, as PTX for a real GPU. Made by nvcc -ptx -arch=compute_75 from:
 *
 *   #define EACH(i) i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < count; \
 *                   i += (unsigned long long)gridDim.x * blockDim.x
 *   fill_u32(to, value, count)           for (EACH(i)) to[i] = value;
 *   add_u32(to, a, b, count)             for (EACH(i)) to[i] = a[i] + b[i];
 *   check_u32(from, value, count, bad)   for (EACH(i)) if (from[i] != value) atomicAdd(bad, 1);
 *   spin_until(volatile flag, value)     while (*flag != value) if five seconds have passed, trap;
 *   set_u32(volatile to, value)          *to = value; __threadfence_system();
 *   sleep_us(us)                         globaltimer until us microseconds have passed
 *   fault()                              *(volatile unsigned *)0 = 1;
 *
 * The trap ends the context: a hang on a GPU shows as CUDA_ERROR_LAUNCH_FAILED (719) of a later
 * call, and leaves no kernel spinning behind a program that is killed.
 */
#ifndef GPUCACHE_TESTS_KERNELS_H
#define GPUCACHE_TESTS_KERNELS_H

static const char kernels_ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry fill_u32(\n"
    ".param .u64 fill_u32_param_0,\n.param .u32 fill_u32_param_1,\n.param .u64 "
    "fill_u32_param_2\n)\n"
    "{\n.reg .pred %p<3>;\n.reg .b32 %r<6>;\n.reg .b64 %rd<15>;\n"
    "ld.param.u64 %rd7, [fill_u32_param_0];\nld.param.u32 %r1, [fill_u32_param_1];\n"
    "ld.param.u64 %rd8, [fill_u32_param_2];\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\n"
    "cvt.u64.u32 %rd1, %r3;\nmul.wide.u32 %rd9, %r2, %r3;\nmov.u32 %r4, %tid.x;\n"
    "cvt.u64.u32 %rd10, %r4;\nadd.s64 %rd14, %rd9, %rd10;\nsetp.ge.u64 %p1, %rd14, %rd8;\n"
    "@%p1 bra $L__BB0_3;\nmov.u32 %r5, %nctaid.x;\ncvt.u64.u32 %rd11, %r5;\n"
    "mul.lo.s64 %rd3, %rd11, %rd1;\ncvta.to.global.u64 %rd4, %rd7;\n$L__BB0_2:\n"
    "shl.b64 %rd12, %rd14, 2;\nadd.s64 %rd13, %rd4, %rd12;\nst.global.u32 [%rd13], %r1;\n"
    "add.s64 %rd14, %rd14, %rd3;\nsetp.lt.u64 %p2, %rd14, %rd8;\n@%p2 bra $L__BB0_2;\n$L__BB0_3:\n"
    "ret;\n}\n.visible .entry add_u32(\n.param .u64 add_u32_param_0,\n.param .u64 "
    "add_u32_param_1,\n"
    ".param .u64 add_u32_param_2,\n.param .u64 add_u32_param_3\n)\n{\n.reg .pred %p<3>;\n"
    ".reg .b32 %r<8>;\n.reg .b64 %rd<21>;\nld.param.u64 %rd9, [add_u32_param_0];\n"
    "ld.param.u64 %rd10, [add_u32_param_1];\nld.param.u64 %rd11, [add_u32_param_2];\n"
    "ld.param.u64 %rd12, [add_u32_param_3];\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\n"
    "cvt.u64.u32 %rd1, %r2;\nmul.wide.u32 %rd13, %r1, %r2;\nmov.u32 %r3, %tid.x;\n"
    "cvt.u64.u32 %rd14, %r3;\nadd.s64 %rd20, %rd13, %rd14;\nsetp.ge.u64 %p1, %rd20, %rd12;\n"
    "@%p1 bra $L__BB1_3;\nmov.u32 %r4, %nctaid.x;\ncvt.u64.u32 %rd15, %r4;\n"
    "mul.lo.s64 %rd3, %rd15, %rd1;\ncvta.to.global.u64 %rd4, %rd10;\n"
    "cvta.to.global.u64 %rd5, %rd11;\ncvta.to.global.u64 %rd6, %rd9;\n$L__BB1_2:\n"
    "shl.b64 %rd16, %rd20, 2;\nadd.s64 %rd17, %rd5, %rd16;\nld.global.u32 %r5, [%rd17];\n"
    "add.s64 %rd18, %rd4, %rd16;\nld.global.u32 %r6, [%rd18];\nadd.s32 %r7, %r5, %r6;\n"
    "add.s64 %rd19, %rd6, %rd16;\nst.global.u32 [%rd19], %r7;\nadd.s64 %rd20, %rd20, %rd3;\n"
    "setp.lt.u64 %p2, %rd20, %rd12;\n@%p2 bra $L__BB1_2;\n$L__BB1_3:\nret;\n}\n"
    ".visible .entry check_u32(\n.param .u64 check_u32_param_0,\n.param .u32 check_u32_param_1,\n"
    ".param .u64 check_u32_param_2,\n.param .u64 check_u32_param_3\n)\n{\n.reg .pred %p<4>;\n"
    ".reg .b32 %r<8>;\n.reg .b64 %rd<17>;\nld.param.u64 %rd8, [check_u32_param_0];\n"
    "ld.param.u32 %r1, [check_u32_param_1];\nld.param.u64 %rd9, [check_u32_param_2];\n"
    "ld.param.u64 %rd10, [check_u32_param_3];\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\n"
    "cvt.u64.u32 %rd1, %r3;\nmul.wide.u32 %rd11, %r2, %r3;\nmov.u32 %r4, %tid.x;\n"
    "cvt.u64.u32 %rd12, %r4;\nadd.s64 %rd16, %rd11, %rd12;\nsetp.ge.u64 %p1, %rd16, %rd9;\n"
    "@%p1 bra $L__BB2_5;\nmov.u32 %r5, %nctaid.x;\ncvt.u64.u32 %rd13, %r5;\n"
    "mul.lo.s64 %rd3, %rd13, %rd1;\ncvta.to.global.u64 %rd4, %rd8;\n"
    "cvta.to.global.u64 %rd5, %rd10;\n$L__BB2_2:\nshl.b64 %rd14, %rd16, 2;\n"
    "add.s64 %rd15, %rd4, %rd14;\nld.global.u32 %r6, [%rd15];\nsetp.eq.s32 %p2, %r6, %r1;\n"
    "@%p2 bra $L__BB2_4;\natom.global.add.u32 %r7, [%rd5], 1;\n$L__BB2_4:\n"
    "add.s64 %rd16, %rd16, %rd3;\nsetp.lt.u64 %p3, %rd16, %rd9;\n@%p3 bra $L__BB2_2;\n$L__BB2_5:\n"
    "ret;\n}\n.visible .entry spin_until(\n.param .u64 spin_until_param_0,\n"
    ".param .u32 spin_until_param_1\n)\n{\n.reg .pred %p<4>;\n.reg .b32 %r<3>;\n.reg .b64 %rd<6>;\n"
    "ld.param.u64 %rd2, [spin_until_param_0];\nld.param.u32 %r1, [spin_until_param_1];\n"
    "cvta.to.global.u64 %rd1, %rd2;\nmov.u64 %rd3, %globaltimer;\n$L__BB3_1:\n"
    "ld.volatile.global.u32 %r2, [%rd1];\nsetp.eq.s32 %p1, %r2, %r1;\n@%p1 bra $L__BB3_2;\n"
    "mov.u64 %rd4, %globaltimer;\nsub.s64 %rd5, %rd4, %rd3;\n"
    "setp.lt.u64 %p2, %rd5, 5000000000;\n@%p2 bra $L__BB3_1;\ntrap;\n$L__BB3_2:\nret;\n}\n"
    ".visible .entry set_u32(\n"
    ".param .u64 set_u32_param_0,\n.param .u32 set_u32_param_1\n)\n{\n.reg .b32 %r<2>;\n"
    ".reg .b64 %rd<3>;\nld.param.u64 %rd1, [set_u32_param_0];\n"
    "ld.param.u32 %r1, [set_u32_param_1];\ncvta.to.global.u64 %rd2, %rd1;\n"
    "st.volatile.global.u32 [%rd2], %r1;\nmembar.sys;\nret;\n}\n.visible .entry sleep_us(\n"
    ".param .u64 sleep_us_param_0\n)\n{\n.reg .pred %p<2>;\n.reg .b64 %rd<7>;\n"
    "ld.param.u64 %rd4, [sleep_us_param_0];\nmov.u64 %rd3, %globaltimer;\n"
    "mul.lo.s64 %rd2, %rd4, 1000;\n$L__BB5_1:\nmov.u64 %rd5, %globaltimer;\n"
    "sub.s64 %rd6, %rd5, %rd3;\nsetp.lt.u64 %p1, %rd6, %rd2;\n@%p1 bra $L__BB5_1;\nret;\n}\n"
    ".visible .entry fault()\n{\n.reg .b32 %r<2>;\n.reg .b64 %rd<2>;\nmov.u64 %rd1, 0;\n"
    "mov.u32 %r1, 1;\nst.volatile.u32 [%rd1], %r1;\nret;\n}\n";

#endif
