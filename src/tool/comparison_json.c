/*
 * A comparison as JSON: one object a line, for scripts.
 */
#include "tool/comparison.h"

#include <errno.h>

static void print_name(struct print *out, const char *name) {
    print_format(out, ",\"%s\":", name);
}

static void print_number(struct print *out, const char *name, uint64_t value) {
    print_name(out, name);
    print_u64(out, value);
}

static void print_decimals(struct print *out, const char *name, double value, unsigned decimals) {
    print_name(out, name);
    print_double(out, value, decimals);
}

static void print_history(struct print *out, const struct comparison *comparison) {
    const struct history *history = comparison->history;
    print_str(out, "{\"schema\":\"gpucache-replay/1\",\"file\":");
    print_json_string(out, comparison->file);
    print_name(out, "device");
    print_i64(out, history->device);
    print_number(out, "events", history->count);
    print_number(out, "time_us", history->events[history->count - 1].time_us);
    print_number(out, "periods", history->period_count);
    print_number(out, "requested_peak_bytes", history->requested_peak);
    print_number(out, "unknown_frees", history->unknown_frees);
    print_number(out, "lost_frees", history->lost_frees);
    print_number(out, "failures", history->failures);
    print_name(out, "recorded_by");
    print_json_string(out, history->recorded_by);
    print_number(out, "recorded_reserved_peak_bytes", history->recorded_peak);
}

static void print_setting(struct print *out, const struct row *row) {
    const struct candidate *candidate = row->candidate;
    const struct rerun_setting *setting = &candidate->setting;
    print_str(out, "{\"name\":");
    print_json_string(out, candidate->name);
    print_format(out, ",\"model\":%s", candidate->is_model ? "true" : "false");
    print_number(out, "limit_bytes", setting->limit);
    if (!candidate->is_model) {
        print_format(out, ",\"backend\":\"%s\",\"reuse\":\"%s\"",
                     setting->pages ? "pages" : "segments", reuse_names[setting->reuse]);
        print_number(out, "budget_bytes", setting->budget);
        print_number(out, "delay_us", row->delay_us);
    }
}

static void print_row(struct print *out, const struct row *row) {
    const struct meter *meter = row->meter;
    print_setting(out, row);
    print_format(out, ",\"out_of_memory\":%s,\"failed\":%s",
                 meter->out_of_memory ? "true" : "false", meter->error != 0 ? "true" : "false");
    print_number(out, "ran_events", meter->at + 1);
    print_number(out, "reserved_peak_bytes", meter->reserved_peak);
    print_decimals(out, "reserved_over_requested", meter_ratio(meter), 6);
    print_number(out, "pages_mapped", meter->mapped);
    print_decimals(out, "pages_mapped_late", meter_mapped_late(meter), 2);
    print_number(out, "last_period_mapped", meter_last_mapped(meter));
    print_number(out, "driver_calls", meter->calls);
    print_decimals(out, "driver_estimated_ms", (double)meter->calls_ns / 1e6, 3);
    print_number(out, "barriers", meter->barriers);
    print_number(out, "waits", meter->waits);
    print_number(out, "waited_us", meter->waited_us);
    print_str(out, ",\"idle\":[");
    for (unsigned i = 0; i < METER_PARTS; i++) {
        print_str(out, i > 0 ? "," : "");
        print_double(out, meter_idle(meter, i), 4);
    }
    print_str(out, "],\"pages_mapped_by_period\":[");
    for (size_t i = 0; i < meter->history->period_count; i++) {
        print_str(out, i > 0 ? "," : "");
        print_u64(out, meter->mapped_by_period[i]);
    }
    print_str(out, "]}");
}

void comparison_print_json(const struct comparison *comparison, struct print *out) {
    print_history(out, comparison);
    print_str(out, ",\"rows\":[");
    for (size_t i = 0; i < comparison->count; i++) {
        print_str(out, i > 0 ? "," : "");
        print_row(out, &comparison->rows[i]);
    }
    print_str(out, "]}\n");
}
