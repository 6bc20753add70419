/*
 * Makes reports over fake statistics: an array of devices replaces the module stats. Python's
 * parser checks the JSON.
 */
#ifndef GPUCACHE_TESTS_REPORTS_H
#define GPUCACHE_TESTS_REPORTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "options/options.h"
#include "report/report.h"
#include "stats/holders.h"
#include "stats/stats.h"

#include <string.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define HOST_BYTES (3 * MIB / 2)

extern struct segment_map the_map; /* of every device */

/** Adds a device of a program that has ended and leaks three blocks. Its counters agree. */
struct stats_device *add_typical(int ordinal);

/** Adds a device with the largest counters and the longest texts. */
struct stats_device *add_extreme(int ordinal);

/** Where the limit of a device comes from; NULL at first. */
const char **limit_source_of(int ordinal);

/** The result of stats_stacks(); NULL at the beginning of every test. */
extern const struct stats_stacks *remembered;

/** Removes all devices: the tear-down of every test. */
int forget_devices(void **state);

#define TEST(function) cmocka_unit_test_teardown(function, forget_devices)

/** Returns a report of this process as text. */
const char *report_in(enum report_format format);

/** Returns the text that body() writes to stderr in a child with these variables. */
const char *stderr_with(const char *const *variables, void (*body)(void));

#define STDERR_OF(body, ...) stderr_with((const char *const[]){__VA_ARGS__, NULL}, body)

/** Asserts that the text is no wider than a table, and no longer than `tables` tables. */
void assert_fits(const char *text, int tables);

#define assert_says(text, words)                                                                   \
    do {                                                                                           \
        if (!strstr(text, words))                                                                  \
            fail_msg("\"%s\" is not said in:\n%s", words, text);                                   \
    } while (0)

#define assert_silent_on(text, words)                                                              \
    do {                                                                                           \
        if (strstr(text, words))                                                                   \
            fail_msg("\"%s\" is said in:\n%s", words, text);                                       \
    } while (0)

/** Asserts that a JSON report follows the schema, and that the Python statements `more` hold. */
void assert_json(const char *report, const char *more);

#endif
