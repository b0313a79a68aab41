/* tools/training/curves.c -- the learning curves: printed, as curves.csv and as curves.svg.
 *
 * A row has the columns step, tokens, lr, norm, then total, main and losses by depth of the steps since the row before
 * (means), then the same of held-out sequences. It has room for VB_MAX_DRAFT depths; the file has the columns of the
 * run's depths, which are called mtp1, mtp2 .. for MTP modules, head1 .. for parallel heads, and depth1 .. for an EAGLE
 * head. Nothing in curves.csv depends on the machine or the clock. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/diagram.h"
#include "tools/cli/file.h"
#include "tools/training/training.h"

enum { STEP, TOKENS, LR, NORM, LOSSES, HELD_OUT = LOSSES + 2 + VB_MAX_DRAFT };

void curves_close(struct curves *k)
{
    free(k->row);
    *k = (struct curves){0};
}

static void losses_of(const struct training_losses *l, double out[2 + VB_MAX_DRAFT])
{
    out[0] = l->total;
    out[1] = l->main;
    memcpy(out + 2, l->by_depth, sizeof l->by_depth);
}

static void cover(struct coverage *x, const struct training_losses *l)
{
    for (int k = 0; k < VB_MAX_DRAFT; k++) {
        x->rows += l->depth_rows[k];
        x->outside += l->outside[k];
    }
}

void curves_step(struct curves *k, const struct training_losses *l, double norm)
{
    double losses[2 + VB_MAX_DRAFT];
    losses_of(l, losses);
    for (int i = 0; i < 2 + VB_MAX_DRAFT; i++)
        k->sum[i] += losses[i];
    cover(&k->covered, l);
    k->norm += norm;
    k->steps++;
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

static int depths_of(const struct training *r) { return (int)r->c->train.depths; }
static int has_main(const struct training *r) { return is_whole(&r->c->train); }
static const char *kind_of_depths(const struct training *r)
{
    return is_eagle(&r->c->train) ? "depth" : has_heads(&r->c->train) ? "head" : "mtp";
}

/* The size of the draft vocabulary; 0: all tokens can be drafted. */
static size_t draft_vocabulary(const struct training *r)
{
    struct trained_eagle e;
    trainer_eagle_look(r->trainer, &e);
    return e.version && e.tokens ? e.vocab_size : 0;
}

static double share_inside(const struct coverage *x)
{
    return x->rows ? 1 - (double)x->outside / (double)x->rows : NAN;
}

/* Without a loss, nothing is learnt, and the loss looks perfect. */
static void warn(struct training *r, int64_t rows, int64_t outside)
{
    if (!rows || outside < rows || r->curves.warned)
        return;
    r->curves.warned = 1;
    fprintf(stderr,
            "verbatim: no row has a loss: none of the tokens to predict is among the %zu of the draft vocabulary\n",
            draft_vocabulary(r));
}

static void print_losses(const struct training *r, const char *label, const double *losses, const struct coverage *x)
{
    printf("%s %.4f", label, losses[0]);
    if (has_main(r) && depths_of(r))
        printf("  main %.4f", losses[1]);
    if (depths_of(r))
        printf("  %s", kind_of_depths(r));
    for (int k = 0; k < depths_of(r); k++)
        printf(" %.4f", losses[2 + k]);
    if (draft_vocabulary(r) && x->rows)
        printf("  in vocabulary %.0f %%", 100 * share_inside(x));
}

static json_t *losses_json(const struct training *r, const double *losses, const struct coverage *x)
{
    json_t *by_depth = json_array();
    int modules = !is_eagle(&r->c->train) && !has_heads(&r->c->train);
    for (int k = 0; k < depths_of(r); k++)
        json_array_append_new(by_depth, json_real(losses[2 + k]));
    json_t *all = json_pack("{s:f,s:o?,s:o}", "loss", losses[0], "main_loss", has_main(r) ? json_real(losses[1]) : NULL,
                            modules ? "mtp_loss_by_depth" : "loss_by_depth", by_depth);
    if (draft_vocabulary(r) && x->rows)
        json_object_set_new(all, "in_draft_vocabulary", json_real(share_inside(x)));
    return all;
}

