/* Rows of fits.txt: what thread caches hold and cost. For the simulator alone. */
#include "fits.h"

static const struct row rows[] = {{NULL, NULL}};

int main(int argc, char **argv) {
    return run_row(rows, argc, argv);
}
