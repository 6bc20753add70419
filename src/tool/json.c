#include "tool/json.h"

#include "tool/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 32

static size_t memory_left; /* bytes that the value being read may still take */

static struct json *read_value(const char **at, unsigned depth);

/** Returns zeroed memory, or NULL with errno EFBIG. Counts what malloc() adds, which is more than
 * most values have. */
static void *allocate(size_t bytes) {
    size_t cost = (bytes + sizeof(size_t) + 15) & ~(size_t)15;
    if (cost > memory_left) {
        errno = EFBIG;
        return NULL;
    }
    memory_left -= cost;
    return checked(calloc(1, bytes));
}

static void skip(const char **at) {
    *at += strspn(*at, " \t\r\n");
}

static bool take(const char **at, const char *word) {
    size_t length = strlen(word);
    bool there = strncmp(*at, word, length) == 0;
    *at += there ? length : 0;
    return there;
}

static void put_utf8(char **to, unsigned code) {
    if (code < 0x80) {
        *(*to)++ = (char)code;
    } else if (code < 0x800) {
        *(*to)++ = (char)(0xC0 | code >> 6);
        *(*to)++ = (char)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        *(*to)++ = (char)(0xE0 | code >> 12);
        *(*to)++ = (char)(0x80 | (code >> 6 & 63));
        *(*to)++ = (char)(0x80 | (code & 63));
    } else {
        *(*to)++ = (char)(0xF0 | code >> 18);
        *(*to)++ = (char)(0x80 | (code >> 12 & 63));
        *(*to)++ = (char)(0x80 | (code >> 6 & 63));
        *(*to)++ = (char)(0x80 | (code & 63));
    }
}

/** Reads the four digits of an escape. Returns false, and moves nothing, if there are fewer. */
static bool take_unit(const char **at, unsigned *unit) {
    char digits[5] = "";
    strncpy(digits, *at, 4);
    if (strspn(digits, "0123456789abcdefABCDEF") < 4)
        return false;
    *unit = (unsigned)strtoul(digits, NULL, 16);
    *at += 4;
    return true;
}

/**
 * Reads a character behind `\u`, which may be a pair of surrogates. Gives U+FFFD for a surrogate
 * without its other half, and for NUL, which would end the text.
 */
static bool take_character(const char **at, unsigned *code) {
    unsigned low = 0;
    if (!take_unit(at, code))
        return false;
    const char *behind = *at;
    if (*code >= 0xD800 && *code < 0xDC00 && take(&behind, "\\u") && take_unit(&behind, &low) &&
        low >= 0xDC00 && low < 0xE000) {
        *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
        *at = behind;
    }
    if (*code == 0 || (*code >= 0xD800 && *code < 0xE000))
        *code = 0xFFFD;
    return true;
}

static bool take_escape(const char **at, char **to) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *letter = **at ? strchr(letters, **at) : NULL;
    if (letter) {
        *(*to)++ = meanings[letter - letters];
        (*at)++;
        return true;
    }
    unsigned code;
    if (**at != 'u' || (++*at, !take_character(at, &code)))
        return false;
    put_utf8(to, code);
    return true;
}

/** Reads a text from behind its first quote. No character is longer than what stands for it. */
static char *read_string(const char **at) {
    size_t length = 0;
    while ((*at)[length] && (*at)[length] != '"')
        length += (*at)[length] == '\\' && (*at)[length + 1] ? 2 : 1;
    char *text = allocate(length + 1), *to = text;
    bool good = text != NULL;
    while (good && **at && **at != '"') {
        if (**at != '\\') {
            *to++ = *(*at)++;
        } else {
            ++*at;
            good = take_escape(at, &to);
        }
    }
    if (good && take(at, "\""))
        return text;
    free(text);
    return NULL;
}

static struct json *read_member(const char **at, bool named, unsigned depth) {
    char *name = NULL;
    skip(at);
    if (named) {
        name = take(at, "\"") ? read_string(at) : NULL;
        skip(at);
    }
    struct json *member = !named || (name && take(at, ":")) ? read_value(at, depth) : NULL;
    if (member)
        member->name = name;
    else
        free(name);
    return member;
}

/** Behind the bracket; members have names. */
static bool read_members(struct json *value, const char **at, bool named, const char *end,
                         unsigned depth) {
    struct json **last = &value->first;
    skip(at);
    if (take(at, end))
        return true;
    do {
        *last = read_member(at, named, depth + 1);
        if (!*last)
            return false;
        last = &(*last)->next;
        skip(at);
    } while (take(at, ","));
    return take(at, end);
}

static bool read_into(struct json *value, const char **at, unsigned depth) {
    static const char *const words[] = {"null", "false", "true"};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        if (value->kind = (enum json_kind)i, take(at, words[i]))
            return true;
    if (take(at, "{"))
        return value->kind = JSON_OBJECT, read_members(value, at, true, "}", depth);
    if (take(at, "["))
        return value->kind = JSON_ARRAY, read_members(value, at, false, "]", depth);
    if (take(at, "\""))
        return value->kind = JSON_STRING, (value->text = read_string(at)) != NULL;
    size_t length = strspn(*at, "+-.0123456789eE");
    value->kind = JSON_NUMBER;
    value->text = *at;
    *at += length;
    return length > 0;
}

static struct json *read_value(const char **at, unsigned depth) {
    struct json *value = depth < DEEPEST ? allocate(sizeof *value) : NULL;
    skip(at);
    if (value && !read_into(value, at, depth)) {
        json_free(value);
        return NULL;
    }
    return value;
}

struct json *json_read(const char **at) {
    memory_left = JSON_MEMORY + JSON_TIMES * strlen(*at);
    errno = 0;
    return read_value(at, 0);
}

void json_free(struct json *value) {
    while (value) {
        struct json *next = value->next;
        json_free(value->first);
        free(value->name);
        if (value->kind == JSON_STRING)
            free((char *)(uintptr_t)value->text);
        free(value);
        value = next;
    }
}

const struct json *json_get(const struct json *object, const char *name) {
    const struct json *at = object && object->kind == JSON_OBJECT ? object->first : NULL;
    while (at && strcmp(at->name, name) != 0)
        at = at->next;
    return at;
}

static const char *number(const struct json *value) {
    return value && value->kind == JSON_NUMBER ? value->text : "0";
}

uint64_t json_u64(const struct json *value) {
    return strtoull(number(value), NULL, 10);
}

int64_t json_i64(const struct json *value) {
    return strtoll(number(value), NULL, 10);
}

double json_double(const struct json *value) {
    return strtod(number(value), NULL);
}

bool json_is_true(const struct json *value) {
    return value && value->kind == JSON_TRUE;
}

const char *json_text(const struct json *value) {
    return value && value->kind == JSON_STRING ? value->text : "";
}

uint64_t json_seconds(const struct json *value) {
    char *end;
    uint64_t ns = strtoull(number(value), &end, 10) * 1000000000;
    uint64_t unit = 100000000;
    for (const char *at = *end == '.' ? end + 1 : ""; *at >= '0' && *at <= '9' && unit; at++) {
        ns += (uint64_t)(*at - '0') * unit;
        unit /= 10;
    }
    return ns;
}
