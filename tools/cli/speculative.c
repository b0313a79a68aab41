/* tools/cli/speculative.c -- translates drafting options of other systems to Verbatim's options. If options of both
 * kinds set the same thing, they must agree. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tools/cli/speculative.h"

int wish_method(const struct cli *c, struct wish *w, const struct method_name *names, const char *name)
{
    char known[256] = "";
    for (; names->name; names++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", names->name);
        if (!strcasecmp(names->name, name)) {
            w->method = names->method;
            return EXIT_DONE;
        }
    }
    return cli_fail(c, EXIT_USAGE, "%s: unknown method %.64s; known are %s", w->option, name, known);
}

int wish_bad_length(const struct cli *c, const char *option, const char *value)
{
    return cli_fail(c, EXIT_USAGE, "%s is %.64s, wanted an integer from 0 to %d", option, value, VB_MAX_DRAFT);
}

/* Adds the method and the length in *w to *all, which has the wishes of earlier options. Contradictions are errors. */
static int agree(const struct cli *c, struct wish *all, const struct wish *w)
{
    if (all->method && strcmp(all->method, w->method))
        return cli_fail(c, EXIT_USAGE, "%s means --draft %s, %s says %s: wanted one of them", w->option, w->method,
                        all->option, all->method);
    if (all->tokens == CLI_AUTO && w->tokens >= 0)
        return cli_fail(c, EXIT_USAGE, "%s is %lld, %s is auto: wanted one of them", w->length_option, w->tokens,
                        all->length_option);
    if (all->tokens >= 0 && w->tokens >= 0 && all->tokens != w->tokens)
        return cli_fail(c, EXIT_USAGE, "%s is %lld, %s is %lld: wanted one of them", w->length_option, w->tokens,
                        all->length_option, all->tokens);
    all->option = w->option;
    all->method = w->method;
    if (w->tokens >= 0) {
        all->length_option = w->length_option;
        all->tokens = w->tokens;
    }
    return EXIT_DONE;
}

static int take_number(const struct cli *c, const struct wish *w, const char *option, int32_t *ours, int32_t theirs)
{
    if (theirs && *ours && *ours != theirs)
        return cli_fail(c, EXIT_USAGE, "%s means %s %d, which is given as %d: wanted one of them", w->option, option,
                        (int)theirs, (int)*ours);
    *ours = theirs ? theirs : *ours;
    return EXIT_DONE;
}

static int take_model(struct cli *c, const struct wish *w)
{
    if (!w->model)
        return EXIT_DONE;
    if (c->drafting.model_dir && strcmp(c->drafting.model_dir, w->model))
        return cli_fail(c, EXIT_USAGE, "%s means --draft-model %.128s, which is given as %.128s: wanted one of them",
                        w->option, w->model, c->drafting.model_dir);
    char *copy = strdup(w->model);
    if (!copy)
        return cli_fail(c, EXIT_OTHER, "no memory for the options of %s", w->option);
    free(c->foreign.model_dir);
    c->drafting.model_dir = c->foreign.model_dir = copy;
    return EXIT_DONE;
}

static int take_relaxed(struct cli *c, const struct wish *w)
{
    vb_sampling *s = &c->session.sampling;
    if (!w->relaxed)
        return EXIT_DONE;
    if (!(c->command->takes & TAKES_ACCEPTANCE))
        return cli_fail(c, EXIT_USAGE, "verbatim %s has strict acceptance alone, and %s asks for relaxed acceptance",
                        c->command->name, w->option);
    if ((s->acceptance && strcmp(s->acceptance, "relaxed")) || s->relaxed_topk || c->sampling.relaxed_delta)
        return cli_fail(c, EXIT_USAGE, "%s asks for relaxed acceptance, and %s is given: wanted one of them", w->option,
                        s->relaxed_topk ? "--relaxed-topk"
                        : c->sampling.relaxed_delta ? "--relaxed-delta"
                        : "--acceptance");
    s->acceptance = "relaxed";
    s->relaxed_topk = w->relaxed_topk;
    c->sampling.relaxed_delta = w->relaxed_delta;
    c->foreign.relaxed = 1;
    return EXIT_DONE;
}

