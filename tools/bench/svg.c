/* tools/bench/svg.c -- draws a diagram: the measured speed-up of drafting and its limit, plotted against acceptance. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench.h"
#include "tools/cli/file.h"

#define WIDTH 640
#define HEIGHT 420
#define LEFT 60
#define RIGHT 150
#define TOP 30
#define BOTTOM 50

/* for K = 1, 2, 3; colour-blind readers can distinguish these colours */
static const char *const colours[] = {"#0072b2", "#d55e00", "#009e73"};

static double x_of(double acceptance) { return LEFT + acceptance * (WIDTH - LEFT - RIGHT); }
static double y_of(double speed_up, double most) { return HEIGHT - BOTTOM - speed_up / most * (HEIGHT - TOP - BOTTOM); }

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
        struct bench_parts work = bench_module_work(b->c->model, b->c->session.drafting.vocab, b->prompt, k ? 1 : 1 + (size_t)(p * K + 0.5));
        drafts += bench_sum(&work).bytes;
    }
    double verify = pass_bytes(b, (size_t)K + 1), plain = pass_bytes(b, 1);
    return verify > 0 ? tokens_of(K, p) * plain / (verify + drafts) : 0;
}

static void draw(FILE *f, const struct bench *b)
{
    double most = 1;
    for (int K = 1; K <= 3; K++)
        most = fmax(most, limit_of(b, K, 1));
    most = ceil(most * 2 + 0.01) / 2;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
               "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n"
               "<text x=\"%d\" y=\"18\" font-size=\"14\">speed-up of drafting over plain decoding (mtp-eagle, %d threads)</text>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT, b->threads);
    for (double s = 0; s <= most; s += 0.5)
        fprintf(f, "<path d=\"M%d %.1fH%d\" stroke=\"%s\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.1f</text>\n", LEFT,
                y_of(s, most), WIDTH - RIGHT, fabs(s - 1) < 1e-9 ? "#888" : "#ddd", LEFT - 6, y_of(s, most) + 4, s);
    for (int p = 0; p <= 10; p += 2)
        fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.1f</text>\n", x_of(p / 10.0), HEIGHT - BOTTOM + 18, p / 10.0);
    fprintf(f, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">probability that a draft is right</text>\n", x_of(0.5), HEIGHT - 10);
    for (int K = 1; K <= 3; K++) {
        const char *colour = colours[K - 1];
        fprintf(f, "<path fill=\"none\" stroke=\"%s\" stroke-dasharray=\"5 4\" d=\"", colour);
        for (int p = 0; p <= 50; p++)
            fprintf(f, "%c%.1f %.1f", p ? 'L' : 'M', x_of(p / 50.0), y_of(limit_of(b, K, p / 50.0), most));
        fprintf(f, "\"/>\n<text x=\"%d\" y=\"%d\" fill=\"%s\">K = %d</text>\n", WIDTH - RIGHT + 12, TOP + 20 * K, colour, K);
        for (size_t i = 0; i < b->count; i++) {
            const struct bench_item *it = &b->item[i];
            if (it->kind == BENCH_GENERATE && it->force >= 0 && it->K == K)
                fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"><title>K %d, %.2f right: %.2fx</title></circle>\n",
                        x_of(it->force), y_of(bench_speed_up(b, it), most), colour, K, it->force, bench_speed_up(b, it));
        }
    }
    fprintf(f, "<text x=\"%d\" y=\"%d\">dots: measured</text>\n<text x=\"%d\" y=\"%d\">dashes: the limit</text>\n</svg>\n",
            WIDTH - RIGHT + 12, TOP + 90, WIDTH - RIGHT + 12, TOP + 110);
}

int bench_svg(const struct bench *b, const char *path)
{
    struct cli_file file;
    if (!cli_file_begin(b->c, &file, path))
        return EXIT_OTHER;
    draw(file.stream.f, b);
    return cli_file_end(b->c, &file, NULL);
}
