/* tools/cli/logprobs.c -- log-probabilities of a chosen token and of the likeliest ones, for --logprobs.
 *
 *   logprob(t) = (z_t - m) - log(sum_i exp(z_i - m)),   m = max_i z_i,   in double, i ascending
 *
 * z: the row of logits that chose, as the model gave it: before temperature, penalties, top-k and top-p. */
#include <math.h>
#include <stdlib.h>

#include "tools/cli/answer.h"
#include "tools/cli/softmax.h"

/* The ids of the `count` largest, the larger first, of equals the lower id. */
static void likeliest(const float *logits, int32_t vocabulary, int32_t *best, int32_t count)
{
    int32_t n = 0;
    for (int32_t i = 0; i < vocabulary; i++) {
        int32_t at = n < count ? n : count;
        if (at == count && (!count || logits[best[count - 1]] >= logits[i]))
            continue;
        for (at -= at == count; at > 0 && logits[best[at - 1]] < logits[i]; at--)
            best[at] = best[at - 1];
        best[at] = i;
        n += n < count;
    }
}

json_t *answer_logprobs(const float *logits, int32_t vocabulary, int32_t token, int32_t count)
{
    json_t *top = json_array();
    count = count < vocabulary ? count : vocabulary;
    int32_t *best = malloc(((size_t)count + 1) * sizeof *best);
    cli_must(best);
    double most, sum = log(sum_of_exp(logits, (size_t)vocabulary, &most));
    likeliest(logits, vocabulary, best, count);
    for (int32_t i = 0; i < count; i++)
        json_array_append_new(top, json_pack("{s:i,s:f}", "token", best[i], "logprob", (double)logits[best[i]] - most - sum));
    free(best);
    return json_pack("{s:i,s:f,s:o}", "token", token, "logprob", (double)logits[token] - most - sum, "top", top);
}
