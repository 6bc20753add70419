/*
 * Models of other allocators, written from their documentation. They compute the memory that each
 * would have reserved for a history. A model reuses memory within a stream at once, so the delay of
 * the device does not change its result. The policies are described at enum model.
 */
#ifndef GPUCACHE_REPLAY_MODELS_H
#define GPUCACHE_REPLAY_MODELS_H

#include "replay/account.h"

/**
 * The policies, in the order of the enumerators:
 *
 *      PyTorch               sizes rounded to 512 bytes. Up to 1 MiB from segments of 2 MiB, less
 *                            than 10 MiB from segments of 20 MiB, else from one of the size rounded
 *                            to 2 MiB. Best fit. The rest of a small block is cut off if it
 *                            has 512 bytes, of a large block if it has more than 1 MiB. Each
 *                            stream has segments of its own
 *      PyTorch expandable    the same sizes and fit, in two ranges of addresses for each stream.
 *                            The ranges grow by pages of 2 MiB and of 20 MiB. Rests are always
 *                            cut off
 *      whole blocks          the smallest free block of the stream that is less than twice as
 *                            long. Blocks are never cut
 *      cudaMalloc            every free returns the memory: pages of 2 MiB, which blocks of up to
 *                            1 MiB share
 *
 * At a limit, before they fail, the models of PyTorch and of whole blocks return free segments, and
 * the model of PyTorch expandable returns the whole pages of free ranges.
 */
enum model { MODEL_PYTORCH, MODEL_EXPANDABLE, MODEL_WHOLE, MODEL_NATIVE, MODELS };

extern const char *const model_names[MODELS + 1];

/** Runs a model. The caller has started `account`. `limit` bounds reserved bytes; 0: no limit. */
void model_run(enum model model, uint64_t limit, struct account *account);

#endif
