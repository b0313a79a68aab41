/* tools/diff/replay_choose.c -- `verbatim replay` of sampling and acceptance: chooses tokens from given logits, as the
 * engine does. */
#include "tools/diff/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/choose/acceptance.h"

#define LOGITS "lm_head.output"

static const struct replay_choice table[] = {
    {"sampling", "sampling.token", {LOGITS, "tokens?", "prompt?", "index?", "seed?"}},
    {"sampling", "sampling.probabilities", {LOGITS, "tokens?", "prompt?", "index?", "seed?"}},
    {"acceptance", "acceptance.accepted",
     {LOGITS, "draft", "draft.probabilities?", "tokens?", "prompt?", "index?", "seed?"}},
    {"acceptance", "acceptance.tokens",
     {LOGITS, "draft", "draft.probabilities?", "tokens?", "prompt?", "index?", "seed?"}},
};

const struct replay_choice *replay_choice_at(size_t i) { return i < sizeof table / sizeof *table ? &table[i] : NULL; }

const struct replay_choice *replay_choice_of(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].operator) || !strcmp(name, table[i].output))
            return &table[i];
    return NULL;
}

struct chooser {
    struct cli *c;
    const struct diff_side *side;
    struct tensors *results;
    vb_sampling options;
    size_t V, rows;
    float *logits;     /* [rows, V] */
    double *index;     /* for each row, or for each round of acceptance: the index of the first token that is chosen */
    double *seed;      /* as many; NULL: --seed */
    size_t prompt;     /* so many tokens of the file belong to the prompt, and the others to the output */
    int K;             /* the number of drafts in a round */
    uint64_t open_seed;
    struct sampler *sampler; /* NULL before the first row */
    struct acceptance *acceptance;
};

/* --- the file --- */

static size_t count_of(const struct chooser *x, const char *name)
{
    const struct diff_series *s = diff_find(x->side, name, -1);
    return s ? s->count * s->width : 0;
}

/* Copies all numbers of a tensor. The caller frees them. NULL: the file has no such tensor. */
static double *copy(const struct chooser *x, const char *name)
{
    const struct diff_series *s = diff_find(x->side, name, -1);
    double *to = s ? cli_must(malloc((s->count * s->width + 1) * sizeof *to)) : NULL;
    for (size_t i = 0; s && i < s->count; i++)
        diff_numbers(s, &s->rows[i], to + i * s->width);
    return to;
}

/* Copies `count` integers from 0 to `most`. *to stays as it is if the file has no such tensor. Reports errors. */
static int integers(const struct chooser *x, const char *name, size_t count, double most, double **to)
{
    const char *path = x->c->input;
    double *n = copy(x, name);
    size_t found = count_of(x, name);
    int code = EXIT_DONE;
    if (!n)
        return EXIT_DONE;
    if (found != count)
        code = cli_fail(x->c, EXIT_OTHER, "%s: %s has %zu numbers, wanted %zu", path, name, found, count);
    for (size_t i = 0; i < count && code == EXIT_DONE; i++)
        if (!(n[i] >= 0 && n[i] <= most && n[i] == floor(n[i])))
            code = cli_fail(x->c, EXIT_OTHER, "%s: number %zu of %s is %g, wanted an integer from 0 to %.0f", path, i,
                            name, n[i], most);
    if (code == EXIT_DONE) {
        free(*to);
        *to = n;
    } else {
        free(n);
    }
    return code;
}

static int read_logits(struct chooser *x)
{
    const struct diff_series *s = diff_find(x->side, LOGITS, -1);
    double *z = copy(x, LOGITS);
    size_t n = count_of(x, LOGITS);
    if (!z || s->dtype == DIFF_INTEGERS || s->width % x->V) {
        free(z);
        if (s && s->dtype != DIFF_INTEGERS)
            return cli_fail(x->c, EXIT_OTHER, "%s: rows of %s have %zu numbers, the vocabulary has %zu", x->c->input,
                            LOGITS, s->width, x->V);
        return cli_fail(x->c, EXIT_OTHER, "%s has no %s%s", x->c->input, LOGITS, s ? " in floating point" : "");
    }
    x->rows = n / x->V;
    x->logits = cli_must(malloc((n + 1) * sizeof *x->logits));
    x->index = cli_must(malloc((x->rows + 1) * sizeof *x->index));
    for (size_t i = 0; i < n; i++)
        x->logits[i] = (float)z[i];
    for (size_t i = 0; i < x->rows; i++) /* row i of a text chooses token i + 1 */
        x->index[i] = (s->width == x->V ? s->rows[i].index : (int)i) + 1;
    free(z);
    return EXIT_DONE;
}

