/*
 * Runs the models (models.h): the memory of the driver, the policies, and the replay. One thread
 * runs a model, so there is no lock. Functions that allocate return NULL if the limit refuses the
 * memory. Invariant: each free chunk is in the tree of its pool, and no two neighbours are free.
 */
#include "replay/models.h"

#include "heap/page.h"
#include "replay/chunks.h"
#include "replay/memory.h"

#include <stdlib.h>

#define UNIT 512
#define MIB ((uint64_t)1 << 20)
#define SMALL_MOST MIB
#define SMALL_SEGMENT (2 * MIB)
#define LARGE_SEGMENT (20 * MIB)
#define SHARED_MOST (10 * MIB) /* below it, a LARGE_SEGMENT serves several blocks */
#define WHOLE_TIMES 2          /* MODEL_WHOLE: a block is shorter than so many times its request */
#define RANGE (LARGE_SEGMENT << 22) /* addresses of a growing range: a multiple of page_of() */

const char *const model_names[MODELS + 1] = {"PyTorch", "PyTorch expandable", "whole blocks",
                                             "cudaMalloc", NULL};

/* The state of a model. Stream s has two pools: 2s for small blocks, 2s + 1 for large ones. */
struct state {
    enum model model;
    struct account *account;
    uint64_t limit, next_address;
    struct chunk **trees, **tops; /* by pool: free chunks; the last chunk of the range, or NULL */
    uint32_t pools;
    struct chunk **live; /* by number of the allocation */
};

static uint64_t round_up(uint64_t bytes, uint64_t to) {
    return (bytes + to - 1) / to * to;
}

static uint64_t page_of(uint32_t pool) {
    return pool % 2 ? LARGE_SEGMENT : SMALL_SEGMENT;
}

/* ---- memory of the driver ---- */

static void return_segment(struct state *state, struct chunk *chunk) {
    account_give(state->account, chunk->bytes);
    account_call_for(state->account, chunk->bytes);
    chunks_remove(&state->trees[chunk->pool], chunk);
    free(chunk);
}

/** Finds a segment without a live block: a free chunk without neighbours. Returns NULL if none. */
static struct chunk *idle_segment(struct chunk *tree) {
    if (!tree || (!tree->before && !tree->behind))
        return tree;
    struct chunk *found = idle_segment(tree->left);
    return found ? found : idle_segment(tree->right);
}

/**
 * Gives the whole pages of a free chunk to the driver. Returns false if the chunk has none. The
 * addresses are not used again, so the chunks on both sides are no longer neighbours.
 */
static bool return_pages(struct state *state, struct chunk *chunk) {
    uint64_t page = page_of(chunk->pool);
    uint64_t begin = round_up(chunk->address, page);
    uint64_t end = (chunk->address + chunk->bytes) / page * page;
    if (end <= begin)
        return false;
    chunks_remove(&state->trees[chunk->pool], chunk);
    if (state->tops[chunk->pool] == chunk)
        state->tops[chunk->pool] = NULL;
    struct chunk *rest =
        end < chunk->address + chunk->bytes ? chunk_cut(chunk, end - chunk->address) : NULL;
    struct chunk *gone = begin > chunk->address ? chunk_cut(chunk, begin - chunk->address) : chunk;
    if (gone != chunk) {
        chunk->behind = NULL;
        chunks_insert(&state->trees[chunk->pool], chunk);
    } else if (gone->before) {
        gone->before->behind = NULL;
    }
    if (gone->behind)
        gone->behind->before = NULL;
    if (rest)
        chunks_insert(&state->trees[rest->pool], rest);
    free(gone);
    account_give(state->account, end - begin);
    account_call(state->account, (end - begin) / page, COST_UNMAP_NS + COST_RELEASE_NS);
    return true;
}

static bool return_pages_of(struct state *state, struct chunk *tree) {
    return tree && (return_pages(state, tree) || return_pages_of(state, tree->left) ||
                    return_pages_of(state, tree->right));
}

