/*
 * Values of options: from text to numbers, sizes, shares, words.
 *
 * Numbers are parsed here rather than by strtod and the like, which depend on the locale and take
 * signs, blanks, hexadecimal and "nan"; words are compared in ASCII, whatever the locale. What
 * begins with value_take_ takes as much as belongs to it and moves *at behind it; everything else
 * wants the whole text. All return false, and leave what they were to set in no particular state, if
 * the text makes no sense.
 */
#ifndef GPUCACHE_PROCESS_VALUE_H
#define GPUCACHE_PROCESS_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VALUE_DEVICES 64       /* ordinals a value may name */
#define VALUE_PATTERN 4096     /* bytes of a file pattern, made absolute, with its end */
#define VALUE_WORD 64          /* characters that value_distance() compares */
#define VALUE_LETTERS "phern%" /* what a file pattern knows after % */

/** The same letters, in whatever case. */
bool value_equal(const char *a, const char *b);

/** The place of the text in a list that ends with NULL, in any case, or -1. */
int value_word(const char *text, const char *const *words);

/**
 * Returns how many characters must be added, removed or changed to turn the first `length`
 * characters of a, at most VALUE_WORD, into b. Reads at most VALUE_WORD characters of b.
 */
size_t value_distance(const char *a, size_t length, const char *b);

/** on, true, yes, 1; off, false, no, 0; in any case. */
bool value_switch(const char *text, bool *on);

/** Whether a text is a switch's way to say off, or `none`. */
bool value_is_off(const char *text);

/** A number up to max. */
bool value_number(const char *text, uint64_t max, uint64_t *value);

/** Seconds with or without decimals, as milliseconds; not none. */
bool value_milliseconds(const char *text, uint64_t *milliseconds);

/** A share above 0 and up to 1: `0.5`, `.5`, `50%`. */
bool value_take_share(const char **at, double *share);

/** Bytes: `8G`, `1.5gb`, `.5KiB`, `1Gi`; decimals only with a unit; not 0. */
bool value_take_size(const char **at, uint64_t *bytes);

/** One value that take(at, device, context) takes for the device. */
typedef bool value_taker(const char **at, size_t device, void *context);

/**
 * `value` for all devices, or `device:value,device:value`, each device once. *named: a bit for each
 * device that is named; 0 if the value is for all.
 */
bool value_per_device(const char *text, value_taker *take, void *context, uint64_t *named);

/** A signal that a program can be asked to report at, by name (with or without SIG) or number. */
bool value_signal(const char *text, int *number);

/**
 * A file pattern with known letters only, made absolute: the program may change its directory
 * before it is used. What looks like another place or like a switch (`-`, `stdout`, `on`, `1`) is
 * no file name.
 */
bool value_pattern(const char *text, char pattern[VALUE_PATTERN]);

#endif
