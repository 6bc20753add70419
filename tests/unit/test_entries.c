/*
 * Tests the dynamic symbols of the built library: exported and imported names, needed libraries,
 * and flags of the link. Reads the ELF file named as the argument, without loading it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the table ---- */

struct row {
    const char *symbol;
    int since;
    const char *effect, *test; /* NULL: the library only calls this entry */
};

static const struct row rows[] = {
#define ENTRY(symbol, since, parameters, arguments, effect, test) {#symbol, since, effect, test},
#define CALLED(symbol, since, parameters, arguments) {#symbol, since, NULL, NULL},
#include "driver/table/entry_points.def"
};
#define ROWS (sizeof rows / sizeof *rows)

static const struct row *row_of(const char *symbol) {
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].symbol, symbol) == 0)
            return &rows[i];
    return NULL;
}

/* Returns whether the library replaces this function of libc. */
static bool is_of_libc(const char *name) {
    static const char *const names[] = {
#define LIBC(name, result, parameters) #name,
#include "process/libc.def"
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return strcmp(name, "dlsym") == 0 || strcmp(name, "dlvsym") == 0;
}

/* ---- the file ---- */

static const char *path;
static const char *file;
static const ElfW(Ehdr) * header;

static const ElfW(Shdr) * section(unsigned type) {
    const ElfW(Shdr) *sections = (const void *)(file + header->e_shoff);
    for (unsigned i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == type)
            return &sections[i];
    fail_msg("%s has no section of type %u", path, type);
    return NULL;
}

static const char *strings_of(const ElfW(Shdr) * of) {
    const ElfW(Shdr) *sections = (const void *)(file + header->e_shoff);
    return file + sections[of->sh_link].sh_offset;
}

/* Calls check(name, defined) for every dynamic symbol that is not the name of a version. */
static void each_symbol(void (*check)(const char *name, bool defined)) {
    const ElfW(Shdr) *symbols = section(SHT_DYNSYM);
    const ElfW(Sym) *symbol = (const void *)(file + symbols->sh_offset);
    for (size_t i = 1; i < symbols->sh_size / sizeof *symbol; i++) {
        /* Linkers for aarch64 export sections too. */
        if (symbol[i].st_shndx != SHN_ABS && ELF64_ST_TYPE(symbol[i].st_info) != STT_SECTION)
            check(strings_of(symbols) + symbol[i].st_name, symbol[i].st_shndx != SHN_UNDEF);
    }
}

/* Returns the name of a version that the file defines, by its number; NULL: no such version. */
static const char *version_name(unsigned number) {
    const ElfW(Shdr) *definitions = section(SHT_GNU_verdef);
    const char *at = file + definitions->sh_offset;
    for (unsigned left = definitions->sh_info; left > 0; left--) {
        const ElfW(Verdef) *definition = (const void *)at;
        const ElfW(Verdaux) *name = (const void *)(at + definition->vd_aux);
        if (definition->vd_ndx == number && !(definition->vd_flags & VER_FLG_BASE))
            return strings_of(definitions) + name->vda_name;
        at += definition->vd_next;
    }
    return NULL;
}

/* Returns whether the file defines a symbol with this version (NULL: without one). */
static bool is_defined(const char *name, const char *version, bool by_default) {
    const ElfW(Shdr) *symbols = section(SHT_DYNSYM), *versions = section(SHT_GNU_versym);
    const ElfW(Sym) *symbol = (const void *)(file + symbols->sh_offset);
    const ElfW(Half) *numbers = (const void *)(file + versions->sh_offset);
    for (size_t i = 1; i < symbols->sh_size / sizeof *symbol; i++) {
        const char *its = version_name(numbers[i] & 0x7fff);
        if (symbol[i].st_shndx != SHN_UNDEF && !(numbers[i] & 0x8000) == by_default &&
            strcmp(strings_of(symbols) + symbol[i].st_name, name) == 0 &&
            (version ? its && strcmp(its, version) == 0 : !its))
            return true;
    }
    return false;
}

static bool found;
static const char *wanted;

static void note(const char *name, bool defined) {
    found = found || (defined && strcmp(name, wanted) == 0);
}

static bool is_exported(const char *name) {
    found = false;
    wanted = name;
    each_symbol(note);
    return found;
}

static int open_file(void **state) {
    (void)state;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        print_error("cannot read %s\n", path);
        return -1;
    }
    void *mapped = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    file = mapped;
    header = mapped;
    return mapped != MAP_FAILED && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 ? 0 : -1;
}

