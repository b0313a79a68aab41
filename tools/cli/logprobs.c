/* tools/cli/logprobs.c -- log-probabilities of the chosen token and of the most likely tokens, for --logprobs.
 *
 *   logprob(t) = (z_t - m) - log(sum_i exp(z_i - m)),   m = max_i z_i,   in double, i ascending
 *
 * z is the row of logits from which the token was chosen, before temperature, penalties, top-k and top-p. */
#include <math.h>
#include <stdlib.h>

#include "tools/cli/answer.h"
#include "tools/cli/softmax.h"

json_t *answer_logprobs(const float *logits, int32_t vocabulary, int32_t token, int32_t count)
{
    json_t *top = json_array();
    count = count < vocabulary ? count : vocabulary;
    int32_t *best = malloc(((size_t)count + 1) * sizeof *best);
    cli_must(best);
    double most, sum = log(sum_of_exp(logits, (size_t)vocabulary, &most));
    find_largest(logits, vocabulary, best, count);
    for (int32_t i = 0; i < count; i++)
        json_array_append_new(top, json_pack("{s:i,s:f}", "token", best[i], "logprob",
                                             (double)logits[best[i]] - most - sum));
    free(best);
    return json_pack("{s:i,s:f,s:o}", "token", token, "logprob", (double)logits[token] - most - sum, "top", top);
}
