/*
 * Values of options: turns text into numbers, sizes, shares and words.
 *
 * Numbers are parsed here, because strtod and the like depend on the locale and accept signs,
 * blanks, hexadecimal and "nan". Words are compared in ASCII in every locale. Functions that begin
 * with value_take_ take as much of the text as belongs to the value, and move *at behind it. All
 * others need the whole text. All return false if the text is invalid; their result is then
 * undefined.
 */
#ifndef GPUCACHE_OPTIONS_VALUE_H
#define GPUCACHE_OPTIONS_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VALUE_DEVICES 64            /* ordinals that a value may name */
#define VALUE_PATTERN 4096          /* bytes of a file pattern, made absolute, with its NUL */
#define VALUE_WORD 64               /* characters that value_distance() compares */
#define VALUE_SMALL_LIMIT (1 << 20) /* a smaller memory limit is a mistake */
#define VALUE_LETTERS "phern%"      /* letters that a file pattern may have after % */

/** Returns whether two texts are the same, in upper or lower case. */
bool value_equal(const char *a, const char *b);

/** Returns the index of the text in a list that ends with NULL, in upper or lower case, or -1. */
int value_word(const char *text, const char *const *words);

/**
 * Returns how many characters must be added, removed or changed to turn the first `length`
 * characters of a, at most VALUE_WORD, into b. Reads at most VALUE_WORD characters of b.
 */
size_t value_distance(const char *a, size_t length, const char *b);

/** Reads a switch: on, true, yes, 1; off, false, no, 0; in upper or lower case. */
bool value_switch(const char *text, bool *on);

/** Returns whether a text is a switch in the state off, or `none`. */
bool value_is_off(const char *text);

/** Reads a number of at most `max`. */
bool value_number(const char *text, uint64_t max, uint64_t *value);

/** Reads seconds with or without decimals, as milliseconds. Zero is invalid. */
bool value_milliseconds(const char *text, uint64_t *milliseconds);

/** Takes a share above 0 and up to 1: `0.5`, `.5`, `50%`. */
bool value_take_share(const char **at, double *share);

/** Takes bytes: `8G`, `1.5gb`, `.5KiB`, `1Gi`. Decimals need a unit; zero is invalid. */
bool value_take_size(const char **at, uint64_t *bytes);

/** Takes the value of one device. */
typedef bool value_taker(const char **at, size_t device, void *context);

/**
 * Reads `value` for all devices, or `device:value,device:value` with each device once. *named: a
 * bit for each device that is named; 0 if the value is for all.
 */
bool value_per_device(const char *text, value_taker *take, void *context, uint64_t *named);

/** Reads a signal that a report can be requested by: its name (with or without SIG) or number. */
bool value_signal(const char *text, int *number);

/**
 * Reads a file pattern with known letters only, and makes it absolute, because the program may
 * change its directory before the file is opened. A text that looks like another destination or a
 * switch (`-`, `stdout`, `on`, `1`) is invalid.
 */
bool value_pattern(const char *text, char pattern[VALUE_PATTERN]);

#endif
