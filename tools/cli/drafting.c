/* tools/cli/drafting.c -- the command line options of draft methods, and the second model that some methods need. */
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"

static int add_setting(struct cli *c, const char *format, const char *text, int number)
{
    char *settings = c->drafting.settings;
    size_t used = strlen(settings), room = sizeof c->drafting.settings - used;
    int n = text ? snprintf(settings + used, room, "%s%s", used ? "," : "", text)
                 : snprintf(settings + used, room, format, used ? "," : "", number);
    c->session.drafting.settings = settings;
    return (size_t)n < room ? EXIT_DONE
                            : cli_fail(c, EXIT_USAGE, "the settings of draft methods are longer than %zu bytes",
                                       sizeof c->drafting.settings - 1);
}

static int gather_settings(struct cli *c)
{
    int code = c->drafting.given_settings ? add_setting(c, NULL, c->drafting.given_settings, 0) : EXIT_DONE;
    if (code == EXIT_DONE && c->drafting.ngram_min)
        code = add_setting(c, "%sngram-min=%d", NULL, c->drafting.ngram_min);
    if (code == EXIT_DONE && c->drafting.ngram_max)
        code = add_setting(c, "%sngram-max=%d", NULL, c->drafting.ngram_max);
    return code;
}

int cli_drafting(struct cli *c)
{
    vb_draft_method method;
    const char *dir = c->drafting.model_dir, *draft = c->draft_given ? c->session.drafting.method : NULL;
    int may_be_unnamed = c->command->traits & (COMPARES_METHODS | DRAFTS_UNASKED);
    vb_error err;
    if (vb_draft_method_find(&method, draft, &err))
        return cli_error(c, &err);
    if (c->session.drafting.p_min > 1.0f)
        return cli_fail(c, EXIT_USAGE, "--draft-p-min is %g, wanted a number from 0 to 1",
                        (double)c->session.drafting.p_min);
    if (!dir && (c->drafting.precision || c->drafting.gpu_layers))
        return cli_fail(c, EXIT_USAGE, "--draft-%s is that of --draft-model, which is missing",
                        c->drafting.precision ? "precision" : "gpu-layers");
    if (c->drafting.precision && !strcmp(c->drafting.precision, "tensor"))
        return cli_fail(c, EXIT_USAGE, "--draft-precision is tensor; a draft model has f32, bf16, q8 or q4");
    if ((c->session.drafting.tree.topk || c->session.drafting.tree.nodes) && !method.name && (draft || !may_be_unnamed))
        return cli_fail(c, EXIT_USAGE, "--%s is of a draft method, and there is none",
                        c->session.drafting.tree.topk ? "draft-topk" : "draft-nodes");
    if (c->session.drafting.tree.nodes && c->session.drafting.tree.topk <= 1)
        return cli_fail(c, EXIT_USAGE,
                        "--draft-nodes is of trees, which want a --draft-topk of 2 or more: drafts are a chain");
    int takes_dir = method.needs_model || method.needs_head;
    if (!dir && takes_dir)
        return cli_fail(c, EXIT_USAGE, "--draft %s wants --draft-model DIR", draft);
    if (dir && !takes_dir && (draft || !(c->command->traits & COMPARES_METHODS)))
        return cli_fail(c, EXIT_USAGE,
                        "--draft-model is for --draft draft-model, eagle, eagle3 and parallel-heads, not for %s",
                        draft ? draft : "none");
    if (c->drafting.gpu_layers && method.needs_head)
        return cli_fail(c, EXIT_USAGE, "--draft-gpu-layers is of --draft draft-model; the CPU computes %s", draft);
    if (c->drafting.precision && method.needs_head)
        return cli_fail(c, EXIT_USAGE,
                        "--draft-precision is of --draft draft-model; the weights of %s are used as stored", draft);
    if (c->drafting.given_vocab && !method.needs_modules && (draft || !may_be_unnamed))
        return cli_fail(c, EXIT_USAGE, "--draft-vocab is for draft methods with MTP modules, not for %s",
                        draft ? draft : "none");
    return gather_settings(c);
}

/* Checks that the model and the draft model have the same tokens. If one of them has no tokenizer, compares only the
 * sizes of the vocabularies. */