/* ---- tests of the table ---- */

static void no_symbol_stands_in_the_table_twice(void **state) {
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        assert_ptr_equal(row_of(rows[i].symbol), &rows[i]);
}

static void every_row_is_a_driver_entry_of_a_real_version(void **state) {
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        if (strncmp(rows[i].symbol, "cu", 2) != 0 || rows[i].since < 2000 ||
            rows[i].since > 13030 || rows[i].since % 10 != 0)
            fail_msg("%s since %d", rows[i].symbol, rows[i].since);
}

static void every_replacement_says_what_it_does_and_how_it_is_tested(void **state) {
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].effect && (rows[i].effect[0] == '\0' || rows[i].test[0] == '\0'))
            fail_msg("%s", rows[i].symbol);
}

/* ---- tests of the library ---- */

static void every_replaced_symbol_is_exported(void **state) {
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].effect && !is_exported(rows[i].symbol))
            fail_msg("%s is not exported", rows[i].symbol);
}

static void entries_that_are_only_called_are_not_exported(void **state) {
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        if (!rows[i].effect && is_exported(rows[i].symbol))
            fail_msg("%s is exported", rows[i].symbol);
}

static void the_public_interface_is_exported(void **state) {
    (void)state;
    static const char *const names[] = {"gpucache_get_stats",
                                        "gpucache_reset_peak_stats",
                                        "gpucache_empty_cache",
                                        "gpucache_set_memory_fraction",
                                        "gpucache_set_memory_limit",
                                        "gpucache_write_report",
                                        "gpucache_mark",
                                        "gpucache_version",
                                        "dlsym",
                                        "dlvsym",
                                        "sigaction",
                                        "_exit"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!is_exported(names[i]))
            fail_msg("%s is not exported", names[i]);
}

/* Another preloaded library in front of this one looks up the next dlsym() by version. */
static void dlsym_and_dlvsym_have_the_versions_of_libc(void **state) {
    (void)state;
    const char *first = header->e_machine == EM_X86_64 ? "GLIBC_2.2.5" : "GLIBC_2.17";
    assert_true(is_defined("dlsym", "GLIBC_2.34", true));
    assert_true(is_defined("dlvsym", "GLIBC_2.34", true));
    assert_true(is_defined("dlsym", first, false));
    assert_true(is_defined("dlvsym", first, false));
}

/* A program that was linked with another version of an entry would not get this library's entry. */
static void the_entries_have_no_version(void **state) {
    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].effect && !is_defined(rows[i].symbol, NULL, true))
            fail_msg("%s has a version", rows[i].symbol);
    assert_true(is_defined("gpucache_get_stats", NULL, true));
    assert_true(is_defined("sigaction", NULL, true));
    assert_true(is_defined("execve", NULL, true));
}

static void expect_known(const char *name, bool defined) {
    const struct row *row = row_of(name);
    if (defined && !(row && row->effect) && strncmp(name, "gpucache_", 9) != 0 &&
        strncmp(name, "nvmlDeviceGetMemoryInfo", 23) != 0 && !is_of_libc(name))
        fail_msg("%s is exported", name);
}

static void only_table_and_interface_are_exported(void **state) {
    (void)state;
    each_symbol(expect_known);
}

