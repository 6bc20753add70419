/*
 * The views of gpucache top's screen, the functions that draw their lines with ncurses, and the
 * terminal.
 */
#ifndef GPUCACHE_TOOL_SCREEN_SCREEN_DRAW_H
#define GPUCACHE_TOOL_SCREEN_SCREEN_DRAW_H

#include "live/page.h"
#include "tool/screen/screen.h"

#include <curses.h>

#define SCREEN_LINE 512 /* bytes of a line */
#define SCREEN_FILLS 9  /* fill levels of a cell, from empty to full */

struct screen {
    struct top *top;
    int pid; /* process of the selected row, because rows move */
    unsigned ordinal;
    int chosen, first;         /* the selected row, and the first row that is shown */
    bool help;                 /* the help is shown, from line help_first on */
    int help_first;            /* line of the help */
    bool typing;               /* keys are added to the filter */
    struct live_identity asks; /* the process that `y` ends; pid 0: none */
    char message[256];         /* shown instead of the keys until the next key */
    const char *const *fills;  /* the fill levels that the terminal can show */
};

/** Draws the text on a line, cut to the width of the screen. */
void screen_put(int y, struct print *text, attr_t attributes);
void screen_put_text(int y, const char *words, attr_t attributes);

/** Draws the table of all rows. */
void screen_draw_table(struct screen *screen);

/** Draws the selected row's device of its process. */
void screen_draw_one(struct screen *screen);

/** Draws the last line: the filter that is typed, a question, a message, or the longest text of
 * `keys` that fits. The list ends with NULL. */
void screen_put_keys(const struct screen *screen, const char *const *keys);

/**
 * Starts ncurses. Restores the terminal at exit, and at every signal whose default action ends the
 * process, except SIGKILL, SIGSTKFLT and real-time signals. Sends stderr to /dev/null if it is a
 * terminal. Returns false if stdin is no terminal, or if ncurses does not start.
 */
bool terminal_open(void);

/** Returns whether the terminal was closed. */
bool terminal_is_gone(void);

#endif