static int check_tokens(const struct cli *c)
{
    vb_tokenizer *other;
    vb_error err;
    const char *dir = c->drafting.model_dir;
    if (!c->tokenizer || vb_tokenizer_open(&other, dir, NULL, &err)) {
        if (vb_vocab_size(c->drafting.model) != vb_vocab_size(c->model))
            return cli_fail(c, EXIT_USAGE, "--draft-model %s: its vocabulary has %d tokens, that of %s %d", dir,
                            vb_vocab_size(c->drafting.model), c->model_dir, vb_vocab_size(c->model));
        if (c->tokenizer)
            fprintf(stderr, "verbatim: --draft-model %s, warning: %s; its tokens were not compared\n", dir,
                    err.message);
        return EXIT_DONE;
    }
    int differ = vb_tokenizers_match(c->tokenizer, other, &err);
    vb_tokenizer_close(other);
    return differ ? cli_fail(c, EXIT_USAGE, "--draft-model %s does not have the tokens of %s: %s", dir, c->model_dir,
                             err.message)
                  : EXIT_DONE;
}

/* Opens the draft vocabulary of --draft-vocab, whose value is N or @FILE. */
static int open_vocab(struct cli *c)
{
    const char *given = c->drafting.given_vocab;
    int32_t *ids, V = vb_vocab_size(c->model);
    size_t count;
    vb_error err;
    if (!given || !vb_mtp_modules(c->model))
        return EXIT_DONE;
    int code = cli_ids(c, given, &ids, &count);
    if (code == EXIT_DONE && given[0] != '@') {
        int32_t n = count == 1 ? ids[0] : 0;
        free(ids);
        if (n < 1 || n > V)
            return cli_fail(c, EXIT_USAGE, "--draft-vocab is %s, wanted @FILE or a number from 1 to %d", given, V);
        count = (size_t)n;
        ids = malloc(count * sizeof *ids);
        cli_must(ids);
        for (int32_t i = 0; i < n; i++)
            ids[i] = i;
    }
    if (code == EXIT_DONE && vb_draft_vocab_open(&c->drafting.vocab, c->model, ids, count, &err))
        code = cli_error(c, &err);
    free(ids);
    c->session.drafting.vocab = c->drafting.vocab;
    return code;
}

int cli_draft_model_open(struct cli *c, const vb_model_options *options)
{
    vb_draft_method method;
    vb_model_options of_draft = *options;
    vb_error err = {0};
    int version = 0;
    if (!c->drafting.model_dir)
        return EXIT_DONE;
    of_draft.numa = NULL; /* the draft model runs on the threads of the target, which has its own placement */
    of_draft.precision = c->drafting.precision ? c->drafting.precision
                         : cli_has_tensor_cores(c) ? "bf16"
                         : options->precision;
    vb_draft_method_find(&method, c->draft_given ? c->session.drafting.method : NULL, NULL);
    if (!method.name && vb_draft_head(&version, c->drafting.model_dir, &err))
        return cli_error(c, &err);
    int is_head = method.name ? method.needs_head : version != 0;
    c->session.drafting.head = is_head ? c->drafting.model_dir : NULL;
    if (!is_head && vb_model_open(&c->drafting.model, c->drafting.model_dir, &of_draft, &err))
        return cli_error(c, &err);
    c->session.drafting.model = c->drafting.model;
    return EXIT_DONE;
}

int cli_drafting_open(struct cli *c, const vb_model_options *options)
{
    vb_draft_method method;
    vb_error err = {0};
    int code = EXIT_DONE;
    if (c->draft_by_system && !vb_mtp_modules(c->model)) { /* that system cannot draft with such a model either */
        c->session.drafting.method = NULL;
        c->draft_given = 0;
    }
    vb_draft_method_find(&method, c->draft_given ? c->session.drafting.method : NULL, NULL);
    if (!c->drafting.model)
        code = cli_draft_model_open(c, options);
    if (code == EXIT_DONE && c->drafting.model)
        code = check_tokens(c);
    if (code == EXIT_DONE)
        code = open_vocab(c);
    if (code == EXIT_DONE && method.name && vb_draft_check(c->model, &c->session.drafting, &err))
        return cli_error(c, &err);
    return code;
}

void cli_drafting_close(struct cli *c)
{
    vb_draft_vocab_close(c->drafting.vocab);
    if (c->drafting.model)
        vb_model_close(c->drafting.model);
}
