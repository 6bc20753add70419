/* Rows of fits.txt: what fits natively and is refused or stalled. For the simulator alone. */
#include "fits.h"

/* to_the_brim MIB: blocks of MIB MiB until the first refusal. */
static void to_the_brim(char **arguments) {
    size_t bytes = (size_t)(atof(arguments[0]) * (double)MIB), free_bytes, total;
    long count = 0;
    CUdeviceptr p;
    begin();
    while (cuMemAlloc(&p, bytes) == CUDA_SUCCESS)
        count++;
    CHECK(cuMemGetInfo(&free_bytes, &total));
    printf("blocks=%ld free_mib=%.0f held_mib=%.0f\n", count, (double)free_bytes / MIB, held_mib());
}

static const struct row rows[] = {{"to_the_brim", to_the_brim}, {NULL, NULL}};

int main(int argc, char **argv) {
    return run_row(rows, argc, argv);
}