/* Reads what sampling and acceptance have in common; `count` tokens or rounds. */
static int read_places(struct chooser *x, size_t count)
{
    double *prompt = NULL;
    x->prompt = x->side->token_count;
    int code = integers(x, "prompt", 1, INT32_MAX, &prompt);
    if (prompt)
        x->prompt = (size_t)*prompt;
    free(prompt);
    if (code == EXIT_DONE)
        code = integers(x, "index", count, INT32_MAX, &x->index);
    if (code == EXIT_DONE)
        code = integers(x, "seed", count, 0x1p53, &x->seed);
    for (size_t i = 0; i < x->side->token_count && code == EXIT_DONE; i++)
        if ((size_t)x->side->tokens[i] >= x->V)
            code = cli_fail(x->c, EXIT_OTHER, "%s: token %zu is %d, the vocabulary has %zu", x->c->input, i,
                            x->side->tokens[i], x->V);
    return code;
}

/* --- the sampler --- */

static void close_sampler(struct chooser *x)
{
    acceptance_close(x->acceptance, NULL);
    sampler_close(x->sampler, NULL);
    x->acceptance = NULL;
    x->sampler = NULL;
}

/* Prepares the choice of token x->index[i]: its seed, and the tokens before it. */
static int begin(struct chooser *x, size_t i)
{
    vb_error err = {0};
    const vb_sampling *o = &x->options;
    size_t before = (size_t)x->index[i], known = x->side->token_count;
    if (x->seed)
        x->options.seed = (uint64_t)x->seed[i];
    if (!x->sampler || x->open_seed != o->seed) {
        close_sampler(x);
        if (sampler_open(&x->sampler, o, x->V, NULL, &err) ||
            acceptance_open(&x->acceptance, o, x->sampler, x->V, x->K, NULL, &err))
            return cli_error(x->c, &err);
        x->open_seed = o->seed;
    }
    int counts = (o->repetition_penalty != 0.0f && o->repetition_penalty != 1.0f) || o->presence_penalty != 0.0f ||
                 o->frequency_penalty != 0.0f;
    if (known < before && (counts || cli_is_relaxed(x->c)))
        return cli_fail(x->c, EXIT_OTHER, "%s has %zu tokens; %s wants all tokens before token %zu", x->c->input, known,
                        counts ? "a penalty" : "relaxed acceptance", before);
    sampler_restart(x->sampler);
    for (size_t t = 0; t < before && t < known; t++)
        (t < x->prompt ? sampler_saw_prompt : sampler_saw_output)(x->sampler, x->side->tokens[t]);
    return EXIT_DONE;
}

static int check_row(const struct chooser *x, size_t row)
{
    if (all_finite(x->logits + row * x->V, x->V))
        return EXIT_DONE;
    return cli_fail(x->c, EXIT_OTHER, "%s: row %zu of %s has a number that is not finite", x->c->input, row, LOGITS);
}

static void add_integers(const struct chooser *x, const char *name, const int32_t *data, size_t rows, size_t width)
{
    size_t shape[2] = {rows, width};
    tensors_add(x->results, name, "I32", shape, width ? 2 : 1, data, rows * (width ? width : 1) * sizeof *data);
}

static int sampling(struct chooser *x)
{
    int32_t *token = cli_must(malloc((x->rows + 1) * sizeof *token));
    double *p = cli_must(malloc((x->rows * x->V + 1) * sizeof *p));
    size_t shape[2] = {x->rows, x->V};
    int code = read_places(x, x->rows);
    for (size_t i = 0; i < x->rows && code == EXIT_DONE; i++) {
        const float *row = x->logits + i * x->V;
        const double *weights;
        code = check_row(x, i);
        if (code == EXIT_DONE)
            code = begin(x, i);
        if (code != EXIT_DONE)
            break;
        token[i] = sampler_choose(x->sampler, row, x->side->tokens, (size_t)x->index[i]);
        double total = sampler_distribution(x->sampler, row, x->side->tokens, (size_t)x->index[i], &weights);
        for (size_t t = 0; t < x->V; t++)
            p[i * x->V + t] = total > 0 ? weights[t] / total : 0;
    }
    if (code == EXIT_DONE) {
        add_integers(x, "sampling.token", token, x->rows, 0);
        tensors_add(x->results, "sampling.probabilities", "F64", shape, 2, p, x->rows * x->V * sizeof *p);
    }
    free(token);
    free(p);
    return code;
}

/* --- acceptance --- */

/* Passes the probabilities q [K, V] of the drafter, from which the K drafts of a round were drawn, to the acceptance
 * rule. */
static int draw_from(const struct chooser *x, const double *q)
{
    for (int k = 0; k < x->K; k++, q += x->V) {
        double sum = 0;
        for (size_t t = 0; t < x->V; t++) {
            if (!(q[t] >= 0 && q[t] <= 1))
                return cli_fail(x->c, EXIT_OTHER, "%s: draft.probabilities has %g, wanted numbers from 0 to 1",
                                x->c->input, q[t]);
            sum += q[t];
        }
        if (sum == 0)
            return cli_fail(x->c, EXIT_OTHER, "%s: a row of draft.probabilities has only zeros", x->c->input);
        acceptance_drew(x->acceptance, q, sum, k + 1);
    }
    return EXIT_DONE;
}

