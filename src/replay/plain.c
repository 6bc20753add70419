/* Access to plain data (plain.h). Does not allocate. */
#include "replay/plain.h"

#include <stdlib.h>
#include <string.h>

/* Keys of a dictionary that are compared, at most. A device of a report has about 50. */
#define KEYS_MOST 96

void plain_free(struct plain *plain) {
    while (plain->lists) {
        struct plain_list *list = plain->lists;
        plain->lists = list->next;
        free(list->items);
        free(list);
    }
    *plain = (struct plain){0};
}

bool plain_is(const struct plain_value *value, const char *text) {
    return value && value->kind == PLAIN_TEXT && value->length == strlen(text) &&
           memcmp(value->text, text, value->length) == 0;
}

const struct plain_value *plain_get(const struct plain_value *dict, const char *key) {
    size_t count = dict && dict->kind == PLAIN_DICT ? dict->list->count / 2 : 0;
    for (size_t i = 0; i < count && i < KEYS_MOST; i++)
        if (plain_is(&dict->list->items[2 * i], key))
            return &dict->list->items[2 * i + 1];
    return NULL;
}

const struct plain_value *plain_item(const struct plain_value *list, size_t at) {
    return at < plain_count(list) ? &list->list->items[at] : NULL;
}

size_t plain_count(const struct plain_value *list) {
    return list && list->kind == PLAIN_LIST ? list->list->count : 0;
}

bool plain_count_read(struct plain *plain) {
    return plain->reads_left > 0 && plain->reads_left-- > 0;
}

bool plain_u64(const struct plain_value *value, uint64_t most, uint64_t *number) {
    if (!value || value->kind != PLAIN_INT || value->integer < 0 || (uint64_t)value->integer > most)
        return false;
    *number = (uint64_t)value->integer;
    return true;
}