/* malloc may be the program's, or the caller of the library. stdio takes locks and memory. */
static void expect_harmless(const char *name, bool defined) {
    static const char *const names[] = {
        "malloc",        "calloc",        "realloc", "free",    "strdup",   "posix_memalign",
        "aligned_alloc", "printf",        "fprintf", "vprintf", "vfprintf", "fopen",
        "fopen64",       "fwrite",        "fputs",   "puts",    "stderr",   "stdout",
        "exit",          "_exit",         "abort",   "getenv",  "setenv",   "dlsym",
        "dlvsym",        "__tls_get_addr"};
    for (size_t i = 0; !defined && i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            fail_msg("%s is called", name);
    if (!defined && strncmp(name, "cu", 2) == 0)
        fail_msg("%s is taken from libcuda", name);
}

static void nothing_harmful_is_called(void **state) {
    (void)state;
    each_symbol(expect_harmless);
}

/* ---- tests of how it is linked ---- */

static ElfW(Xword) dynamic_value(ElfW(Sxword) tag) {
    const ElfW(Shdr) *dynamic = section(SHT_DYNAMIC);
    const ElfW(Dyn) *entry = (const void *)(file + dynamic->sh_offset);
    for (; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == tag)
            return entry->d_un.d_val;
    return 0;
}

static void only_the_c_library_is_needed(void **state) {
    (void)state;
    static const char *const allowed[] = {"libc.so.6", "libdl.so.2", "libpthread.so.0",
                                          "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"};
    const ElfW(Shdr) *dynamic = section(SHT_DYNAMIC);
    const ElfW(Dyn) *entry = (const void *)(file + dynamic->sh_offset);
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag != DT_NEEDED)
            continue;
        const char *name = strings_of(dynamic) + entry->d_un.d_val;
        bool known = false;
        for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
            known = known || strcmp(name, allowed[i]) == 0;
        if (!known)
            fail_msg("%s is needed", name);
    }
}

static void the_library_can_neither_be_unloaded_nor_bound_late(void **state) {
    (void)state;
    assert_true(dynamic_value(DT_FLAGS_1) & DF_1_NODELETE);
    assert_true(dynamic_value(DT_FLAGS_1) & DF_1_NOW);
    assert_false(dynamic_value(DT_FLAGS) & DF_TEXTREL);
    assert_int_equal(dynamic_value(DT_RPATH), 0);
    assert_int_equal(dynamic_value(DT_RUNPATH), 0);
}

static void the_library_s_memory_is_hardened(void **state) {
    (void)state;
    const ElfW(Phdr) *segments = (const void *)(file + header->e_phoff);
    bool relro = false, stack = false;
    for (unsigned i = 0; i < header->e_phnum; i++) {
        relro = relro || segments[i].p_type == PT_GNU_RELRO;
        stack = stack || (segments[i].p_type == PT_GNU_STACK && !(segments[i].p_flags & PF_X));
        assert_false((segments[i].p_flags & PF_X) && (segments[i].p_flags & PF_W));
    }
    assert_true(relro);
    assert_true(stack);
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_symbol_stands_in_the_table_twice),
        cmocka_unit_test(every_row_is_a_driver_entry_of_a_real_version),
        cmocka_unit_test(every_replacement_says_what_it_does_and_how_it_is_tested),
        cmocka_unit_test(every_replaced_symbol_is_exported),
        cmocka_unit_test(entries_that_are_only_called_are_not_exported),
        cmocka_unit_test(the_public_interface_is_exported),
        cmocka_unit_test(dlsym_and_dlvsym_have_the_versions_of_libc),
        cmocka_unit_test(the_entries_have_no_version),
        cmocka_unit_test(only_table_and_interface_are_exported),
        cmocka_unit_test(nothing_harmful_is_called),
        cmocka_unit_test(only_the_c_library_is_needed),
        cmocka_unit_test(the_library_can_neither_be_unloaded_nor_bound_late),
        cmocka_unit_test(the_library_s_memory_is_hardened),
    };
    return cmocka_run_group_tests_name("entries", tests, open_file, NULL);
}
