/* The headers that every file of src/source needs. */
#ifndef GPUCACHE_SOURCE_INTERNAL_H
#define GPUCACHE_SOURCE_INTERNAL_H

#include "policy/budget.h"
#include "source/pending.h"
#include "source/source.h"
#include "source/state.h"
#include "sync/sync.h"
#include "vmm/remap.h"

#endif
