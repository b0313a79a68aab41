/* tests/fuzz/fuzz_scores.c -- any bytes as a file of routes (--routes-in), as the texts of `score`, and as a file of
 * log-probabilities that `diff` reads: each is refused, or what comes out is whole. Runs in the repository's root. */
#include <math.h>

#include "tests/support/fuzz.h"
#include "tools/cli/routes.h"
#include "tools/score/compare.h"
#include "tools/score/score.h"

static void read_routes(struct cli *c, const char *path)
{
    int64_t sum = 0;
    c->routes_in = path;
    if (cli_routes_in(c, 0, SIZE_MAX) == EXIT_DONE)
        for (size_t i = 0; c->session.routes.experts &&
                           i < c->session.routes.tokens * (size_t)(c->session.routes.layers * c->session.routes.top_k);
             i++)
            sum += c->session.routes.experts[i]; /* all of them are there */
    demand(sum < INT64_MAX);
    free(c->routes);
    c->routes = NULL;
    c->session.routes = (vb_routes){0};
}

static void read_texts(struct cli *c, const char *path)
{
    struct prompt_file f;
    struct score_line l;
    if (prompt_file_read(c, &f, path) == EXIT_DONE)
        for (size_t i = 0; i < f.num_lines; i++)
            if (f.line[i].size && score_line_read(c, &f.line[i], &l) == EXIT_DONE) {
                demand(l.count >= 2 && l.first >= 1 && l.first < l.count && l.temperature >= 0 &&
                       isfinite(l.temperature));
                for (size_t t = 0; t < l.count; t++)
                    demand(l.tokens[t] >= 0 && l.tokens[t] < vb_vocab_size(c->model));
                demand(!l.routes.tokens || (l.routes.tokens <= l.count && l.routes.tokens + 1 >= l.count));
                score_line_close(&l);
            }
    prompt_file_close(&f);
}

static void read_scores(struct cli *c, const char *path)
{
    struct scored_file f;
    if (scored_read(c, &f, path) == EXIT_DONE)
        for (size_t i = 0; i < f.count; i++) {
            const struct scored *t = &f.texts[i];
            demand(t->count > 0 && t->rows <= t->count);
            for (size_t k = 0; k < t->count; k++)
                demand(t->tokens[k] >= 0 && t->ranks[k] >= 0);
            for (size_t k = 0; t->routes && k < t->rows; k++)
                for (size_t e = 1; e < t->width; e++)
                    demand(t->routes[k * t->width + e - 1] <= t->routes[k * t->width + e]);
        }
    scored_close(&f);
    c->model_dir = c->other = path;
    scores_compare(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cli c = {.n = -1, .draft_tokens = -1, .logprobs = -1, .json = 1};
    char path[64];
    vb_error err;
    if (!c.model) {
        be_silent();
        demand(freopen("/dev/null", "w", stdout) != NULL); /* scores_compare prints its result */
        demand(!vb_model_open(&c.model, "golden/tiny/v3", NULL, &err));
        demand(!vb_tokenizer_open(&c.tokenizer, "golden/tale", NULL, &err));
    }
    int fd = memory_file(path, data, size);
    read_routes(&c, path);
    read_texts(&c, path);
    read_scores(&c, path);
    close(fd);
    return 0;
}