static int take(struct cli *c, const struct wish *w)
{
    vb_session_options *s = &c->session;
    int code = take_number(c, w, "--ngram-min", &c->drafting.ngram_min, w->ngram_min);
    if (code == EXIT_DONE)
        code = take_number(c, w, "--ngram-max", &c->drafting.ngram_max, w->ngram_max);
    if (code == EXIT_DONE)
        code = take_number(c, w, "--draft-topk", &s->drafting.tree.topk, w->topk);
    if (code == EXIT_DONE)
        code = take_number(c, w, "--draft-nodes", &s->drafting.tree.nodes, w->nodes);
    if (code == EXIT_DONE)
        code = take_model(c, w);
    if (code == EXIT_DONE)
        code = take_relaxed(c, w);
    if (w->p_min > 0.0f && s->drafting.p_min > 0.0f && w->p_min != s->drafting.p_min && code == EXIT_DONE)
        code = cli_fail(c, EXIT_USAGE, "%s means --draft-p-min %g, which is given as %g: wanted one of them", w->option,
                        (double)w->p_min, (double)s->drafting.p_min);
    s->drafting.p_min = w->p_min > 0.0f ? w->p_min : s->drafting.p_min;
    s->padded |= w->padded;
    return code;
}

/* Returns the draft method of the system that --as names, or NULL if another option chooses the method. */
static const char *method_of_system(const struct cli *c)
{
    unsigned many = COMPARES_METHODS | COMPARES_SYSTEMS;
    vb_system p;
    if (!c->as || c->session.drafting.method || !(c->command->takes & TAKES_DRAFT) || c->command->traits & many)
        return NULL;
    for (size_t i = 0; vb_system_at(i, &p); i++)
        if (!strcmp(p.name, c->as) && strcmp(p.draft, "none"))
            return p.draft;
    return NULL;
}

int cli_foreign_draft(struct cli *c)
{
    struct foreign_draft *f = &c->foreign;
    struct wish all = {.option = "--draft", .method = c->session.drafting.method, .length_option = "--draft-tokens",
                       .tokens = c->draft_tokens};
    struct wish w[] = {{.option = "--speculative-config",
                        .length_option = "--speculative-config's num_speculative_tokens", .tokens = -1},
                       {.option = "--plugin-params", .length_option = "--plugin-params' num_speculative_tokens",
                        .tokens = -1},
                       {.option = "--draft-words", .tokens = -1}};
    int (*const read[])(struct cli *, struct wish *) = {wish_of_vllm, wish_of_mindie, wish_of_words};
    int code = EXIT_DONE;
    for (size_t i = 0; i < sizeof w / sizeof *w && code == EXIT_DONE; i++) {
        code = read[i](c, &w[i]);
        if (code != EXIT_DONE || !w[i].method)
            continue;
        f->by = w[i].option;
        code = agree(c, &all, &w[i]);
        if (code == EXIT_DONE)
            code = take(c, &w[i]);
    }
    if (code == EXIT_DONE && f->by) {
        c->session.drafting.method = all.method;
        c->draft_tokens = all.tokens;
    }
    const char *of_system = code == EXIT_DONE ? method_of_system(c) : NULL;
    if (of_system) {
        c->session.drafting.method = of_system;
        c->draft_by_system = 1;
    }
    return code;
}

void cli_tell_foreign_draft(const struct cli *c)
{
    const struct foreign_draft *f = &c->foreign;
    const vb_session_options *s = &c->session;
    if (c->draft_by_system && cli_draft_tokens(c) && !c->json) /* the JSON output has a key for the method */
        fprintf(stderr, "verbatim: --as %s: --draft %s\n", c->as, cli_draft_name(c));
    if (!f->by)
        return;
    fprintf(stderr, "verbatim: %s: --draft %s", f->by, cli_draft_name(c));
    fprintf(stderr, c->draft_tokens == CLI_AUTO ? " --draft-tokens auto" : " --draft-tokens %d", cli_draft_tokens(c));
    if (s->drafting.tree.topk > 1)
        fprintf(stderr, " --draft-topk %d", (int)s->drafting.tree.topk);
    if (s->drafting.tree.nodes)
        fprintf(stderr, " --draft-nodes %d", (int)s->drafting.tree.nodes);
    if (s->drafting.p_min > 0.0f)
        fprintf(stderr, " --draft-p-min %g", (double)s->drafting.p_min);
    if (c->drafting.ngram_min)
        fprintf(stderr, " --ngram-min %d", (int)c->drafting.ngram_min);
    if (c->drafting.ngram_max)
        fprintf(stderr, " --ngram-max %d", (int)c->drafting.ngram_max);
    if (f->model_dir)
        fprintf(stderr, " --draft-model %s", f->model_dir);
    if (s->padded)
        fputs(" --padded", stderr);
    if (f->relaxed)
        fprintf(stderr, " --acceptance relaxed --relaxed-topk %d --relaxed-delta %s", (int)s->sampling.relaxed_topk,
                c->sampling.relaxed_delta);
    fprintf(stderr, "%s%s\n", *f->ignored ? "; nothing here depends on " : "", f->ignored);
}

void cli_foreign_close(struct cli *c)
{
    free(c->foreign.model_dir);
    free(c->foreign.words_read);
}
