/*
 * Python frames of the calling thread, read without the GIL.
 *
 * A thread that allocates may hold a lock of a framework that other threads take after the GIL.
 * Waiting for the GIL could therefore deadlock. A thread inside a call of C code does not change
 * its own chain of frames, and no other thread does. The chain can therefore be read in place.
 *
 * From 3.13 on, _PyRuntime begins with a table of field offsets for such readers. For earlier
 * versions the offsets come from CPython's headers, which no longer change.
 *
 * The first chain is read by process_vm_readv(2), which survives a bad address. If an object in the
 * chain is no code object, this build of Python has another layout: no Python lines are recorded.
 */
#ifndef GPUCACHE_STACKS_PYTHON_H
#define GPUCACHE_STACKS_PYTHON_H

#include "stacks/stacks.h"

/*
 * A frame: the code object, the position in it, and a value that tells it from a later code object
 * at the same address.
 */
struct python_frame {
    uint64_t code;
    uint32_t offset, check;
};

struct python_line {
    const char *file, *function;
    uint32_t line;
};

/** Looks for a Python interpreter with a known layout. */
void python_start(stacks_look_up *look_up);

/**
 * Returns the version of the interpreter, 0x30b for 3.11, or 0 if no interpreter with readable
 * frames was found.
 */
unsigned python_version(void);

/** Reads up to `most` frames of the calling thread, innermost first. Returns their number. */
unsigned python_frames(struct python_frame *frames, unsigned most);

/**
 * Returns whether an address lies in the interpreter. Native frames further out then run Python
 * code.
 */
bool python_has(uint64_t address);

/**
 * Reads the text of a frame of the calling thread. The strings are never freed. Returns false if
 * memory for strings is used up. The lock of the sites is held.
 */
bool python_line(const struct python_frame *frame, struct python_line *line);

#endif
