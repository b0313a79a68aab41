/* tools/score/row.c -- the numbers that `score` prints for one token. */
#include <math.h>
#include <stdlib.h>

#include "tools/cli/softmax.h"
#include "tools/score/score.h"

struct token_score score_token(const float *z, int32_t V, int32_t token, float temperature)
{
    struct token_score s = {.rank = 1};
    double max, sum = sum_of_exp(z, (size_t)V, &max), weighted = 0, scaled = 0, T = (double)temperature;
    for (int32_t i = 0; i < V; i++) {
        double d = (double)z[i] - max;
        weighted += d > -INFINITY ? exp(d) * d : 0.0;
        scaled += T > 0 ? exp(d / T) : 0.0;
        s.rank += z[i] > z[token] || (z[i] >= z[token] && i < token);
    }
    s.logprob = (double)z[token] - max - log(sum);
    s.at_temperature = T > 0 ? ((double)z[token] - max) / T - log(scaled) : 0.0;
    s.entropy = log(sum) - weighted / sum;
    return s;
}

json_t *score_top(const float *z, int32_t V, int32_t count)
{
    json_t *top = json_array();
    count = count < V ? count : V;
    int32_t *best = cli_must(malloc(((size_t)count + 1) * sizeof *best));
    double max, sum = log(sum_of_exp(z, (size_t)V, &max));
    find_largest(z, V, best, count);
    for (int32_t i = 0; i < count; i++)
        json_array_append_new(top, json_pack("[i,f]", best[i], (double)z[best[i]] - max - sum));
    free(best);
    return top;
}
