/* tools/score/score.h -- `verbatim score`: log-probabilities of given tokens, for a file of texts (JSON Lines).
 *
 * All numbers are computed in double from one row of logits z [V], in ascending order of the token id. m is the largest
 * z.
 *
 *     logprob(t)      (z_t - m) - log(sum_i exp(z_i - m))
 *     at temperature  the same for z / T
 *     rank(t)         1 + the number of tokens with a larger logit, or with an equal logit and a lower id
 *     entropy         log(s) - sum_i exp(z_i - m) (z_i - m) / s,  s = sum_i exp(z_i - m)
 *
 * A row of logits depends only on the tokens of its own text. So no bit depends on batch, chunk or threads. */
#ifndef VB_SCORE_H
#define VB_SCORE_H

#include "tools/prompts/prompts.h"

/* ---- a line of the input (tools/score/line.c) -------------------------------------------------------------------- */

struct score_line {
    json_t *json;       /* the parsed line */
    const json_t *id;   /* the key id; NULL: not given */
    int32_t *tokens;    /* [count]: prompt and response */
    size_t count, first; /* first: index of the first token with a score */
    float temperature;  /* 0: no log-probabilities at a temperature */
    vb_routes routes;   /* the keys routed_experts and indexer_topk; no tokens: neither */
    struct routes_array experts, kept; /* at which routes points */
};

/* Parses a line. Reports errors; after an error, everything is released. The caller sets c->where to a text that names
 * the line. */
int score_line_read(struct cli *c, const struct prompt_line *line, struct score_line *out);
void score_line_close(struct score_line *l);

/* ---- the scores of a token (tools/score/row.c) ------------------------------------------------------------------- */

struct token_score {
    double logprob, at_temperature, entropy;
    int32_t rank;
};

/* Computes the scores of `token` from the logits [V] before it. temperature 0: at_temperature is not computed. */
struct token_score score_token(const float *logits, int32_t V, int32_t token, float temperature);
/* Returns the `count` most likely tokens as an array [[id, logprob], ...], the most likely first. */
json_t *score_top(const float *logits, int32_t V, int32_t count);

#endif
