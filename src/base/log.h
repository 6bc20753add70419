/*
 * Messages to the user: lines on stderr, each with the prefix `gpucache: `, each one write.
 *
 * Safe anywhere: in hooks, in signal handlers, at exit. No lock; errno is kept. Formats are those
 * of print.h (%s %c %d %u %x with l, ll, z; %p %%), checked by the compiler. A line has at most
 * LOG_LINE bytes; a longer one is cut with `...`.
 */
#ifndef GPUCACHE_BASE_LOG_H
#define GPUCACHE_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>

#define LOG_LINE 512

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

/**
 * As log_line(), but at most once per process from each place in the code: log_once(LOG_LEVEL_WARN,
 * ...).
 */
#define log_once(level, ...)                                                                       \
    do {                                                                                           \
        static atomic_flag said = ATOMIC_FLAG_INIT;                                                \
        if (log_enabled(level) && !atomic_flag_test_and_set_explicit(&said, memory_order_relaxed)) \
            log_line(level, __VA_ARGS__);                                                          \
    } while (0)

/** Writes one line, if messages of this level are enabled. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool log_enabled(enum log_level level);

/**
 * Sets the highest level that is written. Before the first call, warnings and errors are written.
 */
void log_set_level(enum log_level level);

/**
 * Records which file stderr is. Called when CUDA is first used. Later calls do nothing: a stderr
 * that the program opens later belongs to the program.
 */
void log_open(void);

/**
 * Keeps a duplicate of stderr for the report at the end of the process: the program may have closed
 * its stderr by then. Called only if reports go to stderr, because the reader of a pipe waits for
 * every process that holds it.
 */
void log_keep(void);

/** Closes the duplicate in the child of a fork. */
void log_forked(void);

/** Returns a descriptor of stderr for write_in_time(), or -1 if there is none, or none any more. */
int log_fd(void);

#endif
