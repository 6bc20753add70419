/*
 * `chain_opener LIBRARY` opens a library whose constructor calls the driver while another thread
 * makes its first calls. The dynamic loader lets no other thread open or search libraries while the
 * constructor runs, so neither thread may wait for the other. Built with -DOPENED: the library.
 */
#include <cuda.h>
#include <stdio.h>
#include <unistd.h>

#ifdef OPENED

int *opened_place(void);

static int code;

int *opened_place(void) {
    return &code;
}

__attribute__((constructor)) static void opened(void) {
    size_t bytes = 0;
    usleep(200000); /* time for the other thread to begin its calls */
    code = 1 + (int)cuDeviceTotalMem(&bytes, 0);
}

#else

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static void *first_calls(void *answers) {
    CUcontext context;
    CUdeviceptr p;
    int *answer = answers;
    usleep(100000); /* time for the constructor to begin */
    answer[0] = (int)cuDevicePrimaryCtxRetain(&context, 0);
    answer[1] = (int)cuCtxSetCurrent(context);
    answer[2] = (int)cuMemAlloc(&p, 4 << 20);
    answer[3] = (int)cuMemFree(p);
    return NULL;
}

int main(int argc, char **argv) {
    int answer[4] = {-1, -1, -1, -1}, *(*place)(void);
    pthread_t thread;
    CUresult init = cuInit(0), none = cuCtxSetCurrent(NULL); /* all entries are found from now on */
    pthread_create(&thread, NULL, first_calls, answer);
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    void *found = library ? dlsym(library, "opened_place") : NULL;
    pthread_join(thread, NULL);
    if (!found)
        return 2;
    memcpy(&place, &found, sizeof place);
    printf("%d %d, constructor %d, thread %d %d %d %d\n", (int)init, (int)none, *place() - 1,
           answer[0], answer[1], answer[2], answer[3]);
    return 0;
}

#endif
