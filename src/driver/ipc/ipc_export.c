#include "driver/ipc/ipc_export.h"

#include "base/lock.h"
#include "driver/state/address_map.h"
#include "heap/host.h"
#include "pool/pool.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The last block that was exported at an address. `id` is that of its allocation: a token of an
 * earlier allocation at the address is invalid. */
struct export {
    uint64_t address, id, token[2];
};

static struct address_map exports; /* by address */
static struct host_freelist freelist = {.object_bytes = sizeof(struct export)};
static struct lock lock = LOCK_INITIALIZER(EXPORTS);

bool ipc_export_draw(void *number, size_t bytes) {
    return syscall(SYS_getrandom, number, bytes, 0) == (long)bytes;
}

/* Returns the export at an address, or NULL. Lock held. */
static struct export *find(uint64_t address) {
    size_t at = address_map_from(&exports, address);
    bool found = at < exports.count && exports.rows[at].start == address;
    return found ? exports.rows[at].what : NULL;
}

/* Adds an export. Returns NULL without host memory. Lock held. */
static struct export *add(uint64_t address) {
    struct export *fresh = host_freelist_get(&freelist);
    if (fresh && !address_map_add(&exports, address, fresh)) {
        host_freelist_put(&freelist, fresh);
        return NULL;
    }
    return fresh;
}

int ipc_export(uint64_t exporter, uint64_t address, struct ipc_handle *handle) {
    uint64_t id = pool_block_id(address);
    struct export fresh = {.address = address, .id = id};
    int r = 0;
    if (id == 0)
        return -ENOMEM;
    if (!ipc_export_draw(fresh.token, sizeof fresh.token))
        return -ENOSYS;
    lock_acquire(&lock);
    struct export *known = find(address);
    if (!known || known->id != id) {
        known = known ? known : add(address);
        if (known)
            *known = fresh;
    }
    if (known) {
        *handle = ipc_handle_of_pages(
            &(struct ipc_ticket){exporter, {known->token[0], known->token[1]}, address});
    } else {
        r = -ENOMEM;
    }
    lock_release(&lock);
    return r;
}

int ipc_export_open(const uint64_t token[2], uint64_t address, uint32_t first,
                    struct pool_exported *exported) {
    lock_acquire(&lock);
    const struct export *known = find(address);
    /* Compares without a branch, so that the time tells nothing about the token. */
    uint64_t differs =
        known ? (known->token[0] ^ token[0]) | (known->token[1] ^ token[1]) : UINT64_MAX;
    uint64_t id = known ? known->id : 0;
    lock_release(&lock);
    return differs == 0 ? pool_export(address, id, first, exported) : -ENOENT;
}
