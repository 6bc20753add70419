/*
 * The map of a pool: rows of equal length, in the order of addresses, as lines of a text. A piece is as
 * wide as it is long, and filled as far as it is live.
 *
 *      +0        |LLLLLLLLLLLLL|    |LLLLLL|cccc|LLLLLLLLLLL
 *      +512 MiB  LLLLL|   |LLLLLLLLLLLLL|         |LLLL|LLLL
 */
#include "tool/html.h"

#include <inttypes.h>
#include <string.h>

#define MOST_ROWS 12
#define WIDTH 1000.0 /* of a row, in the units of its drawing */
#define HEIGHT 24.0

struct drawing {
    FILE *out;
    double row_bytes, total;
    uint64_t at; /* where the next piece begins, from the first one on */
    unsigned rows;
    bool open; /* a row is */
};

static void close_row(struct drawing *drawing) {
    if (drawing->open)
        fputs("</svg></div>\n", drawing->out);
    drawing->open = false;
}

static void open_row(struct drawing *drawing) {
    char label[HTML_LABEL];
    if (drawing->open)
        return;
    fprintf(drawing->out,
            "<div class=\"maprow\"><span>+%s</span><svg viewBox=\"0 0 1000 24\" "
            "preserveAspectRatio=\"none\" role=\"img\" aria-label=\"memory by address\">",
            html_size(label, (uint64_t)(drawing->rows * drawing->row_bytes)));
    drawing->open = true;
}

static void draw_box(FILE *out, const char *class, double x, double width, double from, double to) {
    if (to > from && width > 0)
        fprintf(out, "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>",
                class, x, HEIGHT * (1 - to), width, HEIGHT * (to - from));
}

static void describe(FILE *out, const struct segment_piece *piece) {
    uint64_t bytes = segment_map_bytes(piece->units), live = segment_map_bytes(piece->live);
    uint64_t cached = segment_map_bytes(piece->cached), free_bytes = bytes - live - cached;
    fputs("<title>", out);
    if (piece->address == 0)
        fprintf(out, "in no block, wherever it lies: %s", SIZE(bytes));
    else if (live == bytes)
        fprintf(out, "live: %s", SIZE(bytes));
    else if (cached == bytes)
        fprintf(out, "freed, kept for the next such request: %s", SIZE(bytes));
    else if (free_bytes == bytes)
        fprintf(out, "free: %s", SIZE(bytes));
    else
        fprintf(out, "%s, of which live %s, freed and kept %s, free %s", SIZE(bytes), SIZE(live),
                SIZE(cached), SIZE(free_bytes));
    if (piece->address != 0)
        fprintf(out, "\nfrom 0x%" PRIx64, piece->address);
    if (piece->segments > 1)
        fprintf(out, "\nof %u segments", piece->segments);
    fputs("</title>", out);
}

/** As much of a piece as is in one row. */
static void draw_part(struct drawing *drawing, const struct segment_piece *piece, double from,
                      double to, bool first) {
    FILE *out = drawing->out;
    double start = drawing->rows * drawing->row_bytes;
    double x = (from - start) / drawing->row_bytes * WIDTH;
    double width = (to - from) / drawing->row_bytes * WIDTH;
    double live = (double)piece->live / piece->units, cached = (double)piece->cached / piece->units;
    fputs("<g>", out);
    describe(out, piece);
    draw_box(out, "free", x, width, live + cached, 1);
    draw_box(out, "cached", x, width, live, live + cached);
    draw_box(out, "live", x, width, 0, live);
    fputs("</g>", out);
    if (first && x > 0)
        fprintf(out, "<line class=\"edge\" x1=\"%.2f\" x2=\"%.2f\" y1=\"0\" y2=\"24\"/>", x, x);
}

static void draw_piece(struct drawing *drawing, const struct segment_piece *piece) {
    double from = (double)drawing->at, end = from + (double)segment_map_bytes(piece->units);
    bool first = true;
    while (from < end && drawing->rows < MOST_ROWS) {
        double row_end = (drawing->rows + 1) * drawing->row_bytes;
        double to = end < row_end ? end : row_end;
        open_row(drawing);
        draw_part(drawing, piece, from, to, first);
        first = false;
        from = to;
        if (to >= row_end) {
            close_row(drawing);
            drawing->rows++;
        }
    }
    drawing->at += segment_map_bytes(piece->units);
}

/** What there is between blocks, in words. */
static void sum_up(FILE *out, const struct stats_device *device, const struct segment_map *map) {
    uint64_t free_bytes = 0, holes = 0;
    for (uint32_t i = 0; i < map->count; i++) {
        const struct segment_piece *piece = &map->pieces[i];
        free_bytes += segment_map_bytes(piece->units - piece->live - piece->cached);
        holes += piece->live + piece->cached == 0 && piece->address != 0;
    }
    fputs("<p class=\"hint\">", out);
    if (map->pieces[map->count - 1].address == 0 || strcmp(device->backend, "pages") == 0)
        fputs("What is in no block stands at the end. ", out);
    if (free_bytes == 0)
        fputs("Nothing is free in it.", out);
    else if (device->largest_free_bytes >= free_bytes)
        fprintf(out, "%s free, all of it in one block.", SIZE(free_bytes));
    else if (map->grain == 0 && holes > 0)
        fprintf(out, "%s free; %s hole%s, and the largest free block is %s.", SIZE(free_bytes),
                COUNT(holes), holes == 1 ? "" : "s", SIZE(device->largest_free_bytes));
    else
        fprintf(out, "%s free; the largest free block is %s.", SIZE(free_bytes),
                SIZE(device->largest_free_bytes));
    if (map->grain > 0)
        fprintf(out, " What is shorter than %s stands together with its neighbours.",
                SIZE(map->grain));
    fputs("</p>\n", out);
}

void html_map(FILE *out, const struct stats_device *device, const struct segment_map *map) {
    struct drawing drawing = {.out = out};
    fputs("<section class=\"part\"><h3>The pool by address</h3>\n", out);
    for (uint32_t i = 0; i < map->count; i++)
        drawing.total += (double)segment_map_bytes(map->pieces[i].units);
    if (drawing.total <= 0) {
        fprintf(out, "<p class=\"none\">%s</p></section>\n",
                device->reserved.current ? "This report has no map of the pool."
                                         : "The pool holds no memory at this moment.");
        return;
    }
    sum_up(out, device, map);
    unsigned rows = map->count < 8 ? 2 : map->count < 40 ? 5 : 10;
    double step = (double)html_step((uint64_t)drawing.total) / 16;
    drawing.row_bytes = step; /* rows begin at round figures */
    while (drawing.row_bytes * rows < drawing.total)
        drawing.row_bytes += step;
    for (uint32_t i = 0; i < map->count; i++)
        draw_piece(&drawing, &map->pieces[i]);
    close_row(&drawing);
    fputs("<ul class=\"key\"><li><i class=\"live\"></i>live<li><i class=\"cached\"></i>freed, kept "
          "for the next such request<li><i class=\"free\"></i>free</ul></section>\n",
          out);
}
