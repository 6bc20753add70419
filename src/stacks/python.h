/*
 * The lines of Python that the calling thread is in, read without the GIL.
 *
 * Whoever allocates may hold a framework's lock that is only taken after the GIL: waiting for the GIL would be a
 * deadlock. But a thread that is inside a call of C does not change its own chain of frames, nor does anybody
 * else; so it can be read as it lies there. Where the fields are, CPython says itself from 3.13 on (_PyRuntime begins with
 * a table made for this), and its headers say for the versions before, which no longer change.
 *
 * The first chain is read by process_vm_readv(2), which does not crash at a bad address. If what it leads to are no code
 * objects, this is a build that lies differently, and there are no lines of it.
 */
#ifndef GPUCACHE_STACKS_PYTHON_H
#define GPUCACHE_STACKS_PYTHON_H

#include "stacks/stacks.h"

/* A frame: the code object, the place in it, and a number by which another code object at the same address is told. */
struct python_frame {
    uint64_t code;
    uint32_t offset, check;
};

struct python_line {
    const char *file, *function;
    uint32_t line;
};

/** Looks whether there is an interpreter that is known. */
void python_start(stacks_look_up *look_up);

/** Its version, 0x30b for 3.11; 0: there is none whose lines can be read. */
unsigned python_version(void);

/** Up to `most` frames of the calling thread, innermost first. */
unsigned python_frames(struct python_frame *frames, unsigned most);

/** Whether an address is the interpreter's: what stands further out in the native stack runs Python. */
bool python_has(uint64_t address);

/** What a frame that the calling thread is in says, in texts that stay; false: there is no room for them. With the
 * lock of sites. */
bool python_line(const struct python_frame *frame, struct python_line *line);

#endif
