/*
 * Tests that pickles of plain data are read, that pickles with code are refused, and that memory
 * and reads are bounded by the length of the file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "replay/input.h"
#include "replay/plain.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES(text) (text), sizeof(text) - 1

/* Reads a pickle from a heap copy of exact length, so that sanitizers and valgrind see reads behind
 * its end. */
static int read_pickle(const char *bytes, size_t count, struct plain *pickle, char why[200]) {
    char *copy = malloc(count + 1);
    assert_non_null(copy);
    memcpy(copy + 1, bytes, count);
    why[0] = '\0';
    int r = pickle_read(copy + 1, count, SIZE_MAX, pickle, why, 200);
    free(copy); /* the tests compare no texts */
    return r;
}

static void integers_are_read(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t count;
        enum plain_kind kind;
        int64_t value;
    } cases[] = {
        {BYTES("\x80\x02K\xff."), PLAIN_INT, 255},
        {BYTES("\x80\x02M\xff\xff."), PLAIN_INT, 65535},
        {BYTES("\x80\x02J\xff\xff\xff\xff."), PLAIN_INT, -1},
        {BYTES("\x80\x02J\x00\x00\x00\x80."), PLAIN_INT, INT32_MIN},
        {BYTES("\x80\x02\x8a\x00."), PLAIN_INT, 0},
        {BYTES("\x80\x02\x8a\x01\x80."), PLAIN_INT, -128},
        {BYTES("\x80\x02\x8a\x05\x00\x00\x00\x80\x00."), PLAIN_INT, INT64_C(0x80000000)},
        {BYTES("\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), PLAIN_INT, INT64_MAX},
        {BYTES("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00."), PLAIN_INT, INT64_MAX},
        {BYTES("\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."), PLAIN_HUGE, 0},
        {BYTES("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."), PLAIN_HUGE, 0},
        {BYTES("\x80\x02\x8b\x02\x00\x00\x00\x00\x80."), PLAIN_INT, -32768},
        {BYTES("\x80\x05\x88."), PLAIN_BOOL, 1},
        {BYTES("\x80\x05\x89."), PLAIN_BOOL, 0},
        {BYTES("\x80\x05N."), PLAIN_NONE, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plain pickle;
        char why[200];
        assert_int_equal(read_pickle(cases[i].bytes, cases[i].count, &pickle, why), 0);
        assert_int_equal(pickle.root.kind, cases[i].kind);
        if (cases[i].kind != PLAIN_HUGE)
            assert_int_equal(pickle.root.integer, cases[i].value);
        plain_free(&pickle);
    }
}

static void containers_are_read(void **state) {
    (void)state;
    struct plain pickle;
    char why[200];
    /* {"a": [1, 2], "b": (3,)} with the memo, in protocol 4 */
    static const char bytes[] = "\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
                                "a\x94]\x94(K\x01K\x02"
                                "e\x8c\x01"
                                "bK\x03\x85u.";
    assert_int_equal(pickle_read(bytes, sizeof bytes - 1, SIZE_MAX, &pickle, why, sizeof why), 0);
    assert_int_equal(pickle.root.kind, PLAIN_DICT);
    const struct plain_value *list = plain_get(&pickle.root, "a");
    uint64_t number;
    assert_int_equal(plain_count(list), 2);
    assert_true(plain_u64(&list->list->items[1], 2, &number) && number == 2);
    assert_false(plain_u64(&list->list->items[1], 1, &number));
    assert_int_equal(plain_count(plain_get(&pickle.root, "b")), 1);
    assert_null(plain_get(&pickle.root, "c"));
    assert_null(plain_get(list, "a"));
    plain_free(&pickle);
}

/* A small compressed file may hold millions of lists. */
static void memory_is_bounded(void **state) {
    (void)state;
    struct plain pickle;
    static const char kinds[] = "])}N(2";
    for (size_t kind = 0; kind < sizeof kinds - 1; kind++) {
        char bytes[10000], why[200];
        memset(bytes, kinds[kind], sizeof bytes);
        memcpy(bytes, "\x80\x02N", 3);
        assert_int_equal(pickle_read(bytes, sizeof bytes, 70000, &pickle, why, sizeof why), -EFBIG);
        assert_non_null(strstr(why, "more memory"));
        plain_free(&pickle);
        assert_int_equal(pickle_read(bytes, sizeof bytes, SIZE_MAX, &pickle, why, sizeof why),
                         -EINVAL);
        assert_non_null(strstr(why, "it ends there"));
        plain_free(&pickle);
    }
}

/* Instructions that import or call are refused by name. */
static void pickles_with_code_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t count;
        const char *name;
    } cases[] = {
        {BYTES("\x80\x02"
               "cos\nsystem\n(U\x02ls\x85R."),
         ": GLOBAL would"},
        {BYTES("\x80\x04\x8c\x02os\x8c\x06system\x93."), ": STACK_GLOBAL would"},
        {BYTES("\x80\x02)R."), ": REDUCE would"},
        {BYTES("\x80\x02N}b."), ": BUILD would"},
        {BYTES("\x80\x02(ios\nsystem\n."), ": INST would"},
        {BYTES("\x80\x02(o."), ": OBJ would"},
        {BYTES("\x80\x02N)\x81."), ": NEWOBJ would"},
        {BYTES("\x80\x04N)}\x92."), ": NEWOBJ_EX would"},
        {BYTES("\x80\x02\x82\x01."), ": EXT1 would"},
        {BYTES("\x80\x02NQ."), ": BINPERSID would"},
        {BYTES("\x80\x05\x97."), ": NEXT_BUFFER would"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plain pickle;
        char why[200];
        assert_int_equal(read_pickle(cases[i].bytes, cases[i].count, &pickle, why), -EINVAL);
        assert_non_null(strstr(why, cases[i].name));
        assert_non_null(strstr(why, "refused"));
        plain_free(&pickle);
    }
}

static void broken_pickles_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t count;
    } cases[] = {
        {BYTES("\x80")},
        {BYTES("\x80\x01N.")},
        {BYTES("\x80\x06N.")},
        {BYTES("\x80\x02")},
        {BYTES("\x80\x02.")},     /* the stack is empty at the end */
        {BYTES("\x80\x02NN.")},   /* the stack has two values at the end */
        {BYTES("\x80\x02N(.")},   /* a mark is open */
        {BYTES("\x80\x02u.")},    /* no mark */
        {BYTES("\x80\x02}(Nu.")}, /* a key without a value */
        {BYTES("\x80\x02N(Ne.")}, /* append to None */
        {BYTES("\x80\x02}Na.")},  /* append to a dictionary */
        {BYTES("\x80\x02](a.")},  /* append would take a value below the mark */
        {BYTES("\x80\x02]N(at.")},
        {BYTES("\x80\x02\x86.")},               /* nothing to make a tuple of */
        {BYTES("\x80\x02h\x07.")},              /* never stored */
        {BYTES("\x80\x02Nr\xff\xff\xff\xff.")}, /* a memo of 64 GiB */
        {BYTES("\x80\x02X\xff\xff\xff\xffno.")},
        {BYTES("\x80\x02\x8b\xff\xff\xff\xff\x01.")},
        {BYTES("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.")},
        {BYTES("\x80\x02J\x01\x02\x03")},
        {BYTES("\x80\x02\xff.")},
        {BYTES("\x80\x02"
               "0.")},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plain pickle;
        char why[200];
        assert_int_equal(read_pickle(cases[i].bytes, cases[i].count, &pickle, why), -EINVAL);
        assert_non_null(strstr(why, "at byte"));
        plain_free(&pickle);
    }
}