/* One round, as in engine/session/decode.c: chooses tokens until a draft is rejected, and one more. token [K + 1]. */
static int verify(const struct chooser *x, size_t round, const double *draft, int32_t *token, int32_t *accepted)
{
    size_t index = (size_t)x->index[round], known = x->side->token_count, rows = (size_t)x->K + 1;
    int32_t *tokens = cli_must(malloc((known + rows) * sizeof *tokens));
    int code = EXIT_DONE, stands = 1;
    if (known)
        memcpy(tokens, x->side->tokens, known * sizeof *tokens);
    for (size_t k = 0; k < rows && stands && code == EXIT_DONE; k++) {
        int32_t d = k < rows - 1 ? (int32_t)draft[k] : 0;
        struct draft_at at = {d, k < rows - 1 ? (int)k + 1 : 0, k < rows - 1 && vb_is_end_token(x->c->model, d)};
        code = check_row(x, round * rows + k);
        if (code != EXIT_DONE)
            break;
        struct verdict v = acceptance_choose(x->acceptance, x->logits + (round * rows + k) * x->V, tokens, index + k,
                                             &at);
        if (v.token < 0) {
            code = cli_fail(x->c, EXIT_OTHER, "no candidate is left for token %zu", index + k);
            break;
        }
        sampler_saw_output(x->sampler, v.token);
        token[k] = v.token;
        if (index <= known)
            tokens[index + k] = v.token;
        stands = v.stands;
        *accepted += stands;
    }
    free(tokens);
    return code;
}

static int rounds(struct chooser *x, size_t R, const double *draft, const double *q)
{
    size_t width = (size_t)x->K + 1;
    int32_t *token = cli_must(malloc((R * width + 1) * sizeof *token)),
            *accepted = cli_must(calloc(R + 1, sizeof *accepted));
    int code = EXIT_DONE;
    for (size_t i = 0; i < R * width; i++)
        token[i] = -1;
    for (size_t r = 0; r < R && code == EXIT_DONE; r++) {
        code = begin(x, r);
        if (code != EXIT_DONE)
            break;
        acceptance_round(x->acceptance);
        if (q && acceptance_draws(x->acceptance))
            code = draw_from(x, q + r * (size_t)x->K * x->V);
        if (code == EXIT_DONE)
            code = verify(x, r, draft + r * (size_t)x->K, token + r * width, accepted + r);
    }
    if (code == EXIT_DONE) {
        add_integers(x, "acceptance.accepted", accepted, R, 0);
        add_integers(x, "acceptance.tokens", token, R, width);
    }
    free(token);
    free(accepted);
    return code;
}

/* Each of R rounds has K drafts and K + 1 rows of logits. */
static int acceptance(struct chooser *x)
{
    const char *path = x->c->input;
    double *draft = NULL, *q = NULL;
    size_t drafts = count_of(x, "draft"), R = x->rows - drafts, K = R ? drafts / R : 0,
           given = count_of(x, "draft.probabilities");
    if (!drafts || drafts >= x->rows || drafts % R || K > VB_MAX_DRAFT)
        return cli_fail(x->c, EXIT_OTHER,
                        "%s has %zu drafts and %zu rows of %s; wanted K drafts and K + 1 rows for each round, K from 1 "
                        "to %d",
                        path, drafts, x->rows, LOGITS, VB_MAX_DRAFT);
    if (given && given != drafts * x->V)
        return cli_fail(x->c, EXIT_OTHER, "%s: draft.probabilities has %zu numbers, wanted %zu rows of %zu", path,
                        given, drafts, x->V);
    x->K = (int)K;
    for (size_t r = 0; r < R; r++) /* by default, the first draft of a round has the index after the last token of the
                                      file */
        x->index[r] = (double)x->side->token_count;
    int code = integers(x, "draft", drafts, (double)x->V - 1, &draft);
    if (code == EXIT_DONE)
        code = read_places(x, R);
    q = copy(x, "draft.probabilities");
    if (code == EXIT_DONE)
        code = rounds(x, R, draft, q);
    free(draft);
    free(q);
    return code;
}

int replay_choose(struct cli *c, const struct diff_side *side, const struct replay_choice *k, struct tensors *t)
{
    struct chooser x = {.c = c, .side = side, .results = t, .V = (size_t)vb_vocab_size(c->model)};
    int code = cli_thinking(c);
    x.options = c->session.sampling;
    if (code == EXIT_DONE)
        code = read_logits(&x);
    if (code == EXIT_DONE)
        code = (strcmp(k->operator, "sampling") ? acceptance : sampling)(&x);
    close_sampler(&x);
    free(x.logits);
    free(x.index);
    free(x.seed);
    return code;
}
