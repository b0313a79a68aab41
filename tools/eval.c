/* tools/eval.c -- `verbatim eval`: measures how well the model predicts a text, and how well its MTP modules predict
 * the model.
 *
 * The text is cut into windows of --context tokens. Each window is a sequence of its own. Model and modules read the
 * text and not their own output (teacher forcing): row i of module k reads tok[i+k+1] and predicts tok[i+k+2]. Row
 * i+k+1 of the target predicts the same token. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"
#include "tools/cli/routes.h"
#include "tools/cli/softmax.h"
#include "tools/eval_relaxed.h"

struct sum {
    double loss;      /* nats */
    size_t rows;
    size_t agreed;    /* rows in which the most likely token is also the most likely one of the target at the same
                         position */
    size_t in_a_row;  /* rows in which this depth and all earlier depths of the same draft agree with the target */
};

struct eval_figures {
    const int32_t *ids; /* of the window */
    size_t count, done, total;
    int depths, not_finite; /* a row was not */
    size_t bad_token;       /* the one it should predict, in the text */
    int32_t *best[VB_MAX_DRAFT + 1]; /* [window]: of the target, by row; of depth k, by row */
    struct sum target, depth[VB_MAX_DRAFT];
    struct relaxed relaxed;
};

/* -log softmax(logits)[token] */
static double loss_of(const float *logits, size_t V, int32_t token)
{
    double max, sum = sum_of_exp(logits, V, &max);
    return max + log(sum) - (double)logits[token];
}

struct context {
    struct eval_figures *e;
    size_t V;
};

static int take_row(void *context, int depth, size_t index, const float *logits, const float *hidden)
{
    const struct context *c = context;
    struct eval_figures *e = c->e;
    size_t predicted = index + (size_t)depth + 2; /* depth -1 is the target */
    int32_t best = 0;
    (void)hidden;
    for (size_t v = 1; v < c->V; v++)
        if (logits[v] > logits[best])
            best = (int32_t)v;
    e->best[depth + 1][index] = best;
    if (depth < 0 && e->relaxed.asked)
        relaxed_row(&e->relaxed, index, logits, c->V);
    if (depth < 0)
        cli_progress("eval", e->done + index + 1, e->total);
    if (predicted < e->count) {
        struct sum *s = depth < 0 ? &e->target : &e->depth[depth];
        double loss = loss_of(logits, c->V, e->ids[predicted]);
        if (!isfinite(loss)) {
            e->not_finite = 1;
            e->bad_token = e->done + predicted;
            return 1;
        }
        s->loss += loss;
        s->rows++;
    }
    return 0;
}

/* Where the target's row is known too. The draft of depth k after row i stands on those of depths 0..k-1 after row i:
 * all were made from the text, so "in a row" is what strict verification would accept if the text were the target's
 * own. */
static void compare(struct eval_figures *e)
{
    for (size_t i = 0; i < e->count; i++) {
        int all = 1;
        for (int k = 0; k < e->depths && i + (size_t)k + 2 < e->count; k++) {
            int agrees = e->best[k + 1][i] == e->best[0][i + (size_t)k + 1];
            all &= agrees;
            e->depth[k].agreed += (size_t)agrees;
            e->depth[k].in_a_row += (size_t)all;
        }
    }
}

/* Routes of one window of --routes-in. */
static vb_routes part_of(const vb_routes *all, size_t first, size_t count)
{
    vb_routes part = *all;
    part.tokens = first >= all->tokens ? 0 : all->tokens - first < count ? all->tokens - first : count;
    part.experts = part.tokens && all->experts ? all->experts + first * (size_t)all->layers * (size_t)all->top_k : NULL;
    part.kept = part.tokens && all->kept ? all->kept + first * (size_t)all->layers * (size_t)all->index_topk : NULL;
    return part;
}

