/*
 * Every entry that a driver of CUDA 13.0 exports, from the one list in sim_entries.def.
 *
 * Each entry has a weak definition here, which answers CUDA_ERROR_NOT_SUPPORTED. The definition of
 * another file of this folder replaces the weak one. Each entry has an address of its own, since
 * callers compare addresses. This file declares the entries as symbols without a type: the macros
 * of cuda.h would rename them, and its prototypes would forbid the weak definitions.
 */
#define CUDA_ERROR_NOT_SUPPORTED 801

typedef void (*address_t)(void);

enum stream_variant { LEGACY, PTDS, PTSZ };

struct entry_row {
    const char *name;
    int since;
    enum stream_variant stream;
    const char *symbol;
    address_t address;
};

int sim_stub(int at);

enum {
#define SIM_ENTRY(name, since, stream, symbol) AT_##symbol,
#include "sim_entries.def"
#undef SIM_ENTRY
    ENTRY_COUNT
};

#define SIM_ENTRY(name, since, stream, symbol)                                                     \
    __attribute__((weak, visibility("default"))) int symbol(void);                                 \
    int symbol(void) {                                                                             \
        return sim_stub(AT_##symbol);                                                              \
    }
#include "sim_entries.def"
#undef SIM_ENTRY

extern const struct entry_row entry_table[ENTRY_COUNT];

const struct entry_row entry_table[ENTRY_COUNT] = {
#define SIM_ENTRY(name, since, stream, symbol) {#name, since, stream, #symbol, (address_t)symbol},
#include "sim_entries.def"
#undef SIM_ENTRY
};
