#include "pool/recall.h"

#include "pool/tuning.h"

#include <stddef.h>

void recall_start(struct recall *recall) {
    *recall = (struct recall){.pasts.object_bytes = sizeof(struct past_request),
                              .index.object_bytes = sizeof(uint64_t)};
}

bool recall_prepare(struct recall *recall) {
    return host_table_reach(&recall->pasts, RECALL - 1) &&
           host_table_reach(&recall->index, RECALL - 1);
}

static struct past_request *past_at(const struct recall *recall, uint64_t number) {
    return host_table_at(&recall->pasts, (uint32_t)(number % RECALL));
}

bool recall_knows(const struct recall *recall, uint64_t number) {
    /* as many again lie before the oldest one that can be compared */
    return number > 0 && recall->now - number < RECALL - RECALL_ALIKE;
}

/* A request after so many others. */
static uint32_t hash_of(const struct recall *recall, uint32_t slots) {
    uint64_t hash = slots;
    for (uint64_t i = 0; i < RECALL_ALIKE && i < recall->now; i++) {
        hash = (hash ^ hash >> 29) * 0x9E3779B97F4A7C15u + past_at(recall, recall->now - i)->slots;
    }
    return (uint32_t)((hash * 0x9E3779B97F4A7C15u >> 32) % RECALL);
}

/* Whether the request with that number was one of so many slots, and came after the same ones as now. */
static bool is_like_now(const struct recall *recall, uint64_t number, uint32_t slots) {
    if (!recall_knows(recall, number) || past_at(recall, number)->slots != slots ||
        number <= RECALL_ALIKE) {
        return false;
    }
    for (uint64_t i = 1; i <= RECALL_ALIKE; i++) {
        if (past_at(recall, number - i)->slots != past_at(recall, recall->now + 1 - i)->slots) {
            return false;
        }
    }
    return true;
}

/* The number of the past request that one now repeats; 0: none is known. */
static uint64_t place_of(const struct recall *recall, uint32_t slots) {
    uint64_t next = recall->place + 1;
    if (recall->place > 0 && recall_knows(recall, next) && next <= recall->now &&
        past_at(recall, next)->slots == slots) {
        return next;
    }
    if (recall->now < RECALL_ALIKE) {
        return 0;
    }
    uint64_t latest = *(uint64_t *)host_table_at(&recall->index, hash_of(recall, slots));
    return is_like_now(recall, latest, slots) ? latest : 0;
}

struct window *recall_expects(const struct recall *recall, uint32_t slots) {
    uint64_t place = place_of(recall, slots);
    return place > 0 ? past_at(recall, place)->window : NULL;
}

uint64_t recall_note(struct recall *recall, struct window *window, uint32_t slots) {
    uint64_t place = place_of(recall, slots);
    recall->place = place;
    *(uint64_t *)host_table_at(&recall->index, hash_of(recall, slots)) = recall->now + 1;
    recall->now++;
    *past_at(recall, recall->now) = (struct past_request){.window = window, .slots = slots};
    return recall->now;
}

void recall_forget(struct recall *recall) {
    for (uint32_t i = 0; i < RECALL && recall->now > 0; i++) {
        *past_at(recall, i) = (struct past_request){0};
        *(uint64_t *)host_table_at(&recall->index, i) = 0;
    }
    recall->now = recall->place = 0;
}