static void return_idle(struct state *state) {
    for (uint32_t i = 0; i < state->pools; i++) {
        struct chunk *idle;
        if (state->model == MODEL_EXPANDABLE) {
            while (return_pages_of(state, state->trees[i])) {
            }
        } else {
            while ((idle = idle_segment(state->trees[i])))
                return_segment(state, idle);
        }
    }
}

/** Returns whether the limit allows so many more bytes. Gives idle memory back first, if needed. */
static bool fits_limit(struct state *state, uint64_t bytes) {
    if (!state->limit || state->account->reserved + bytes <= state->limit)
        return true;
    return_idle(state);
    return state->account->reserved + bytes <= state->limit;
}

/** Allocates a segment from the driver, as a free chunk that is in no tree. */
static struct chunk *take_segment(struct state *state, uint32_t pool, uint64_t bytes) {
    uint64_t address = state->next_address;
    if (!fits_limit(state, bytes))
        return NULL;
    account_take(state->account, bytes);
    account_call_for(state->account, bytes);
    state->next_address += round_up(bytes, LARGE_SEGMENT) + LARGE_SEGMENT;
    return chunk_new(address, bytes, pool);
}

/** Returns the bytes by which a range must grow for a block at its end. A free end counts. It is
 * shorter than `bytes`, because best_fit() found no chunk. */
static uint64_t growth_for(const struct state *state, uint32_t pool, uint64_t bytes) {
    const struct chunk *top = state->tops[pool];
    return round_up(bytes - (top && top->free ? top->bytes : 0), page_of(pool));
}

/** Grows a range at its end. Returns its last chunk, which is in no tree. */
static struct chunk *grow_range(struct state *state, uint32_t pool, uint64_t bytes) {
    /* fits_limit() may return the free end, which changes the growth. */
    fits_limit(state, growth_for(state, pool, bytes));
    uint64_t more = growth_for(state, pool, bytes);
    struct chunk *top = state->tops[pool];
    if (state->limit && state->account->reserved + more > state->limit)
        return NULL;
    account_take(state->account, more);
    account_call(state->account, more / page_of(pool), COST_CREATE_NS + COST_MAP_NS);
    account_map(state->account, more / PAGE_BYTES);
    if (top && top->free) {
        chunks_remove(&state->trees[pool], top);
        top->bytes += more;
        return top;
    }
    struct chunk *chunk =
        chunk_new(top ? top->address + top->bytes : state->next_address, more, pool);
    if (top) {
        chunk->before = top;
        top->behind = chunk;
    } else {
        state->next_address += RANGE;
    }
    state->tops[pool] = chunk;
    return chunk;
}

/* ---- policies ---- */

static uint64_t segment_for(uint64_t bytes) {
    return bytes <= SMALL_MOST   ? SMALL_SEGMENT
           : bytes < SHARED_MOST ? LARGE_SEGMENT
                                 : round_up(bytes, SMALL_SEGMENT);
}

/** Returns the best fit. Uses the end of a growing range only if no other chunk fits. */
static struct chunk *best_fit(struct state *state, uint32_t pool, uint64_t bytes) {
    struct chunk *top = state->tops[pool], *found;
    bool apart = state->model == MODEL_EXPANDABLE && top && top->free;
    if (apart)
        chunks_remove(&state->trees[pool], top);
    found = chunks_at_least(state->trees[pool], bytes);
    if (apart) {
        chunks_insert(&state->trees[pool], top);
        found = found || top->bytes < bytes ? found : top;
    }
    return found;
}

static void cut_rest(struct state *state, struct chunk *chunk, uint64_t bytes) {
    bool small = chunk->pool % 2 == 0;
    bool always = small || state->model != MODEL_PYTORCH;
    uint64_t rest = chunk->bytes - bytes;
    if (always ? rest < UNIT : rest <= SMALL_MOST)
        return;
    struct chunk *cut = chunk_cut(chunk, bytes);
    if (state->tops[chunk->pool] == chunk)
        state->tops[chunk->pool] = cut;
    chunks_insert(&state->trees[chunk->pool], cut);
}

