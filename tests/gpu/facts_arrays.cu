/*
 * facts_arrays [section]: measures natively how much device memory an array takes. Prints next to
 * it the size that the driver names for an array with the same descriptor and deferred mapping
 * (cuArrayGetMemoryRequirements). src/driver/limit/array_size.c computes the same size.
 */
#include "facts.cuh"

struct shape {
    const char *name;
    CUarray_format format;
    unsigned channels;
    size_t width, height, depth;
    unsigned flags, levels;
};

static size_t free_now() {
    size_t free_bytes, total;
    CHECK(cuMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

static CUDA_ARRAY3D_DESCRIPTOR describe(const shape &s, unsigned more = 0) {
    CUDA_ARRAY3D_DESCRIPTOR d = {};
    d.Width = s.width;
    d.Height = s.height;
    d.Depth = s.depth;
    d.Format = s.format;
    d.NumChannels = s.channels;
    d.Flags = s.flags | more;
    return d;
}

static size_t required(const shape &s) {
    CUDA_ARRAY3D_DESCRIPTOR d = describe(s, CUDA_ARRAY3D_DEFERRED_MAPPING);
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {};
    CUdevice dev = 0;
    if (s.levels > 0) {
        CUmipmappedArray m;
        if (cuMipmappedArrayCreate(&m, &d, s.levels) != CUDA_SUCCESS)
            return 0;
        CUresult r = cuMipmappedArrayGetMemoryRequirements(&needs, m, dev);
        CHECK(cuMipmappedArrayDestroy(m));
        return r == CUDA_SUCCESS ? needs.size : 0;
    }
    CUarray a;
    if (cuArray3DCreate(&a, &d) != CUDA_SUCCESS)
        return 0;
    CUresult r = cuArrayGetMemoryRequirements(&needs, a, dev);
    CHECK(cuArrayDestroy(a));
    return r == CUDA_SUCCESS ? needs.size : 0;
}

/* Makes many equal arrays, because the size of one shows only in the sum. */
static void measure(const shape &s) {
    CUDA_ARRAY3D_DESCRIPTOR d = describe(s);
    std::vector<CUarray> arrays;
    std::vector<CUmipmappedArray> mipmaps;
    size_t before = free_now(), first = 0, now = before;
    int code = 0;
    unsigned made = 0;
    for (; made < 1024 && (made < 8 || before - now < ((size_t)128 << 20)); made++) {
        if (s.levels > 0) {
            CUmipmappedArray m;
            if ((code = cuMipmappedArrayCreate(&m, &d, s.levels)) != 0)
                break;
            mipmaps.push_back(m);
        } else {
            CUarray a;
            if ((code = cuArray3DCreate(&a, &d)) != 0)
                break;
            arrays.push_back(a);
        }
        now = free_now();
        if (made == 0)
            first = before - now;
    }
    printf("  %-24s 0x%02x x%u %5zu x %5zu x %3zu flags 0x%02x levels %2u:", s.name,
           (unsigned)s.format, s.channels, s.width, s.height, s.depth, s.flags, s.levels);
    if (made == 0)
        codes(" refused %d\n", {code});
    else
        printf(" first %zu, then %.1f each of %u; required %zu\n", first,
               (double)(before - now) / made, made, required(s));
    for (auto a : arrays)
        CHECK(cuArrayDestroy(a));
    for (auto m : mipmaps)
        CHECK(cuMipmappedArrayDestroy(m));
}

static void measure_all(const std::vector<shape> &shapes) {
    primary();
    warm();
    for (const shape &s : shapes)
        measure(s);
}

static const CUarray_format U8 = CU_AD_FORMAT_UNSIGNED_INT8, F32 = CU_AD_FORMAT_FLOAT;

/* Finds the sizes at which rows, columns and slices are rounded up. */
static void section_flat() {
    std::vector<shape> shapes;
    for (size_t width : {1, 15, 16, 17, 32, 33, 100, 128, 129, 1000, 1024, 4096, 4100})
        for (size_t height : {0, 1, 7, 8, 9, 16, 17, 64, 65, 128, 129, 1000, 1024})
            if (width * (height ? height : 1) <= ((size_t)4 << 20))
                shapes.push_back({"flat", F32, 1, width, height, 0, 0, 0});
    for (unsigned channels : {1, 2, 4})
        for (size_t width : {1, 100, 1000})
            shapes.push_back({"flat", U8, channels, width, 100, 0, 0, 0});
    for (unsigned flags :
         {CUDA_ARRAY3D_SURFACE_LDST, CUDA_ARRAY3D_TEXTURE_GATHER, CUDA_ARRAY3D_COLOR_ATTACHMENT,
          CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING})
        shapes.push_back({"flat, flag", F32, 1, 1000, 1000, 0, (unsigned)flags, 0});
    for (size_t side : {512, 1000, 2000, 4096, 8192, 16384})
        shapes.push_back({"large", F32, 1, side, side, 0, 0, 0});
    measure_all(shapes);
}

static void section_deep() {
    std::vector<shape> shapes;
    for (size_t side : {1, 10, 64, 100})
        for (size_t depth : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 100})
            shapes.push_back({"deep", F32, 1, side, side, depth, 0, 0});
    for (size_t layers : {1, 2, 3, 7, 16}) {
        shapes.push_back({"layers", F32, 1, 100, 100, layers, CUDA_ARRAY3D_LAYERED, 0});
        shapes.push_back({"layers of rows", F32, 1, 100, 0, layers, CUDA_ARRAY3D_LAYERED, 0});
        shapes.push_back({"cubes", F32, 1, 100, 100, 6 * layers,
                          CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP, 0});
    }
    measure_all(shapes);
}

static void section_formats() {
    std::vector<shape> shapes;
    for (unsigned format = 1; format < 0x100; format++)
        for (unsigned channels = 1; channels <= 4; channels++)
            for (size_t side : {64, 1000}) {
                shape s = {"format", (CUarray_format)format, channels, side, side, 0, 0, 0};
                CUDA_ARRAY3D_DESCRIPTOR d = describe(s);
                CUarray a;
                primary();
                if (cuArray3DCreate(&a, &d) == CUDA_SUCCESS) {
                    CHECK(cuArrayDestroy(a));
                    shapes.push_back(s);
                }
            }
    measure_all(shapes);
}

static void section_mipmaps() {
    std::vector<shape> shapes;
    for (unsigned levels : {1u, 2u, 3u, 5u, 7u, 10u, 11u, 12u, 100u, ~0u})
        shapes.push_back({"levels", F32, 1, 1024, 1024, 0, 0, levels});
    for (size_t side : {1, 4, 16, 64, 100, 256, 1000})
        shapes.push_back({"all levels", F32, 1, side, side, 0, 0, 99});
    shapes.push_back({"rows, all levels", F32, 1, 1024, 0, 0, 0, 99});
    shapes.push_back({"wide, all levels", F32, 1, 4096, 16, 0, 0, 99});
    shapes.push_back({"deep, all levels", F32, 1, 64, 64, 64, 0, 99});
    shapes.push_back({"layers, all levels", F32, 1, 256, 256, 6, CUDA_ARRAY3D_LAYERED, 99});
    shapes.push_back({"cube, all levels", F32, 1, 256, 256, 6, CUDA_ARRAY3D_CUBEMAP, 99});
    shapes.push_back({"BC1, all levels", (CUarray_format)0x91, 4, 1024, 1024, 0, 0, 99});
    shapes.push_back({"BC7, all levels", (CUarray_format)0x9d, 4, 1000, 1000, 0, 0, 99});
    measure_all(shapes);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } sections[] = {{"flat", section_flat},
                    {"deep", section_deep},
                    {"formats", section_formats},
                    {"mipmaps", section_mipmaps}};
    return run_cases(argc, argv, sections);
}
