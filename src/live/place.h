/*
 * Where live pages lie, what they are called, and whether their process is still there. Shared by the
 * library and the tool; allocates nothing.
 *
 *      $XDG_RUNTIME_DIR/gpucache/PID-START-NAMESPACE      where that is a folder of this user's, or else
 *      /dev/shm/gpucache-UID/PID-START-NAMESPACE
 *
 * Both are memory. Everybody may make a folder in /dev/shm, so the folder has to be this user's
 * alone, and no link. Another user may have made it first: then pages go to a spare folder,
 * /dev/shm/gpucache-UID-RANDOM, which nobody can foresee, and which belongs to this user.
 *
 * A reader looks into all of them, and into /run/user/UID/gpucache, because a job and a shell often
 * differ in XDG_RUNTIME_DIR.
 */
#ifndef GPUCACHE_LIVE_PLACE_H
#define GPUCACHE_LIVE_PLACE_H

#include "live/page.h"

#include <stdbool.h>
#include <stddef.h>

#define PLACE_FOLDERS 2              /* that pages are made in; */
#define PLACE_SPARE 3                /* the first of the spare folders */
#define PLACE_READ (PLACE_SPARE + 4) /* that are looked into */
#define PLACE_NAME 80                /* bytes of a page's name, with its end */
#define PLACE_PATH 256               /* of a folder's */

/** This process; errno changes, as in all of these. */
struct live_identity place_self(void);

/** Where this process's stack begins, or 0. Another program in the same process has another one. */
uint64_t place_stack(int pid);

/** Whether SIGSTOP or a debugger has stopped the process. */
bool place_is_stopped(int pid);

/** Writes the path of folder `which`, below PLACE_READ. False: there is none for this user. */
bool place_folder(unsigned which, char path[PLACE_PATH]);

/** Opens a folder, and makes it if need be. A descriptor, or a negative errno; -EPERM: it is not
 * this user's alone. */
int place_open(const char *path, bool make);

/** Opens the spare folder, which is made if there is none, and writes its path. A descriptor, or a
 * negative errno. */
int place_open_spare(char path[PLACE_PATH]);

void place_name(const struct live_identity *who, char name[PLACE_NAME]);

/** False: that is not the name of a page. */
bool place_parse(const char *name, struct live_identity *who);

/** PLACE_ELSEWHERE: its process number means nothing here (another container's). */
enum place_life { PLACE_ALIVE, PLACE_DEAD, PLACE_ELSEWHERE };
enum place_life place_life(const struct live_identity *who, uint64_t own_namespace);

/** Whether so many lie in a folder that a process that makes one more has to clean up. */
bool place_is_full(int folder);

/**
 * Removes the pages of dead processes from a folder, but for the newest `keep` of them (at most
 * PLACE_KEEP), which somebody may want to read. Dead is also one elsewhere whose figures are older than
 * `silent_s` seconds. Returns how many were removed.
 */
#define PLACE_KEEP 32
#define PLACE_SILENT_S 86400
unsigned place_sweep(int folder, unsigned keep, uint64_t silent_s);

#endif
