/*
 * A comparison as JSON: one object a line, for scripts.
 */
#include "process/json_put.h"
#include "tool/comparison.h"

#include <errno.h>

static void put_number(struct json_put *to, const char *name, uint64_t value) {
    json_put_key(to, name);
    json_put_u64(to, value);
}

static void put_decimals(struct json_put *to, const char *name, double value, unsigned decimals) {
    json_put_key(to, name);
    json_put_double(to, value, decimals);
}

static void put_text(struct json_put *to, const char *name, const char *text) {
    json_put_key(to, name);
    json_put_text(to, text);
}

static void put_bool(struct json_put *to, const char *name, bool value) {
    json_put_key(to, name);
    json_put_bool(to, value);
}

static void put_history(struct json_put *to, const struct comparison *comparison) {
    const struct history *history = comparison->history;
    put_text(to, "schema", "gpucache-replay/1");
    put_text(to, "file", comparison->file);
    json_put_key(to, "device");
    json_put_i64(to, history->device);
    put_number(to, "events", history->count);
    put_number(to, "time_us", history->events[history->count - 1].time_us);
    put_number(to, "periods", history->period_count);
    put_number(to, "requested_peak_bytes", history->requested_peak);
    put_number(to, "unknown_frees", history->unknown_frees);
    put_number(to, "lost_frees", history->lost_frees);
    put_number(to, "failures", history->failures);
    put_text(to, "recorded_by", history->recorded_by);
    put_number(to, "recorded_reserved_peak_bytes", history->recorded_peak);
}

static void put_setting(struct json_put *to, const struct row *row) {
    const struct candidate *candidate = row->candidate;
    const struct rerun_setting *setting = &candidate->setting;
    put_text(to, "name", candidate->name);
    put_bool(to, "model", candidate->is_model);
    put_number(to, "limit_bytes", setting->limit);
    if (!candidate->is_model) {
        put_text(to, "backend", setting->pages ? "pages" : "segments");
        put_text(to, "reuse", reuse_names[setting->reuse]);
        put_number(to, "budget_bytes", setting->budget);
        put_number(to, "delay_us", row->delay_us);
    }
}

static void put_row(struct json_put *to, const struct row *row) {
    const struct meter *meter = row->meter;
    json_put_open(to, '{');
    put_setting(to, row);
    put_bool(to, "out_of_memory", meter->out_of_memory);
    put_bool(to, "failed", meter->error != 0);
    put_number(to, "ran_events", meter->at + 1);
    put_number(to, "reserved_peak_bytes", meter->reserved_peak);
    put_decimals(to, "reserved_over_requested", meter_ratio(meter), 6);
    put_number(to, "pages_mapped", meter->mapped);
    put_decimals(to, "pages_mapped_late", meter_mapped_late(meter), 2);
    put_number(to, "last_period_mapped", meter_last_mapped(meter));
    put_number(to, "driver_calls", meter->calls);
    put_decimals(to, "driver_estimated_ms", (double)meter->calls_ns / 1e6, 3);
    put_number(to, "barriers", meter->barriers);
    put_number(to, "waits", meter->waits);
    put_number(to, "waited_us", meter->waited_us);
    json_put_key(to, "idle");
    json_put_open(to, '[');
    for (unsigned i = 0; i < METER_PARTS; i++)
        json_put_double(to, meter_idle(meter, i), 4);
    json_put_close(to, ']');
    json_put_key(to, "pages_mapped_by_period");
    json_put_open(to, '[');
    for (size_t i = 0; i < meter->history->period_count; i++)
        json_put_u64(to, meter->mapped_by_period[i]);
    json_put_close(to, ']');
    json_put_close(to, '}');
}

void comparison_print_json(const struct comparison *comparison, struct print *out) {
    struct json_put to = json_put_to(out);
    json_put_open(&to, '{');
    put_history(&to, comparison);
    json_put_key(&to, "rows");
    json_put_open(&to, '[');
    for (size_t i = 0; i < comparison->count; i++)
        put_row(&to, &comparison->rows[i]);
    json_put_close(&to, ']');
    json_put_close(&to, '}');
    print_char(out, '\n');
}