/* Every proper prefix of a valid pickle is refused, with the position. */
static void truncated_pickles_are_refused(void **state) {
    (void)state;
    static const char bytes[] =
        "\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
        "a\x94]\x94(J\x01\x02\x03\x04M\x02\x02G\x00\x00\x00\x00\x00\x00\x00\x00"
        "e\x8c\x01"
        "b\x8a\x03\x01\x02\x03\x85u.";
    for (size_t count = 0; count < sizeof bytes - 1; count++) {
        struct plain pickle;
        char why[200];
        assert_int_equal(read_pickle(bytes, count, &pickle, why), -EINVAL);
        plain_free(&pickle);
    }
}

static uint64_t next_random(void) {
    static uint64_t x = 88172645463325252u;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

/* Snapshots with random changes are read or refused. Sanitizers must report nothing. */
static void changed_snapshots_are_read_or_refused(void **state) {
    (void)state;
    static const char bytes[] =
        "\x80\x02}(X\x08\x00\x00\x00segments]}(X\x06\x00\x00\x00"
        "deviceK\x00X\x0a\x00\x00\x00"
        "total_sizeJ\x00\x00\x40\x01X\x06\x00\x00\x00"
        "blocks]}(X\x04\x00\x00\x00sizeJ\x00\x00\x40\x01"
        "X\x05\x00\x00\x00stateX\x10\x00\x00\x00"
        "active_allocateduauaX\x0d\x00\x00\x00"
        "device_traces"
        "]]q\x01(}(X\x06\x00\x00\x00"
        "actionX\x05\x00\x00\x00"
        "allocX\x04\x00\x00\x00"
        "addrJ\x00\x00\x00\x01"
        "X\x04\x00\x00\x00sizeJ\x00\x00\x10\x00X\x07\x00\x00\x00time_usK\x05u}(X\x06\x00\x00\x00"
        "action"
        "X\x0e\x00\x00\x00"
        "free_requestedX\x04\x00\x00\x00"
        "addrJ\x00\x00\x00\x01X\x04\x00\x00\x00size"
        "J\x00\x00\x10\x00ueau.";
    size_t good = 0;
    for (unsigned round = 0; round < 20000; round++) {
        char copy[sizeof bytes];
        memcpy(copy, bytes, sizeof bytes);
        for (unsigned i = 0; i < round % 4; i++)
            copy[2 + next_random() % (sizeof bytes - 3)] = (char)next_random();
        struct input input = {copy, sizeof bytes - 1, SIZE_MAX};
        struct histories histories;
        good += input_histories(&input, &histories) == 0;
        histories_free(&histories);
    }
    assert_true(good >= 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_read),
        cmocka_unit_test(containers_are_read),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(pickles_with_code_are_refused),
        cmocka_unit_test(broken_pickles_are_refused),
        cmocka_unit_test(truncated_pickles_are_refused),
        cmocka_unit_test(changed_snapshots_are_read_or_refused),
    };
    return cmocka_run_group_tests_name("pickle", tests, NULL, NULL);
}