static void print_row(const struct training *r, const double *row, double rate, const struct coverage *of_steps,
                      const struct coverage *of_held)
{
    int stepped = !isnan(row[LOSSES]), held = !isnan(row[HELD_OUT]);
    if (r->c->json) {
        json_t *line = json_pack("{s:I,s:I}", "step", (json_int_t)row[STEP], "tokens", (json_int_t)row[TOKENS]);
        if (stepped) {
            json_object_update_new(line, losses_json(r, row + LOSSES, of_steps));
            json_object_update_new(line, json_pack("{s:f,s:f,s:f}", "lr", row[LR], "gradient_norm", row[NORM],
                                                   "tokens_per_second", rate));
        }
        if (held)
            json_object_set_new(line, "held_out", losses_json(r, row + HELD_OUT, of_held));
        char *text = cli_must(json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(17)));
        puts(text);
        free(text);
        json_decref(line);
    } else {
        printf("step %lld of %lld", (long long)row[STEP], r->c->train.train_iters);
        if (stepped) {
            print_losses(r, "  loss", row + LOSSES, of_steps);
            printf("  lr %.3g  norm %.3g  %.0f tokens/s", row[LR], row[NORM], rate);
        }
        if (held)
            print_losses(r, "  held out: loss", row + HELD_OUT, of_held);
        putchar('\n');
    }
    fflush(stdout);
}

void curves_row(struct training *r, double lr, const struct training_losses *held, double rate)
{
    struct curves *k = &r->curves;
    if (k->rows == k->room) {
        k->room = 2 * k->room + 64;
        k->row = cli_must(realloc(k->row, k->room * CURVE_COLUMNS * sizeof *k->row));
    }
    double *row = k->row + k->rows++ * CURVE_COLUMNS;
    for (int i = 0; i < CURVE_COLUMNS; i++)
        row[i] = NAN;
    row[STEP] = (double)r->step;
    row[TOKENS] = (double)r->tokens;
    if (k->steps > 0) {
        row[LR] = lr;
        row[NORM] = k->norm / k->steps;
        for (int i = 0; i < 2 + VB_MAX_DRAFT; i++)
            row[LOSSES + i] = k->sum[i] / k->steps;
    }
    if (held)
        losses_of(held, row + HELD_OUT);
    struct coverage of_steps = k->covered, of_held = {0};
    if (held)
        cover(&of_held, held);
    memset(k->sum, 0, sizeof k->sum);
    k->norm = k->steps = 0;
    k->covered = (struct coverage){0};
    print_row(r, row, rate, &of_steps, &of_held);
    warn(r, of_steps.rows + of_held.rows, of_steps.outside + of_held.outside);
}

