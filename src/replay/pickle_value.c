/*
 * Reads the values of a pickle (pickle.h).
 */
#include "replay/pickle.h"

#include <stdlib.h>
#include <string.h>

#define KEYS_MOST 64 /* keys of a dictionary that are compared, at most */

void pickle_free(struct pickle *pickle) {
    while (pickle->lists) {
        struct pickle_list *list = pickle->lists;
        pickle->lists = list->next;
        free(list->items);
        free(list);
    }
    *pickle = (struct pickle){0};
}

bool pickle_is(const struct pickle_value *value, const char *text) {
    return value && value->kind == PICKLE_TEXT && value->length == strlen(text) &&
           memcmp(value->text, text, value->length) == 0;
}

const struct pickle_value *pickle_get(const struct pickle_value *dict, const char *key) {
    size_t count = dict && dict->kind == PICKLE_DICT ? dict->list->count / 2 : 0;
    for (size_t i = 0; i < count && i < KEYS_MOST; i++) {
        if (pickle_is(&dict->list->items[2 * i], key)) {
            return &dict->list->items[2 * i + 1];
        }
    }
    return NULL;
}

size_t pickle_count(const struct pickle_value *list) {
    return list && list->kind == PICKLE_LIST ? list->list->count : 0;
}

bool pickle_visit(struct pickle *pickle) {
    return pickle->reads_left > 0 && pickle->reads_left-- > 0;
}

bool pickle_u64(const struct pickle_value *value, uint64_t most, uint64_t *number) {
    if (!value || value->kind != PICKLE_INT || value->integer < 0 ||
        (uint64_t)value->integer > most) {
        return false;
    }
    *number = (uint64_t)value->integer;
    return true;
}
