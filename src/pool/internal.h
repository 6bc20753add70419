/* The headers that the files of src/pool share. No other folder includes this header. */
#ifndef GPUCACHE_POOL_INTERNAL_H
#define GPUCACHE_POOL_INTERNAL_H

#include "pool/pool.h"
#include "pool/slow_path.h"
#include "segment/segments.h"
#include "source/source.h"
#include "tcache/internal.h"

#endif
