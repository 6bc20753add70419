/*
 * Messages to the user: lines on stderr, each prefixed `gpucache: `, each one write.
 *
 * Safe anywhere: in hooks, signal handlers, at exit; errno stays as it was. Formats are print.h's
 * (%s %c %d %u %x with l, ll, z; %p %%), checked by the compiler. A line is at most LOG_LINE bytes;
 * a longer one is cut with `...`.
 */
#ifndef GPUCACHE_PROCESS_LOG_H
#define GPUCACHE_PROCESS_LOG_H

#include <stdatomic.h>
#include <stdbool.h>

#define LOG_LINE 512

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

/** As log_line, but this place in the code speaks once in the life of the process:
 * log_once(LOG_LEVEL_WARN, ...). */
#define log_once(level, ...)                                                                       \
    do {                                                                                           \
        static atomic_flag said = ATOMIC_FLAG_INIT;                                                \
        if (log_enabled(level) && !atomic_flag_test_and_set_explicit(&said, memory_order_relaxed)) \
            log_line(level, __VA_ARGS__);                                                          \
    } while (0)

/** Writes one line, if messages of this level are wanted. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool log_enabled(enum log_level level);

/** What is wanted from now on; warnings and errors until somebody says otherwise. */
void log_set_level(enum log_level level);

/**
 * Notes which file stderr is, the first time it is called; later calls do nothing. Call it once CUDA
 * is in use. What stderr is later on is the program's own affair.
 */
void log_open(void);

/**
 * Keeps a duplicate of it for the rest of the process, for a report at its end, when the program may
 * have closed its stderr. Only where reports go there: whoever reads a pipe to its end waits for all
 * who hold it.
 */
void log_keep(void);

/** In the child of a fork: lets go of the duplicate. */
void log_forked(void);

/** Where stderr can be written to with write_in_time(), or -1: nowhere (any more). */
int log_fd(void);

#endif
