/* The reuse modes: how freed memory becomes safe (option GPUCACHE_REUSE). */
#ifndef GPUCACHE_OPTIONS_REUSE_H
#define GPUCACHE_OPTIONS_REUSE_H

enum reuse {
    REUSE_BARRIER, /* by a barrier on the device, if one is allowed; otherwise by a CPU wait */
    REUSE_WAIT,    /* by a CPU wait in the allocation that needs the memory */
    REUSE_SYNC,    /* by a CPU wait in every free, as natively */
    REUSE_MODES
};

/** The modes' names in options, reports and `gpucache replay`, for value_word(). */
extern const char *const reuse_names[REUSE_MODES + 1];

#endif
