/* driver_linked [steps] [seed]: calls the driver's entries as ELF symbols, linked with -lcuda. */
#include <cuda.h>

#define D(name) name
#include "driver_loop.h"

int main(int argc, char **argv) {
    return driver_loop(argc, argv);
}