static int evaluate(struct cli *c, struct eval_figures *e, const int32_t *ids, size_t count, size_t window,
                    struct routes_list *routes)
{
    vb_routes given = c->session.routes;
    vb_session *session = NULL;
    vb_error err = {0};
    struct context context = {e, (size_t)vb_vocab_size(c->model)};
    int code = EXIT_DONE;
    c->context = (long long)window;
    for (e->total = count; e->done < count && code == EXIT_DONE; e->done += e->count) {
        e->ids = ids + e->done;
        e->count = count - e->done < window ? count - e->done : window;
        c->session.routes = part_of(&given, e->done, e->count);
        code = cli_session(c, e->count, 0, &session);
        if (code == EXIT_DONE && (vb_append(session, e->ids, e->count, &err) ||
                                  vb_evaluate(session, e->depths, take_row, &context, &err)))
            code = e->not_finite
                       ? cli_fail(c, EXIT_OTHER, "the logits that predict token %zu are not finite", e->bad_token)
                       : cli_error(c, &err);
        routes_list_add(routes, session);
        vb_session_close(session);
        session = NULL;
        compare(e);
        if (e->relaxed.asked && code == EXIT_DONE)
            relaxed_window(&e->relaxed, e->ids, e->count, e->best, e->depths);
    }
    return code;
}

static double mean(double sum, size_t n) { return n ? sum / (double)n : NAN; }
static json_t *number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static double mtp_loss(const struct eval_figures *e)
{
    double sum = 0;
    for (int k = 0; k < e->depths; k++)
        sum += mean(e->depth[k].loss, e->depth[k].rows);
    return e->depths ? sum / e->depths : NAN;
}

static int print_json(const struct eval_figures *e, size_t count, size_t window, double factor, double seconds)
{
    json_t *losses = json_array(), *agreement = json_array(), *in_a_row = json_array();
    double loss = mean(e->target.loss, e->target.rows), mtp = mtp_loss(e);
    for (int k = 0; k < e->depths; k++) {
        json_array_append_new(losses, number(mean(e->depth[k].loss, e->depth[k].rows)));
        json_array_append_new(agreement, number(mean((double)e->depth[k].agreed, e->depth[k].rows)));
        json_array_append_new(in_a_row, number(mean((double)e->depth[k].in_a_row, e->depth[k].rows)));
    }
    return cli_print_json(json_pack("{s:I,s:I,s:I,s:o,s:o,s:o,s:o,s:o,s:f,s:o,s:o,s:o,s:o}", "tokens",
                                    (json_int_t)count, "predicted", (json_int_t)e->target.rows, "context",
                                    (json_int_t)window, "perplexity", number(exp(loss)), "main_loss", number(loss),
                                    "mtp_loss_by_depth", losses, "agreement_by_depth", agreement, "acceptance_by_depth",
                                    in_a_row, "mtp_loss_scaling_factor", factor, "mtp_loss", number(mtp), "loss",
                                    number(e->depths ? loss + factor * mtp : loss), "tokens_per_second",
                                    number((double)count / seconds), "relaxed", relaxed_json(&e->relaxed, e->depths)));
}

static void print_table(const struct eval_figures *e, size_t count, size_t window, double factor, double seconds)
{
    double loss = mean(e->target.loss, e->target.rows);
    printf("tokens        %zu in windows of %zu, %zu predicted, %.0f tokens/s\n", count, window, e->target.rows,
           (double)count / seconds);
    printf("perplexity    %.4f\nmain loss     %.4f nats per token\n", exp(loss), loss);
    if (!e->depths)
        return;
    printf("MTP loss      %.4f, the mean over depths; loss %.4f with mtp_loss_scaling_factor %g\n", mtp_loss(e),
           loss + factor * mtp_loss(e), factor);
    puts("depth    loss     agrees with the target    and all depths before");
    for (int k = 0; k < e->depths; k++)
        printf("%5d  %6.4f  %23.1f %%  %21.1f %%\n", k + 1, mean(e->depth[k].loss, e->depth[k].rows),
               100 * mean((double)e->depth[k].agreed, e->depth[k].rows),
               100 * mean((double)e->depth[k].in_a_row, e->depth[k].rows));
    relaxed_print(&e->relaxed, e->depths);
}

