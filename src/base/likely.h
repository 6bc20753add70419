/* Tells the compiler which way a condition mostly goes. For the fast paths only. */
#ifndef GPUCACHE_BASE_LIKELY_H
#define GPUCACHE_BASE_LIKELY_H

#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

#endif
