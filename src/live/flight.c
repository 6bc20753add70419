/* Writes events into the rings of the live page. flight.h says why no lock is needed. */
#include "live/flight.h"

#include <sys/syscall.h>
#include <unistd.h>

_Atomic(struct live_page *) live_page;

static _Atomic uint32_t threads; /* that have a ring */
static _Thread_local uint32_t ring __attribute__((tls_model("initial-exec"))); /* 0: none yet */
/* End of the thread's last slow event, in ns. */
static _Thread_local uint64_t slow_end_ns __attribute__((tls_model("initial-exec")));
static _Thread_local uint32_t thread_id __attribute__((tls_model("initial-exec")));

/* Gives the calling thread its ring and its number. */
static __attribute__((noinline, cold)) void assign_ring(void) {
    thread_id = (uint32_t)syscall(SYS_gettid);
    ring = 1 + atomic_fetch_add(&threads, 1) % (FLIGHT_RINGS - 1);
}

static inline void write_event(struct flight_ring *to, uint64_t time_ns, uint64_t address,
                               uint64_t bytes, uint64_t duration_ns, enum flight_kind kind,
                               unsigned device) {
    uint64_t number = atomic_fetch_add_explicit(&to->last, 1, memory_order_relaxed) + 1;
    struct flight_event *event = &to->events[number % FLIGHT_EVENTS];
    uint64_t rest = flight_rest(thread_id, (uint16_t)kind, (uint16_t)device);
#define SET(field, value) atomic_store_explicit(&event->field, value, memory_order_relaxed)
    SET(time_ns, time_ns);
    SET(address, address);
    SET(bytes, bytes);
    SET(duration_ns, duration_ns);
    SET(rest, rest);
    SET(seal, flight_seal(number, time_ns, address, bytes, duration_ns, rest));
    SET(number, number);
#undef SET
}

void flight_block(enum flight_kind kind, unsigned device, uint64_t address, uint64_t bytes) {
    struct live_page *page = atomic_load_explicit(&live_page, memory_order_acquire);
    if (!page)
        return;
    if (__builtin_expect(ring == 0, 0))
        assign_ring();
    uint64_t coarse = clock_ns(CLOCK_MONOTONIC_COARSE);
    /* The coarse clock may lag behind the last slow event: duration_ns says how far (page.h). */
    uint64_t now = coarse < slow_end_ns ? slow_end_ns : coarse;
    write_event(&page->rings[ring], coarse, address, bytes, now - coarse, kind, device);
}

void flight_event(enum flight_kind kind, unsigned device, uint64_t address, uint64_t bytes,
                  uint64_t since) {
    struct live_page *page = atomic_load_explicit(&live_page, memory_order_acquire);
    if (!page)
        return;
    if (ring == 0)
        assign_ring();
    uint64_t now = slow_end_ns = clock_ns(CLOCK_MONOTONIC);
    write_event(&page->rings[0], since ? since : now, address, bytes, since ? now - since : 0, kind,
                device);
}