static struct chunk *allocate_cut(struct state *state, uint32_t stream, uint64_t bytes) {
    bytes = round_up(bytes, UNIT);
    uint32_t pool = 2 * stream + (bytes > SMALL_MOST);
    struct chunk *chunk = best_fit(state, pool, bytes);
    if (chunk) {
        chunks_remove(&state->trees[pool], chunk);
    } else if (state->model == MODEL_EXPANDABLE) {
        chunk = grow_range(state, pool, bytes);
    } else {
        uint64_t segment = state->model == MODEL_NATIVE ? SMALL_SEGMENT : segment_for(bytes);
        chunk = take_segment(state, pool, segment);
    }
    if (chunk)
        cut_rest(state, chunk, bytes);
    return chunk;
}

/** Allocates the best fit of the stream if it is less than twice as long, or else a new segment. */
static struct chunk *allocate_whole(struct state *state, uint32_t stream, uint64_t bytes) {
    bytes = round_up(bytes, UNIT);
    uint32_t pool = 2 * stream;
    struct chunk *chunk = chunks_at_least(state->trees[pool], bytes);
    if (!chunk || chunk->bytes >= WHOLE_TIMES * bytes)
        return take_segment(state, pool, bytes);
    chunks_remove(&state->trees[pool], chunk);
    return chunk;
}

static struct chunk *allocate(struct state *state, const struct history_event *event) {
    switch (state->model) {
    case MODEL_WHOLE:
        return allocate_whole(state, event->stream, event->bytes);
    case MODEL_NATIVE:
        if (event->bytes > SMALL_MOST)
            return take_segment(state, 1, round_up(event->bytes, SMALL_SEGMENT));
        return allocate_cut(state, 0, event->bytes);
    default:
        return allocate_cut(state, event->stream, event->bytes);
    }
}

/**
 * Frees a block and merges it with free neighbours. MODEL_NATIVE then returns an idle segment.
 */
static void release(struct state *state, struct chunk *chunk) {
    struct chunk **tree = &state->trees[chunk->pool];
    if (chunk->before && chunk->before->free) {
        struct chunk *before = chunk->before;
        if (state->tops[chunk->pool] == chunk)
            state->tops[chunk->pool] = before;
        chunks_remove(tree, before);
        chunk_merge(before);
        chunk = before;
    }
    if (chunk->behind && chunk->behind->free) {
        if (state->tops[chunk->pool] == chunk->behind)
            state->tops[chunk->pool] = chunk;
        chunks_remove(tree, chunk->behind);
        chunk_merge(chunk);
    }
    chunks_insert(tree, chunk);
    if (state->model == MODEL_NATIVE && !chunk->before && !chunk->behind)
        return_segment(state, chunk);
}

/* ---- the replay ---- */

/** Returns false if the limit refuses the memory. */
static bool run_event(struct state *state, const struct history_event *event) {
    struct chunk **chunk = &state->live[event->block];
    if (event->frees) {
        release(state, *chunk);
        *chunk = NULL;
        return true;
    }
    *chunk = allocate(state, event);
    return *chunk != NULL;
}

static void free_tree(struct chunk *tree) {
    if (tree) {
        free_tree(tree->left);
        free_tree(tree->right);
        free(tree);
    }
}

void model_run(enum model model, uint64_t limit, struct account *account) {
    const struct history *history = account->history;
    uint32_t pools = 2 * (uint32_t)history->stream_numbers.count + 2;
    struct state state = {.model = model,
                          .account = account,
                          .limit = limit,
                          .next_address = RANGE,
                          .pools = pools,
                          .trees = checked(calloc(pools, sizeof(struct chunk *))),
                          .tops = checked(calloc(pools, sizeof(struct chunk *))),
                          .live = checked(calloc(history->blocks + 1, sizeof(struct chunk *)))};
    for (size_t i = 0; i < history->count && !account->out_of_memory; i++) {
        account_begin_event(account, i);
        account->out_of_memory = !run_event(&state, &history->events[i]);
        if (!account->out_of_memory)
            account_end_event(account);
    }
    for (uint32_t i = 0; i < state.pools; i++)
        free_tree(state.trees[i]);
    for (uint32_t i = 0; i < history->blocks; i++)
        free(state.live[i]);
    free(state.trees);
    free(state.tops);
    free(state.live);
}
