/* Starts ncurses; handlers of exit and signals restore the terminal (screen_draw.h). */
#include "tool/screen/screen_draw.h"

#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>

/* The texts that restore the terminal. A signal handler may call neither ncurses nor malloc. */
static char restoring[256];
static struct termios before;

static void add(const char *name) {
    const char *text = tigetstr(name);
    if (text && text != (const char *)-1 && strlen(restoring) + strlen(text) < sizeof restoring)
        strcat(restoring, text);
}

/** Writes the terminal's reset, then lets the signal's default action end the process. */
static void restore(int number) {
    size_t length = strlen(restoring);
    if (write(STDOUT_FILENO, restoring, length) == (ssize_t)length)
        tcflush(STDIN_FILENO, TCIFLUSH); /* reports of the mouse that nobody will read */
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
    raise(number);
}

static void restore_at_exit(void) {
    if (!isendwin())
        endwin();
}

const char *screen_obstacle(void) {
    int error;
    bool can = setupterm(NULL, STDOUT_FILENO, &error) == OK && tigetstr("cup") != NULL;
    return can ? NULL : "this terminal (TERM) cannot move its cursor";
}

bool terminal_open(void) {
    static const int numbers[] = {SIGHUP,  SIGINT,  SIGQUIT,   SIGTERM, SIGALRM, SIGPIPE, SIGUSR1,
                                  SIGUSR2, SIGSEGV, SIGILL,    SIGFPE,  SIGABRT, SIGSYS,  SIGXCPU,
                                  SIGXFSZ, SIGTRAP, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR};
    const struct sigaction action = {.sa_handler = restore, .sa_flags = SA_RESETHAND};
    setlocale(LC_CTYPE, "");
    if (tcgetattr(STDIN_FILENO, &before) != 0 || !initscr())
        return false;
    strcpy(restoring, tigetstr("kmous") ? "\033[?1000l\033[?1006l" : "");
    add("rmkx");
    add("sgr0");
    add("cnorm");
    add("rmcup");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction old;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
    atexit(restore_at_exit);
    /* Messages, as of a file that was rebuilt, would lie over the screen. */
    int nowhere = isatty(STDERR_FILENO) ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    if (nowhere >= 0) {
        dup2(nowhere, STDERR_FILENO);
        close(nowhere);
    }
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
    set_escdelay(25);
    mouseinterval(0); /* a press counts at once, not after it was found to be no double click */
    mousemask(BUTTON1_PRESSED | BUTTON4_PRESSED | BUTTON5_PRESSED, NULL);
    raise(SIGWINCH); /* a change of the size before ncurses had its handler would be lost */
    return true;
}

bool terminal_is_gone(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&input, 1, 0) == 1 && (input.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}
