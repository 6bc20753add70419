/*
 * A comparison as JSON: one object a line, for scripts.
 */
#include "base/json_put.h"
#include "tool/replay/comparison.h"

static void put_decimals(struct json_put *to, const char *name, double value, unsigned decimals) {
    json_put_key(to, name);
    json_put_double(to, value, decimals);
}

static void put_history(struct json_put *to, const struct comparison *comparison) {
    const struct history *history = comparison->history;
    json_put_named_text(to, "schema", "gpucache-replay/1");
    json_put_named_text(to, "file", comparison->file);
    json_put_named_i64(to, "device", history->device);
    json_put_named_u64(to, "events", history->count);
    json_put_named_u64(to, "time_us", history->events[history->count - 1].time_us);
    json_put_named_u64(to, "periods", history->period_count);
    json_put_named_u64(to, "requested_peak_bytes", history->requested_peak);
    json_put_named_u64(to, "unknown_frees", history->unknown_frees);
    json_put_named_u64(to, "lost_frees", history->lost_frees);
    json_put_named_u64(to, "failures", history->failures);
    json_put_named_text(to, "recorded_by", history->recorded_by);
    json_put_named_u64(to, "recorded_reserved_peak_bytes", history->recorded_peak);
}

static void put_setting(struct json_put *to, const struct row *row) {
    const struct candidate *candidate = row->candidate;
    const struct rerun_setting *setting = &candidate->setting;
    json_put_named_text(to, "name", candidate->name);
    json_put_named_bool(to, "model", candidate->is_model);
    json_put_named_u64(to, "limit_bytes", setting->limit);
    if (!candidate->is_model) {
        json_put_named_text(to, "backend", setting->pages ? "pages" : "segments");
        json_put_named_text(to, "reuse", reuse_names[setting->reuse]);
        json_put_key(to, "budget_bytes");
        json_put_u64_or_null(to, setting->budget == NO_BUDGET ? 0 : setting->budget,
                             setting->budget != 0);
        json_put_named_u64(to, "delay_us", row->delay_us);
    }
}

static void put_row(struct json_put *to, const struct row *row) {
    const struct account *account = row->account;
    json_put_open(to, '{');
    put_setting(to, row);
    json_put_named_bool(to, "out_of_memory", account->out_of_memory);
    json_put_named_bool(to, "failed", account->error != 0);
    json_put_named_u64(to, "ran_events", account->at + 1);
    json_put_named_u64(to, "reserved_peak_bytes", account->reserved_peak);
    put_decimals(to, "reserved_over_requested", account_ratio(account), 6);
    json_put_named_u64(to, "pages_mapped", account->mapped);
    put_decimals(to, "pages_mapped_late", account_mapped_late(account), 2);
    json_put_named_u64(to, "last_period_mapped", account_last_mapped(account));
    json_put_named_u64(to, "driver_calls", account->calls);
    put_decimals(to, "driver_estimated_ms", (double)account->calls_ns / 1e6, 3);
    json_put_named_u64(to, "barriers", account->barriers);
    json_put_named_u64(to, "waits", account->waits);
    json_put_named_u64(to, "waited_us", account->waited_us);
    json_put_named_open(to, "idle", '[');
    for (unsigned i = 0; i < ACCOUNT_PARTS; i++)
        json_put_double(to, account_idle(account, i), 4);
    json_put_close(to, ']');
    json_put_named_open(to, "pages_mapped_by_period", '[');
    for (size_t i = 0; i < account->history->period_count; i++)
        json_put_u64(to, account->mapped_by_period[i]);
    json_put_close(to, ']');
    json_put_close(to, '}');
}

void comparison_print_json(const struct comparison *comparison, struct print *out) {
    struct json_put to = json_put_to(out);
    json_put_open(&to, '{');
    put_history(&to, comparison);
    json_put_named_open(&to, "rows", '[');
    for (size_t i = 0; i < comparison->count; i++)
        put_row(&to, &comparison->rows[i]);
    json_put_close(&to, ']');
    json_put_close(&to, '}');
    print_char(out, '\n');
}