static int run(struct cli *c)
{
    struct eval_figures e = {0};
    int32_t *ids = NULL;
    size_t count = 0, window = 0;
    struct routes_list routes = {0};
    int code = cli_without_prefill(c, "onednn");
    if (code == EXIT_DONE)
        code = cli_check_routes_out(c);
    if (code == EXIT_DONE)
        code = cli_open(c);
    c->prompt_file = c->file;
    if (code == EXIT_DONE && !c->file == !c->tokens)
        code = cli_fail(c, EXIT_USAGE, "wanted one of --file and --tokens, found %s", c->file ? "both" : "neither");
    if (code == EXIT_DONE)
        code = cli_prompt(c, &ids, &count);
    if (code == EXIT_DONE && count < 2)
        code = cli_fail(c, EXIT_USAGE, "there is 1 token; it takes 2 or more to predict one");
    if (code == EXIT_DONE)
        code = cli_routes_in(c, count, count);
    if (code == EXIT_DONE) {
        size_t most = (size_t)vb_max_positions(c->model);
        double start = cli_seconds();
        window = c->context > 0 ? (size_t)c->context : most < 512 ? most : 512;
        e.depths = vb_mtp_modules(c->model) < VB_MAX_DRAFT ? vb_mtp_modules(c->model) : VB_MAX_DRAFT;
        for (int k = 0; k <= e.depths; k++)
            e.best[k] = cli_must(calloc(window, sizeof **e.best));
        code = relaxed_open(&e.relaxed, c, window);
        if (code == EXIT_DONE)
            code = evaluate(c, &e, ids, count, window, &routes);
        if (code == EXIT_DONE)
            code = cli_routes_out(c, &routes.routes);
        double seconds = cli_seconds() - start, factor = c->mtp_loss_scaling_factor;
        if (code == EXIT_DONE && c->json)
            code = print_json(&e, count, window, factor, seconds);
        else if (code == EXIT_DONE)
            print_table(&e, count, window, factor, seconds);
    }
    for (int k = 0; k <= e.depths; k++)
        free(e.best[k]);
    relaxed_close(&e.relaxed);
    free(routes.experts.numbers);
    free(routes.kept.numbers);
    free(ids);
    return code;
}

static const struct note notes[] = {
    {"--prefill", "Choose how attention is computed in all rows of the text: contract, expanded or cublas (default "
                  "contract). With expanded and "
                  "cublas, the results are those of a prompt."},
    {"--context",
     "Cut the text into windows of N tokens (default 512, or max_position_embeddings if that is smaller)."},
    {"--acceptance", "With the value relaxed: also measure the cost of relaxed acceptance. Unless --thinking-tokens is "
                     "given, the whole "
                     "text is treated as thinking."},
    {"--thinking-tokens",
     "With --acceptance relaxed: treat only the text between these two tokens as thinking. The tokens are given as "
     "ids or as text."},
    {"--json", "Print an object with the keys tokens, predicted, context, perplexity, main_loss, mtp_loss_by_depth, "
               "agreement_by_depth, "
               "acceptance_by_depth, mtp_loss, loss, tokens_per_second and relaxed. Agreement at depth k is the share "
               "of rows where module k and the model prefer the same token. Acceptance at depth k is the share of rows "
               "where the model and the modules prefer the same tokens at depth k and at all smaller depths."},
    {NULL, NULL}};

const struct command command_eval = {
    "eval", "measure perplexity, and the loss and agreement of the MTP modules",
    "MODEL (--file FILE | --tokens IDS) [OPTIONS]",
    "Cuts the text into windows and evaluates each window alone. The first token of a window is not predicted. The MTP "
    "modules read\n"
    "the tokens of the text, not their own drafts. Row i of module k (counted from 0) reads token i+k+1 and predicts "
    "token i+k+2.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_EVAL | TAKES_ACCEPTANCE | TAKES_PREFILL | TAKES_ROUTES, run, notes, 0, NULL};
