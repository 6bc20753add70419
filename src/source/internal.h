/* The headers that every file of src/source needs. */
#ifndef GPUCACHE_SOURCE_INTERNAL_H
#define GPUCACHE_SOURCE_INTERNAL_H

#include "source/budget.h"
#include "source/pending.h"
#include "source/remap.h"
#include "source/source.h"
#include "source/state.h"
#include "source/sync.h"

#endif
