/*
 * Finds and names the files of live pages. Identifies processes, and tells whether one is alive.
 * The library and the tool call these functions, which allocate nothing and take no lock. One
 * thread of a process at a time can read the names in a folder. Invariant: pages lie only in
 * folders that no other user may enter.
 *
 *      $XDG_RUNTIME_DIR/gpucache/PID-START-NAMESPACE      if that is a folder of this user, or else
 *      /dev/shm/gpucache-UID/PID-START-NAMESPACE
 *
 * Both folders are in memory. Everybody may make a folder in /dev/shm, so the folder must belong to
 * this user alone and must not be a link. Otherwise pages go to a spare folder, an existing one or
 * a new /dev/shm/gpucache-UID-RANDOM, whose name nobody can foresee. Readers see four spare
 * folders.
 *
 * A reader looks into all these folders and into /run/user/UID/gpucache, because a job and a shell
 * often differ in XDG_RUNTIME_DIR.
 */
#ifndef GPUCACHE_LIVE_PLACE_H
#define GPUCACHE_LIVE_PLACE_H

#include "live/page.h"

#include <stdbool.h>
#include <stddef.h>

#define PLACE_FOLDERS 2              /* folders that pages are made in */
#define PLACE_SPARE 3                /* number of the first spare folder */
#define PLACE_READ (PLACE_SPARE + 4) /* folders that a reader looks into */
#define PLACE_NAME 80                /* bytes of a page's name, with its NUL */
#define PLACE_PATH 256               /* bytes of a folder's path, with its NUL */

/** Returns the identity of this process. All functions of this file may change errno. */
struct live_identity place_self(void);

/**
 * Returns the address where the stack of the process begins, or 0 if it is not known. It changes
 * with exec.
 */
uint64_t place_stack(int pid);

/** Returns whether a signal, such as SIGSTOP, or a debugger has stopped the process. */
bool place_is_stopped(int pid);

/**
 * Writes the path of folder number `which`. The folder may be missing, except a spare one.
 *
 *      0    $XDG_RUNTIME_DIR/gpucache       false if others may write to $XDG_RUNTIME_DIR
 *      1    /dev/shm/gpucache-UID
 *      2    /run/user/UID/gpucache          for readers; false if it has the path of folder 0
 *      3    and up: spare folders           false if there is none, or while another thread reads
 */
bool place_folder(unsigned which, char path[PLACE_PATH]);

/**
 * Opens a folder. `make`: makes it if it is missing. Returns a descriptor or a negative errno.
 * -EPERM: others may enter the folder, or it belongs to another user.
 */
int place_open(const char *path, bool make);

/**
 * Opens the spare folder and writes its path. Makes the folder if there is none. Returns a
 * descriptor or a negative errno.
 */
int place_open_spare(char path[PLACE_PATH]);

/** Writes the name of the process's page: PID-START-NAMESPACE. */
void place_name(const struct live_identity *who, char name[PLACE_NAME]);

/** Reads an identity from the name of a page. Returns false if no page has such a name. */
bool place_parse(const char *name, struct live_identity *who);

/**
 * State of a process:
 *
 *      PLACE_ALIVE       it runs; or any process has its number, and /proc hides that process or
 *                        the start time is 0
 *      PLACE_DEAD        it has ended, or another process has its number
 *      PLACE_ELSEWHERE   unknown: its number is one of another PID namespace (a container)
 */
enum place_life { PLACE_ALIVE, PLACE_DEAD, PLACE_ELSEWHERE };
/** Returns the state of a process. `own_namespace`: the PID namespace of the caller. */
enum place_life place_life(const struct live_identity *who, uint64_t own_namespace);

/** Returns whether the folder has more than 2 * PLACE_KEEP names, so that the process that made a
 * page there must sweep. False while another thread reads a folder. */
bool place_is_full(int folder);

/**
 * Removes the pages of dead processes from a folder. Keeps the newest `keep` of them (at most
 * PLACE_KEEP) for readers. A process of another PID namespace counts as dead if its statistics are
 * older than `silent_s` seconds. Returns how many pages were removed. Removes none while another
 * thread reads a folder.
 */
#define PLACE_KEEP 32
#define PLACE_SILENT_S 86400
unsigned place_sweep(int folder, unsigned keep, uint64_t silent_s);

#endif
