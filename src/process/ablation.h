/*
 * Ablation: switches one mechanism of the policy off, to measure what the mechanism is worth.
 *
 * Only builds with -Dablation=true have the switches (ablation.def). In all other builds
 * is_ablated() is the constant false, and the compiler removes every use of it.
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
/**
 * Returns whether the environment variable ABLATE names the mechanism. The variable is read once.
 */
bool is_ablated(enum ablation mechanism);
#else
#define is_ablated(mechanism) false
#endif

#endif
