/* Opens the named shared objects (with "+": RTLD_GLOBAL), and calls the chain_main() of each that
 * has one. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        void *object = argv[i][0] == '+' ? dlopen(argv[i] + 1, RTLD_NOW | RTLD_GLOBAL)
                                         : dlopen(argv[i], RTLD_NOW);
        int (*run)(void) = object ? (int (*)(void))dlsym(object, "chain_main") : NULL;
        if (!object)
            printf("%s\n", dlerror());
        else if (run)
            run();
    }
    return 0;
}
