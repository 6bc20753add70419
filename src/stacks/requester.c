/*
 * The table of return addresses (requester.h). `lock` protects writes to `names` and `count`. The
 * slots are atomic words without a lock. An unwinding that finds nothing gives REQUESTER_UNKNOWN.
 */
#include "stacks/requester.h"

#include "base/libraries.h"
#include "base/likely.h"
#include "base/lock.h"
#include "stacks/module.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>
#include <unwind.h>

#define SLOTS 1024 /* a power of two */
#define MOST_FRAMES 32
#define NAME_BYTES 32 /* as in a report */
#define RUNTIME "libcudart"

/*
 * A slot of the table: return address << 16 | value. The value is IS_REQUESTER | number of the
 * requester, or the distance from the frame's end to the next frame's end, in words of 8 bytes.
 */
#define IS_REQUESTER UINT64_C(0x8000)
#define KNOWN_BITS 16

static _Atomic uint64_t slots[SLOTS];
static char names[REQUESTERS][NAME_BYTES] = {[REQUESTER_UNKNOWN] = "unknown"};
static _Atomic unsigned count = 1;
static struct lock lock = LOCK_INITIALIZER(REQUESTERS);
static struct module_place own;

/*
 * The highest end of a frame that the unwinder has found on this thread's stack. No distance is
 * followed beyond it: a function that calls alloca() has frames of different sizes, and the
 * distance of a larger frame may lead past the end of the stack.
 */
static _Thread_local uint64_t reach __attribute__((tls_model("initial-exec")));

/*
 * Functions of libgcc_s.so.1; NULL without that library, and then all requesters are unknown. Other
 * threads may look for requesters already: `backtrace` is set last.
 */
static struct {
    _Atomic(__typeof__(&_Unwind_Backtrace)) backtrace;
    __typeof__(&_Unwind_GetIP) address;
    __typeof__(&_Unwind_GetCFA) end;
} unwinder;

static void find_function(stacks_look_up *look_up, void *library, const char *name, void *to) {
    void *found = look_up(library, name);
    memcpy(to, &found, sizeof found);
}

void requester_start(stacks_look_up *look_up) {
    module_start(look_up);
    void *library = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library && module_place_of((uintptr_t)requester_start, &own)) {
        find_function(look_up, library, "_Unwind_GetIP", &unwinder.address);
        find_function(look_up, library, "_Unwind_GetCFA", &unwinder.end);
        __typeof__(&_Unwind_Backtrace) backtrace;
        find_function(look_up, library, "_Unwind_Backtrace", &backtrace);
        atomic_store(&unwinder.backtrace, backtrace);
    }
    dlerror(); /* the program must not find an error that it did not cause */
}

const char *requester_name(unsigned number) {
    return number < atomic_load_explicit(&count, memory_order_acquire) ? names[number] : NULL;
}

void requester_forget(void) {
    for (unsigned i = 0; i < SLOTS; i++)
        atomic_store_explicit(&slots[i], 0, memory_order_relaxed);
}

/* --- the table --- */

/* The low bits of return addresses are as good as a hash, and faster. */
static unsigned slot_of(uint64_t address) {
    return (unsigned)address & (SLOTS - 1);
}

/* Returns the word of a return address, or 0. An address has one of two adjacent slots. */
static inline uint64_t find_word(uint64_t address) {
    unsigned at = slot_of(address);
    uint64_t word = atomic_load_explicit(&slots[at], memory_order_relaxed);
    if (unlikely(word >> KNOWN_BITS != address))
        word = atomic_load_explicit(&slots[at ^ 1], memory_order_relaxed);
    return word >> KNOWN_BITS == address ? word : 0;
}

/* Stores what is known of a return address, in place of another address if both slots are full. */
static void store_word(uint64_t address, uint64_t known) {
    unsigned at = slot_of(address);
    uint64_t word = atomic_load_explicit(&slots[at], memory_order_relaxed);
    bool taken = word != 0 && word >> KNOWN_BITS != address;
    atomic_store_explicit(&slots[taken ? at ^ 1 : at], address << KNOWN_BITS | known,
                          memory_order_relaxed);
}

/* --- the first call from a place --- */

