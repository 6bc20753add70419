/*
 * The live page of a process that is hostile, or was killed in the middle of a write, as gpucache
 * top, report, metrics and ctl see it.
 *
 * A page has some 200 KiB, mostly counters. To stay short, an input is a list of changes of a whole
 * page: a place (4 bytes), a count (1 byte), and so many bytes. The target then corrects the seals
 * of the flight recorder's events.
 */
#include "fuzz.h"

#include "tool/report/pages.c"

#include "tool/report/parsed_report.h"

#define DEVICES 2
#define BYTES (sizeof(struct live_page) + DEVICES * sizeof(struct live_slot))

static char name[PLACE_NAME];
static int file = -1, folder;

/** Makes the page as the library does, of this process. */
static void make_whole(struct live_page *page) {
    struct live_identity self = place_self();
    memset(page, 0, BYTES);
    page->page_bytes = (uint32_t)BYTES;
    page->slot_bytes = sizeof(struct live_slot);
    strcpy(page->version, GPUCACHE_VERSION);
    page->who = self;
    page->slots = DEVICES;
    page->rank = -1;
    strcpy(page->name, "app");
    strcpy(page->host, "node");
    memcpy(page->command, "app\0--steps", 12);
    page->command_bytes = 12;
    for (unsigned i = 0; i < DEVICES; i++) {
        struct live_device *device = &page->devices[i].copies[1];
        device->stats.ordinal = (int)i;
        strcpy(device->stats.name, "NVIDIA H200");
        strcpy(device->backend, "pages");
        device->stats.requested = (struct stats_metric){1 << 20, 3 << 20, 9 << 20, 8 << 20};
        device->stats.total_bytes = (uint64_t)140 << 30;
        device->map.count = 3;
        device->map.pieces[1].units = 64;
        atomic_store(&page->devices[i].published, 1);
    }
    atomic_store(&page->magic, LIVE_MAGIC);
}

static void seal_events(struct live_page *page) {
    for (unsigned ring = 0; ring < FLIGHT_RINGS; ring++) {
        for (unsigned i = 0; i < FLIGHT_EVENTS; i++) {
            struct flight_event *event = &page->rings[ring].events[i];
            if (event->number != 0)
                event->seal = flight_seal(event->number, event->time_ns, event->address,
                                          event->bytes, event->duration_ns, event->rest);
        }
    }
}

static void make_file(const uint8_t *data, size_t size) {
    static struct live_page *whole, *page;
    char path[] = "/tmp/gpucache-fuzz-XXXXXX";
    struct fuzz_input input = {data, size};
    if (!whole) {
        struct live_identity self = place_self();
        place_name(&self, name);
        whole = checked(calloc(1, BYTES));
        make_whole(whole);
        FUZZ_CHECK(mkdtemp(path));
        folder = open(path, O_DIRECTORY | O_CLOEXEC);
        file = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        FUZZ_CHECK(file >= 0 && ftruncate(file, (off_t)BYTES) == 0);
        page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        FUZZ_CHECK(page != MAP_FAILED);
    }
    FUZZ_CHECK(ftruncate(file, (off_t)BYTES) == 0);
    memcpy(page, whole, BYTES);
    unsigned shorter = fuzz_take_byte(&input);
    while (input.left > 0) {
        uint32_t at;
        fuzz_take(&input, &at, sizeof at);
        size_t count = fuzz_take_byte(&input);
        at %= (uint32_t)(BYTES - 255);
        fuzz_take(&input, (char *)page + at, count);
    }
    seal_events(page);
    if (shorter > 250)
        FUZZ_CHECK(ftruncate(file, (off_t)(BYTES - 4096 * (shorter - 250))) == 0);
}

static void print_page(struct page *page) {
    static char text[1 << 20];
    struct parsed_reports reports = {0};
    struct print out;
    parsed_reports_read_page(&reports, page);
    print_init(&out, -1, text, sizeof text);
    parsed_report_print(reports.list[0], REPORT_TEXT, &out);
    page_print_events(page, &out, 20);
    fuzz_check_plain(print_end(&out));
    print_init(&out, -1, text, sizeof text);
    parsed_report_print(reports.list[0], REPORT_JSON, &out);
    print_end(&out);
    FUZZ_CHECK(out.error == 0 && out.used < sizeof text - 1);
    fuzz_check_json(text, out.used);
    print_init(&out, -1, text, sizeof text);
    parsed_reports_print_table(&reports, &out);
    fuzz_check_plain(print_end(&out));
    fuzz_check_plain(reports.list[0]->note);
    parsed_reports_free(&reports);
}

int fuzz_one(const uint8_t *data, size_t size) {
    bool other_version = false;
    make_file(data, size);
    struct page *page = open_page(folder, name, &other_version);
    if (!page)
        return 0;
    FUZZ_CHECK(page->devices <= STATS_MAX_DEVICES && strlen(page->version) <= 16);
    FUZZ_CHECK(page->devices * sizeof(struct live_slot) <= page->bytes - sizeof *page->live);
    FUZZ_CHECK(page->program.argument_count <= PROGRAM_ARGUMENTS);
    print_page(page);
    FUZZ_CHECK(page_state_words(page));
    close_page(page);
    return 0;
}
