#include "base/json_put.h"

void json_put_raw(struct json_put *to) {
    if (to->comma)
        print_char(to->out, ',');
    to->comma = true;
}

void json_put_open(struct json_put *to, char bracket) {
    json_put_raw(to);
    print_char(to->out, bracket);
    to->comma = false;
}

void json_put_close(struct json_put *to, char bracket) {
    print_char(to->out, bracket);
    to->comma = true;
}

void json_put_line(struct json_put *to) {
    json_put_raw(to);
    print_char(to->out, '\n');
    to->comma = false;
}

void json_put_key(struct json_put *to, const char *name) {
    json_put_text(to, name);
    print_char(to->out, ':');
    to->comma = false;
}

void json_put_number_key(struct json_put *to, uint64_t number) {
    json_put_raw(to);
    print_char(to->out, '"');
    print_u64(to->out, number);
    print_str(to->out, "\":");
    to->comma = false;
}

void json_put_u64(struct json_put *to, uint64_t value) {
    json_put_raw(to);
    print_u64(to->out, value);
}

void json_put_i64(struct json_put *to, int64_t value) {
    json_put_raw(to);
    print_i64(to->out, value);
}

void json_put_bool(struct json_put *to, bool value) {
    json_put_raw(to);
    print_str(to->out, value ? "true" : "false");
}

void json_put_null(struct json_put *to) {
    json_put_raw(to);
    print_str(to->out, "null");
}

void json_put_text(struct json_put *to, const char *text) {
    json_put_raw(to);
    print_json_string(to->out, text);
}

void json_put_u64_or_null(struct json_put *to, uint64_t value, bool known) {
    if (known)
        json_put_u64(to, value);
    else
        json_put_null(to);
}

void json_put_double(struct json_put *to, double value, unsigned decimals) {
    json_put_raw(to);
    print_double(to->out, value, decimals);
}

void json_put_seconds(struct json_put *to, uint64_t nanoseconds) {
    json_put_raw(to);
    print_seconds(to->out, nanoseconds, 9);
}

void json_put_named_open(struct json_put *to, const char *name, char bracket) {
    json_put_key(to, name);
    json_put_open(to, bracket);
}

void json_put_named_u64(struct json_put *to, const char *name, uint64_t value) {
    json_put_key(to, name);
    json_put_u64(to, value);
}

void json_put_named_i64(struct json_put *to, const char *name, int64_t value) {
    json_put_key(to, name);
    json_put_i64(to, value);
}

void json_put_named_bool(struct json_put *to, const char *name, bool value) {
    json_put_key(to, name);
    json_put_bool(to, value);
}

void json_put_named_text(struct json_put *to, const char *name, const char *text) {
    json_put_key(to, name);
    json_put_text(to, text);
}
