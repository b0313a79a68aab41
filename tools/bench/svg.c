/* tools/bench/svg.c -- draws a diagram: the measured speed-up of drafting and its limit, plotted against acceptance. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/cli/diagram.h"
#include "tools/cli/file.h"

/* Returns the mean number of tokens in a round of K drafts, if each draft is correct with probability p. */
static double tokens_of(int K, double p)
{
    double sum = 1;
    for (int k = 1; k <= K; k++)
        sum += pow(p, k);
    return sum;
}

/* Returns the bytes of a pass over `rows` rows, at the depth of the measured decoding. Returns 0 if no item measures
 * such a pass. */
static double pass_bytes(const struct bench *b, size_t rows)
{
    for (size_t i = 0; i < b->count; i++)
        if (b->item[i].kind == BENCH_PASS && b->item[i].rows == rows && b->item[i].depth <= 16)
            return b->item[i].work.bytes;
    return 0;
}

/* Returns the speed-up that is possible if time depends only on bytes: tokens x B(1) / (B(K+1) + the bytes of the
 * modules' passes). */
static double limit_of(const struct bench *b, int K, double p)
{
    double drafts = 0;
    for (int k = 0; k < K; k++) {
        struct bench_parts work = bench_module_work(b->c->model, b->c->session.drafting.vocab, b->prompt,
                                                    k ? 1 : 1 + (size_t)(p * K + 0.5));
        drafts += bench_sum(&work).bytes;
    }
    double verify = pass_bytes(b, (size_t)K + 1), plain = pass_bytes(b, 1);
    return verify > 0 ? tokens_of(K, p) * plain / (verify + drafts) : 0;
}

#define POINTS 51 /* of a limit's curve */

static void draw(FILE *f, const struct bench *b)
{
    double most = 1, x[POINTS], y[POINTS];
    char title[96], text[64];
    for (int K = 1; K <= 3; K++)
        most = fmax(most, limit_of(b, K, 1));
    snprintf(title, sizeof title, "speed-up of drafting over plain decoding (mtp-eagle, %d threads)", b->threads);
    struct diagram d = {.f = f, .title = title, .x_title = "probability that a draft is right", .x_most = 1,
                        .x_step = 0.2, .x_digits = 1, .y_most = ceil(most * 2 + 0.01) / 2, .y_step = 0.5, .y_digits = 1,
                        .y_strong = 1};
    diagram_begin(&d);
    for (int K = 1; K <= 3; K++) {
        const char *colour = diagram_colour(K - 1);
        for (int p = 0; p < POINTS; p++) {
            x[p] = p / (POINTS - 1.0);
            y[p] = limit_of(b, K, x[p]);
        }
        diagram_curve(&d, colour, 1, x, y, POINTS);
        snprintf(text, sizeof text, "K = %d", K);
        diagram_label(&d, colour, text);
        for (size_t i = 0; i < b->count; i++) {
            const struct bench_item *it = &b->item[i];
            if (it->kind != BENCH_GENERATE || it->force < 0 || it->K != K)
                continue;
            snprintf(text, sizeof text, "K %d, %.2f right: %.2fx", K, it->force, bench_speed_up(b, it));
            diagram_dot(&d, colour, it->force, bench_speed_up(b, it), text);
        }
    }
    diagram_gap(&d);
    diagram_label(&d, "#000000", "dots: measured");
    diagram_label(&d, "#000000", "dashes: the limit");
    diagram_end(&d);
}

int bench_svg(const struct bench *b, const char *path)
{
    struct cli_file file;
    if (!cli_file_begin(b->c, &file, path))
        return EXIT_OTHER;
    draw(file.stream.f, b);
    return cli_file_end(b->c, &file, NULL);
}
