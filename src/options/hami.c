#include "options/hami.h"

#include "base/log.h"
#include "base/print.h"

#include <string.h>

#define PREFIX "CUDA_DEVICE_MEMORY_LIMIT"
#define VALUE_COLUMNS 40 /* part of a value that a message shows */

static char names[VALUE_DEVICES][sizeof PREFIX + 3]; /* of the variables for one device */

/**
 * Reads the part of a variable's name behind the prefix: nothing, or an underscore and the number
 * of a device. Returns the device, VALUE_DEVICES for all devices, or -1 for another variable.
 */
static int device_of(const char *rest, size_t length) {
    if (length == 0)
        return VALUE_DEVICES;
    if (length < 2 || length > 3 || rest[0] != '_' || (rest[1] == '0' && length > 2))
        return -1;
    int device = 0;
    for (size_t i = 1; i < length; i++) {
        if (rest[i] < '0' || rest[i] > '9')
            return -1;
        device = device * 10 + (rest[i] - '0');
    }
    return device < VALUE_DEVICES ? device : -1;
}

/** Reads the value of a variable. Returns 0, and reports the value, if the value is invalid. */
static uint64_t bytes_of(const char *name, const char *value) {
    const char *end = value;
    uint64_t bytes = 0;
    bool valid = value_take_size(&end, &bytes) && *end == '\0';
    if (valid && bytes >= VALUE_SMALL_LIMIT)
        return bytes;
    char buffer[VALUE_COLUMNS * 4 + 8];
    struct print out;
    print_init(&out, -1, buffer, sizeof buffer);
    print_escaped(&out, value, VALUE_COLUMNS);
    if (valid)
        log_warn("%s=%s is a limit of %llu bytes, too little for anything; sizes take k, m or g",
                 name, print_end(&out), (unsigned long long)bytes);
    else
        log_error("%s=\"%s\" makes no sense: accepted are bytes, or a size such as 8g or 8192m; it "
                  "is ignored",
                  name, print_end(&out));
    return valid ? bytes : 0;
}

void hami_load(char *const *environment, struct hami_limit limits[VALUE_DEVICES]) {
    struct hami_limit all = {0, NULL};
    memset(limits, 0, VALUE_DEVICES * sizeof *limits);
    for (; environment && *environment; environment++) {
        const char *entry = *environment;
        if (strncmp(entry, PREFIX, strlen(PREFIX)) != 0)
            continue;
        size_t length = strcspn(entry, "=");
        int device = device_of(entry + strlen(PREFIX), length - strlen(PREFIX));
        if (device < 0 || entry[length] != '=' || entry[length + 1] == '\0')
            continue;
        struct hami_limit *to = device == VALUE_DEVICES ? &all : &limits[device];
        if (to->bytes != 0)
            continue; /* of two entries with one name the first valid one counts */
        char *device_name = device == VALUE_DEVICES ? NULL : names[device];
        if (device_name)
            memcpy(device_name, entry, length);
        const char *name = device_name ? device_name : PREFIX;
        to->bytes = bytes_of(name, entry + length + 1);
        to->name = to->bytes != 0 ? name : NULL;
    }
    for (int device = 0; device < VALUE_DEVICES; device++)
        if (limits[device].bytes == 0)
            limits[device] = all;
}
