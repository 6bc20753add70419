/*
 * Ablation: does without one mechanism of the policy, to measure what it is worth.
 *
 * Only builds with -Dablation=true have the switches (ablation.def). In all others is_ablated() is
 * the constant false, and the compiler removes every use of it.
 */
#ifndef GPUCACHE_PROCESS_ABLATION_H
#define GPUCACHE_PROCESS_ABLATION_H

#include <stdbool.h>

enum ablation {
#define MECHANISM(name, what) ABLATION_##name,
#include "process/ablation.def"
#undef MECHANISM
};

#ifdef GPUCACHE_ABLATION
/** Returns whether the environment variable ABLATE names the mechanism. Read once. */
bool is_ablated(enum ablation mechanism);
#else
#define is_ablated(mechanism) false
#endif

#endif
