#include "replay/plain.h"

#include <stdlib.h>
#include <string.h>

#define KEYS_MOST 64 /* keys of a dictionary that are compared, at most */

void plain_free(struct plain *pickle) {
    while (pickle->lists) {
        struct plain_list *list = pickle->lists;
        pickle->lists = list->next;
        free(list->items);
        free(list);
    }
    *pickle = (struct plain){0};
}

bool plain_is(const struct plain_value *value, const char *text) {
    return value && value->kind == PLAIN_TEXT && value->length == strlen(text) &&
           memcmp(value->text, text, value->length) == 0;
}

const struct plain_value *plain_get(const struct plain_value *dict, const char *key) {
    size_t count = dict && dict->kind == PLAIN_DICT ? dict->list->count / 2 : 0;
    for (size_t i = 0; i < count && i < KEYS_MOST; i++) {
        if (plain_is(&dict->list->items[2 * i], key)) {
            return &dict->list->items[2 * i + 1];
        }
    }
    return NULL;
}

size_t plain_count(const struct plain_value *list) {
    return list && list->kind == PLAIN_LIST ? list->list->count : 0;
}

bool plain_visit(struct plain *pickle) {
    return pickle->reads_left > 0 && pickle->reads_left-- > 0;
}

bool plain_u64(const struct plain_value *value, uint64_t most, uint64_t *number) {
    if (!value || value->kind != PLAIN_INT || value->integer < 0 ||
        (uint64_t)value->integer > most) {
        return false;
    }
    *number = (uint64_t)value->integer;
    return true;
}
