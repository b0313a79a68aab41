/* tools/score/compare.h -- `diff` of two files of log-probabilities.
 *
 * A file has JSON Lines, or one JSON array or object. Each object is one text:
 *
 *     verbatim score   tokens, logprobs, ranks, top, logprobs_at_temperature, routed_experts
 *     SGLang           meta_info with input_token_logprobs and output_token_logprobs, [[logprob, id, text], ...], and
 *                      routed_experts
 *     vLLM             prompt_logprobs, [null, {id: {logprob, rank, decoded_token}}, ...], and prompt_token_ids;
 *                      outputs or choices with token_ids, logprobs and routed_experts
 *     other            tokens, logprobs, and optionally ranks and routed_experts
 *
 * Arrays that are shorter than `tokens` describe the last tokens of the text.
 *
 * Verdicts on a token, where r is the log-probability in A minus that in B:
 *
 *     identical    r is 0
 *     rounding     |r| is within the bound
 *     tie          |r| is within the bound, and the token is the most likely one on one side only, where the most
 *                  likely token of the other side is at most twice the bound more likely, as far as this is known
 *     other route  |r| is beyond the bound, and this token's row, or a row before it, took other experts
 *     structural   any other difference
 *
 * Rounding moves the logits, and a log-probability changes by (1 - p) times the change of its logit relative to the
 * other logits, where p is the probability of the token. So the bound of a token is `bound` times 1 - p + 0.01, and
 * differences are divided by 1 - p + 0.01 before a standard deviation is computed.
 *
 * With --model, the bound is BOUND_TIMES times the RMS difference between two runs of the engine over the texts of A:
 * in F32, and in precision bf16 with the same experts. If --arithmetic says that the other engine computes in f16 or
 * f32, the bound is multiplied by the quotient of the unit roundoffs.
 *
 * Without a model, the bound is BOUND_TIMES times a robust standard deviation of r: 1.4826 times the median of |r| / (1
 * - p + 0.01). An error that moves all tokens alike moves the bound too. It shows in the RMS log-ratio, which is
 *   printed beside published figures. */
#ifndef VB_SCORE_COMPARE_H
#define VB_SCORE_COMPARE_H

#include "tools/cli/cli.h"

#define BOUND_TIMES 8

struct scored {
    char *id;                /* NULL: none */
    size_t line;             /* number of the object in the file, from 0 */
    int32_t *tokens;         /* [count] */
    double *logprobs;        /* [count]; NAN: not there */
    double *at_temperature;  /* [count]; NULL: none */
    double temperature;
    int32_t *ranks;          /* [count]; 0: not known. A rank of 1 may come from the most likely token instead */
    double *best;            /* [count]: the log-probability of the most likely token; NAN: not known */
    size_t count;
    int32_t *routes;         /* [rows, width]: the experts of each row in ascending order; NULL: not known */
    size_t rows, width;
};

struct scored_file {
    const char *path;
    struct scored *texts;
    size_t count;
};

/* Whether the name of the file ends like that of a file of log-probabilities. */
int scored_is(const char *path);
/* Reads a file. Reports errors. Close the file even after an error. */
int scored_read(const struct cli *c, struct scored_file *f, const char *path);
void scored_close(struct scored_file *f);

/* The factor 1 - p + 0.01 for a token with these two log-probabilities. */
double scored_weight(double a, double b);
/* Measures the RMS difference that rounding makes in the log-probabilities of a file's texts, divided by scored_weight,
 * with the model of --model. Reports errors. */
int scores_measure(const struct cli *c, const struct scored_file *f, double *rms);

/* Computes the logits of every row of a text with c->model, and calls `row` for each row. If `routes` has experts, they
 * are forced; else it receives those that were taken, in memory that the caller frees. Reports errors. */
int scored_compute(const struct cli *c, const struct scored *text, vb_row_callback row, void *context,
                   vb_routes *routes);

/* Compares the files c->model_dir and c->other, and prints the result. Returns an exit code. Reports errors. */
int scores_compare(struct cli *c);

#endif