int curves_held_out(const struct curves *k, double *first, double *newest)
{
    int there = 0;
    for (size_t row = 0; row < k->rows; row++) {
        double loss = k->row[row * CURVE_COLUMNS + HELD_OUT];
        if (isnan(loss))
            continue;
        *first = there++ ? *first : loss;
        *newest = loss;
    }
    return there > 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* The number of a column in the file: 0 to 3, then the losses, then those held out. -1: there are no more. */
static int column(const struct training *r, int i)
{
    int losses = 2 + depths_of(r);
    return i < LOSSES ? i : i < LOSSES + losses ? i : i < LOSSES + 2 * losses ? HELD_OUT + i - LOSSES - losses : -1;
}

static void name_of(const struct training *r, int column, char name[32])
{
    static const char *const first[] = {"step", "tokens", "lr", "norm"};
    int loss = column < HELD_OUT ? column - LOSSES : column - HELD_OUT;
    const char *where = column < HELD_OUT ? "" : "held_out_";
    if (column < LOSSES)
        snprintf(name, 32, "%s", first[column]);
    else if (loss < 2)
        snprintf(name, 32, "%s%s", where, loss ? "main" : "loss");
    else
        snprintf(name, 32, "%s%s%d", where, kind_of_depths(r), loss - 1);
}

static void put_csv(const struct training *r, FILE *f)
{
    char name[32];
    for (int i = 0, j; (j = column(r, i)) >= 0; i++) {
        name_of(r, j, name);
        fprintf(f, "%s%s", i ? "," : "", name);
    }
    for (size_t row = 0; row < r->curves.rows; row++)
        for (int i = 0, j; (j = column(r, i)) >= 0; i++) {
            double x = r->curves.row[row * CURVE_COLUMNS + (size_t)j];
            int is_main = j == LOSSES + 1 || j == HELD_OUT + 1;
            fputs(i ? "," : "\n", f);
            if (j <= TOKENS)
                fprintf(f, "%.0f", x);
            else if (!isnan(x) && (!is_main || has_main(r)))
                fprintf(f, "%.9g", x);
        }
    putc('\n', f);
}

/* The losses that are drawn: from this one on. The total is their weighted sum. */
static int first_drawn(const struct training *r) { return has_main(r) ? 1 : 2; }

/* The smallest and the largest of them. */
static void range_of(const struct training *r, double *least, double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (size_t row = 0; row < r->curves.rows; row++)
        for (int i = first_drawn(r); i < 2 + depths_of(r); i++)
            for (int held = 0; held < 2; held++) {
                double x = r->curves.row[row * CURVE_COLUMNS + (size_t)((held ? HELD_OUT : LOSSES) + i)];
                *least = isnan(x) ? *least : fmin(*least, x);
                *most = isnan(x) ? *most : fmax(*most, x);
            }
}

static void put_svg(const struct training *r, FILE *f)
{
    const struct curves *k = &r->curves;
    double least, most, *x = cli_must(calloc(2 * k->rows + 1, sizeof *x)), *y = x + k->rows;
    char name[32];
    range_of(r, &least, &most);
    if (!(least < most)) {
        least = isfinite(least) ? least - 0.5 : 0;
        most = least + 1;
    }
    double y_step = diagram_step(most - least), x_most = fmax((double)r->step, 1);
    struct diagram d = {.f = f, .title = "losses in nats per token: of the steps, and (dashed) held out",
                        .x_title = "step", .x_most = x_most, .x_step = fmax(diagram_step(x_most), 1),
                        .y_least = floor(least / y_step) * y_step, .y_most = ceil(most / y_step) * y_step,
                        .y_step = y_step, .y_digits = y_step < 0.01 ? 4 : 2, .y_strong = NAN};
    diagram_begin(&d);
    for (size_t row = 0; row < k->rows; row++)
        x[row] = k->row[row * CURVE_COLUMNS + STEP];
    for (int i = first_drawn(r); i < 2 + depths_of(r); i++) {
        for (int held = 0; held < 2; held++) {
            for (size_t row = 0; row < k->rows; row++)
                y[row] = k->row[row * CURVE_COLUMNS + (size_t)((held ? HELD_OUT : LOSSES) + i)];
            diagram_curve(&d, diagram_colour(i - 1), held, x, y, k->rows);
        }
        name_of(r, LOSSES + i, name);
        diagram_label(&d, diagram_colour(i - 1), name);
    }
    diagram_end(&d);
    free(x);
}

int curves_write(const struct training *r)
{
    char path[4096];
    struct cli c = *r->c;
    c.force = 1; /* the files are those of the run */
    for (int svg = 0; svg < 2; svg++) {
        struct cli_file file;
        snprintf(path, sizeof path, "%s/curves.%s", r->dir, svg ? "svg" : "csv");
        if (!cli_file_begin(&c, &file, path))
            return EXIT_OTHER;
        (svg ? put_svg : put_csv)(r, file.stream.f);
        int code = cli_file_end(&c, &file, NULL);
        if (code != EXIT_DONE)
            return code;
    }
    return EXIT_DONE;
}