/* Returns the number of a module's file name. REQUESTER_UNKNOWN if all numbers are in use. */
static unsigned number_of(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    unsigned number = 1, known;
    lock_acquire(&lock);
    known = atomic_load_explicit(&count, memory_order_relaxed);
    while (number < known && strncmp(names[number], name, NAME_BYTES - 1) != 0)
        number++;
    if (number == known && known < REQUESTERS) {
        strncpy(names[number], name, NAME_BYTES - 1);
        atomic_store_explicit(&count, known + 1, memory_order_release);
    }
    lock_release(&lock);
    return number < REQUESTERS ? number : REQUESTER_UNKNOWN;
}

static bool is_passed_over(const struct module_place *place) {
    const char *slash = strrchr(place->path, '/'), *name = slash ? slash + 1 : place->path;
    return place->start == own.start || strncmp(name, RUNTIME, strlen(RUNTIME)) == 0;
}

/* The frames from a hook's functions to the requester. */
struct frames {
    uint64_t first; /* return address of the first frame: that of requester_here() */
    unsigned count;
    struct frame {
        uint64_t address, end; /* return address; stack pointer after the return to it */
    } of[MOST_FRAMES];
    struct module_place last; /* the module of the last frame; its path is NULL if there is none */
    bool found;               /* the last frame is the requester's */
};

/*
 * Adds a frame. Ends the walk at the requester: beyond it, code may have no unwind tables. Code
 * outside all modules, which a just-in-time compiler has made, is a requester too: the unknown one.
 */
static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *with) {
    struct frames *frames = with;
    struct frame frame = {unwinder.address(context), (uint64_t)unwinder.end(context)};
    if (frames->count == 0 && frame.address != frames->first)
        return _URC_NO_REASON; /* a function of this file */
    struct module_place place;
    if (frames->count == MOST_FRAMES)
        return _URC_END_OF_STACK;
    bool in_module = module_place_of(frame.address - 1, &place);
    frames->of[frames->count++] = frame;
    frames->last = in_module ? place : (struct module_place){0};
    frames->found = !in_module || !is_passed_over(&place);
    return frames->found ? _URC_END_OF_STACK : _URC_NO_REASON;
}

/* Unwinds as a callback of libraries_visit(), so that a fork waits (libraries.h). */
static int unwind_here(struct dl_phdr_info *info, size_t size, void *with) {
    (void)info, (void)size;
    atomic_load (&unwinder.backtrace)(add_frame, with);
    return 1;
}

/*
 * Stores the distance from a frame to the next one. A return address lies in the last word before
 * the end of its frame on x86_64; on other processors, or if it lies elsewhere, every call unwinds.
 */
__attribute__((no_sanitize("address"))) static void keep_distance(const struct frame *frame) {
#if defined(__x86_64__)
    uint64_t words = (frame[1].end - frame[0].end) / 8;
    if (frame[1].end > frame[0].end && words < IS_REQUESTER &&
        *(const uint64_t *)(frame[1].end - 8) == frame[1].address)
        store_word(frame->address, words);
#else
    (void)frame;
#endif
}

/* Finds the requester by unwinding from the frame with that return address, and fills the table. */
static __attribute__((noinline)) unsigned look_up_requester(uint64_t first) {
    struct frames frames = {.first = first};
    if (atomic_load(&unwinder.backtrace))
        libraries_visit(unwind_here, &frames);
    for (unsigned i = 1; i < frames.count; i++)
        keep_distance(&frames.of[i - 1]);
    if (frames.count > 0 && frames.of[frames.count - 1].end > reach)
        reach = frames.of[frames.count - 1].end;
    if (!frames.found)
        return REQUESTER_UNKNOWN;
    unsigned number = frames.last.path ? number_of(frames.last.path) : REQUESTER_UNKNOWN;
    store_word(frames.of[frames.count - 1].address, IS_REQUESTER | number);
    return number;
}

__attribute__((noinline, no_sanitize("address"))) unsigned requester_here(void) {
    /* The end of this frame, on x86_64: clang's __builtin_dwarf_cfa() is less on aarch64. Only the
     * distances of keep_distance() are followed from it. */
    uint64_t end = (uintptr_t)__builtin_dwarf_cfa(), word;
    uint64_t first = (uintptr_t)__builtin_return_address(0), address = first;
    while ((word = find_word(address)) != 0) {
        if (word & IS_REQUESTER)
            return (unsigned)(word & (REQUESTERS - 1));
        end += (word & (IS_REQUESTER - 1)) * 8;
        if (unlikely(end > reach))
            break;
        address = *(const uint64_t *)(end - 8);
    }
    return look_up_requester(first);
}
