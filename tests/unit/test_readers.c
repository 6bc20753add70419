/*
 * Tests the tool's readers of live pages and traces with hostile contents: a header that changes
 * after its check, and addresses with equal hashes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "live/page.h"
#include "live/place.h"
#include "tool/report/pages.h"
#include "tool/trace/trace_live_set.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LIVE_PAGE_BYTES (sizeof(struct live_page) + sizeof(struct live_slot))

static char folder[] = "/tmp/gpucache-readers-XXXXXX";
static char page_path[256];

/** Makes the page of this process, with one device, as the library does. Returns its mapping. */
static struct live_page *make_page(void) {
    char name[PLACE_NAME];
    struct live_identity self = place_self();
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("XDG_RUNTIME_DIR", folder, 1), 0);
    snprintf(page_path, sizeof page_path, "%s/gpucache", folder);
    assert_int_equal(mkdir(page_path, 0700), 0);
    place_name(&self, name);
    snprintf(page_path, sizeof page_path, "%s/gpucache/%s", folder, name);
    int fd = open(page_path, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, LIVE_PAGE_BYTES), 0);
    struct live_page *live = mmap(NULL, LIVE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(live, MAP_FAILED);
    close(fd);
    live->page_bytes = LIVE_PAGE_BYTES;
    live->slot_bytes = sizeof(struct live_slot);
    strcpy(live->version, GPUCACHE_VERSION);
    live->who = self;
    live->stack = place_stack(self.pid);
    live->real_ns = 1000;
    live->slots = 1;
    strcpy(live->command, "app");
    live->command_bytes = 4;
    live->devices[0].copies[1].stats.requested.current = 77;
    atomic_store(&live->devices[0].published, 1);
    atomic_store(&live->magic, LIVE_MAGIC);
    return live;
}

static void remove_page(void) {
    unlink(page_path);
    *strrchr(page_path, '/') = '\0';
    rmdir(page_path);
    rmdir(folder);
}

static void a_header_that_changes_after_its_check_is_not_read_again(void **state) {
    (void)state;
    struct live_page *live = make_page();
    struct stats_device device;
    static struct page_moment moment;
    struct pages pages;
    uint64_t age;
    pages_open(&pages, getpid());
    assert_int_equal(pages.count, 1);
    struct page *page = pages.list[0];
    live->slots = STATS_MAX_DEVICES;
    live->page_bytes = live->command_bytes = UINT32_MAX;
    live->who.pid = 1;
    live->stack = 7;
    live->real_ns = 5;
    assert_int_equal(page->devices, 1);
    assert_true(page_device(page, 0, &device, &age, &moment));
    assert_int_equal(device.requested.current, 77);
    for (unsigned i = 1; i < STATS_MAX_DEVICES; i++)
        assert_false(page_device(page, i, &device, &age, &moment));
    page_update_state(page);
    assert_int_equal(page->state, PAGE_RUNNING);
    assert_int_equal(page->pid, getpid());
    assert_int_equal(page_real_ns(page, 1), 1001);
    assert_int_equal(page->program.argument_count, 1);
    pages_close(&pages);
    /* with this header, the file is no live page */
    pages_open(&pages, getpid());
    assert_int_equal(pages.count, 0);
    pages_close(&pages);
    munmap(live, LIVE_PAGE_BYTES);
    remove_page();
}

/** Returns the processor time of a trace of blocks whose addresses are `step` apart. */
static double time_of_addresses(uint64_t step) {
    struct trace_live_set live_set = {0};
    clock_t begin = clock();
    for (uint64_t i = 1; i <= 30000; i++) {
        struct trace_event event = {.kind = TRACE_ALLOCATE, .address = i * step, .bytes = 512};
        trace_live_set_apply(&live_set, &event);
    }
    for (uint64_t i = 1; i <= 30000; i++) {
        struct trace_event event = {.kind = TRACE_FREE, .address = i * step};
        assert_non_null(trace_live_set_at(&live_set, TRACE_BLOCKS, i * step));
        trace_live_set_apply(&live_set, &event);
        assert_null(trace_live_set_at(&live_set, TRACE_BLOCKS, i * step));
    }
    assert_int_equal(live_set.tables[TRACE_BLOCKS].count, 0);
    trace_live_set_free(&live_set);
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

static void addresses_with_equal_hashes_take_no_longer(void **state) {
    (void)state;
    assert_true(time_of_addresses((uint64_t)1 << 49) < 20 * time_of_addresses(4096) + 0.2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_with_equal_hashes_take_no_longer),
        cmocka_unit_test(a_header_that_changes_after_its_check_is_not_read_again),
    };
    return cmocka_run_group_tests_name("readers", tests, NULL, NULL);
}
