/* tools/cli/speculative.c -- drafting as the users of other systems write it: --speculative-config of vLLM and vllm-ascend,
 * --plugin-params of MindIE, the options of TensorRT-LLM's quickstart and of llama.cpp. Each says what --draft and
 * --draft-tokens say; what is said twice has to agree. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "tools/cli/cli.h"

/* Their names of methods. In all four systems one module drafts again and again and its rows are computed anew from the
 * target's hidden rows; only TensorRT-LLM's use_mtp_vanilla runs module k for draft k+1. */
static const struct dialect {
    const char *option, *name, *method;
} dialects[] = {
    {"--speculative-config", "deepseek_mtp", "mtp-eagle"},
    {"--speculative-config", "mtp", "mtp-eagle"},
    {"--plugin-params", "mtp", "mtp-eagle"},
    {"--spec_decode_algo", "MTP", "mtp-eagle"},
    {"--spec-type", "draft-mtp", "mtp-eagle"},
    {"--spec-type", "none", "none"},
};

/* About graphs, processors and batches of theirs: no draft depends on them. */
static const char *const without_meaning_here[] = {"draft_tensor_parallel_size", "enforce_eager", "disable_padded_drafter_batch",
                                                   "disable_by_batch_size", "disable_log_stats"};

struct wish {
    const char *option, *method;
    const char *length_option;
    long long tokens; /* -1: not said */
};

static int method_of(const struct cli *c, const char *option, const char *name, const char **method)
{
    char known[256] = "";
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects; i++) {
        const struct dialect *d = &dialects[i];
        size_t used = strlen(known);
        if (strcmp(d->option, option))
            continue;
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", d->name);
        *method = d->method;
        if (!strcmp(d->name, name))
            return EXIT_DONE;
    }
    return cli_fail(c, EXIT_USAGE, "%s: unknown method %.64s; known are %s", option, name, known);
}

static int bad_length(const struct cli *c, const char *option, const char *value)
{
    return cli_fail(c, EXIT_USAGE, "%s is %.64s, wanted an integer from 0 to %d", option, value, VB_MAX_DRAFT);
}

static int length_of(const struct cli *c, const char *option, const char *value, long long *tokens)
{
    char *end;
    if (!value)
        return EXIT_DONE;
    errno = 0;
    *tokens = strtoll(value, &end, 10);
    return end == value || *end || errno || *tokens < 0 || *tokens > VB_MAX_DRAFT ? bad_length(c, option, value) : EXIT_DONE;
}

/* ---- JSON: vLLM, MindIE -------------------------------------------------------------------------------------------- */

static int ignored(const char *key)
{
    for (size_t i = 0; i < sizeof without_meaning_here / sizeof *without_meaning_here; i++)
        if (!strcmp(without_meaning_here[i], key))
            return 1;
    return 0;
}

static int read_member(struct cli *c, struct wish *w, const char *method_key, const char *key, const json_t *value)
{
    char shown[JSON_SHOWN];
    if (!strcmp(key, method_key) && json_is_string(value))
        return method_of(c, w->option, json_string_value(value), &w->method);
    if (!strcmp(key, method_key))
        return cli_fail(c, EXIT_USAGE, "%s: %s is %s, wanted a string", w->option, key, json_show(value, shown));
    if (!strcmp(key, "num_speculative_tokens")) {
        w->tokens = json_integer_value(value);
        return !json_is_integer(value) || w->tokens < 0 || w->tokens > VB_MAX_DRAFT
                   ? bad_length(c, w->length_option, json_show(value, shown)) : EXIT_DONE;
    }
    if (!ignored(key)) {
        json_t *name = json_string(key);
        int code = cli_fail(c, EXIT_USAGE, "%s: unknown key %s; known are %s and num_speculative_tokens", w->option,
                            json_show(name, shown), method_key);
        json_decref(name);
        return code;
    }
    size_t used = strlen(c->foreign.ignored);
    snprintf(c->foreign.ignored + used, sizeof c->foreign.ignored - used, "%s%s", used ? ", " : "", key);
    return EXIT_DONE;
}

static int read_json(struct cli *c, struct wish *w, const char *text, const char *method_key)
{
    vb_error err;
    const char *key;
    json_t *value, *object;
    int code = EXIT_DONE;
    if (!text)
        return EXIT_DONE;
    if (!(object = json_read(text, strlen(text), w->option, &err)))
        return cli_fail(c, EXIT_USAGE, "%s", err.message);
    if (!json_is_object(object))
        code = cli_fail(c, EXIT_USAGE, "%s: not a JSON object", w->option);
    json_object_foreach(object, key, value)
        if (code == EXIT_DONE)
            code = read_member(c, w, method_key, key, value);
    if (code == EXIT_DONE && !w->method)
        code = cli_fail(c, EXIT_USAGE, "%s: %s is missing", w->option, method_key);
    json_decref(object);
    return code;
}

/* ---- options: TensorRT-LLM, llama.cpp ------------------------------------------------------------------------------ */

static int read_options(const struct cli *c, struct wish *w, const char *type, const char *length)
{
    if (!type && length)
        return cli_fail(c, EXIT_USAGE, "%s wants %s", w->length_option, w->option);
    int code = type ? method_of(c, w->option, type, &w->method) : EXIT_DONE;
    return code == EXIT_DONE ? length_of(c, w->length_option, length, &w->tokens) : code;
}

static int read_vanilla(const struct cli *c, struct wish *w)
{
    if (!c->foreign.mtp_vanilla)
        return EXIT_DONE;
    if (!w->method)
        return cli_fail(c, EXIT_USAGE, "--use_mtp_vanilla wants --spec_decode_algo MTP");
    w->method = "mtp-vanilla";
    return EXIT_DONE;
}

/* TensorRT-LLM's names for --acceptance relaxed, --relaxed-topk and --relaxed-delta; its defaults of the two are 1 and 0. */
static int read_relaxed(struct cli *c, const struct wish *w)
{
    static const char *const name = "--use_relaxed_acceptance_for_thinking";
    const struct foreign_draft *f = &c->foreign;
    vb_sampling *s = &c->session.sampling;
    char *end;
    if (!f->relaxed && (f->relaxed_topk || f->relaxed_delta))
        return cli_fail(c, EXIT_USAGE, "%s wants %s", f->relaxed_topk ? "--relaxed_topk" : "--relaxed_delta", name);
    if (!f->relaxed)
        return EXIT_DONE;
    if (!w->method)
        return cli_fail(c, EXIT_USAGE, "%s wants --spec_decode_algo MTP", name);
    if (!(c->command->takes & TAKES_ACCEPTANCE))
        return cli_fail(c, EXIT_USAGE, "verbatim %s has strict acceptance alone, and %s is given", c->command->name, name);
    if ((s->acceptance && strcmp(s->acceptance, "relaxed")) || s->relaxed_topk || c->sampling.relaxed_delta)
        return cli_fail(c, EXIT_USAGE, "%s says what %s says too: wanted one of them", name,
                        s->relaxed_topk ? "--relaxed-topk" : c->sampling.relaxed_delta ? "--relaxed-delta" : "--acceptance");
    long long topk = f->relaxed_topk ? (errno = 0, strtoll(f->relaxed_topk, &end, 10)) : 1;
    if (f->relaxed_topk && (end == f->relaxed_topk || *end || errno || topk < 1 || topk > 1 << 30))
        return cli_fail(c, EXIT_USAGE, "--relaxed_topk is %.64s, wanted an integer from 1 to %d", f->relaxed_topk, 1 << 30);
    s->acceptance = "relaxed";
    s->relaxed_topk = (int32_t)topk;
    c->sampling.relaxed_delta = f->relaxed_delta ? f->relaxed_delta : "0";
    return EXIT_DONE;
}

/* ---- what they say together ---------------------------------------------------------------------------------------- */

static int agree(const struct cli *c, struct wish *all, const struct wish *w)
{
    if (!w->method)
        return EXIT_DONE;
    if (all->method && strcmp(all->method, w->method))
        return cli_fail(c, EXIT_USAGE, "%s means --draft %s, %s says %s: wanted one of them", w->option, w->method, all->option,
                        all->method);
    if (all->tokens == CLI_AUTO && w->tokens >= 0)
        return cli_fail(c, EXIT_USAGE, "%s is %lld, %s is auto: wanted one of them", w->length_option, w->tokens, all->length_option);
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

int cli_foreign_draft(struct cli *c)
{
    struct foreign_draft *f = &c->foreign;
    struct wish all = {"--draft", c->session.drafting.method, "--draft-tokens", c->draft_tokens};
    struct wish w[] = {{"--speculative-config", NULL, "--speculative-config's num_speculative_tokens", -1},
                       {"--plugin-params", NULL, "--plugin-params' num_speculative_tokens", -1},
                       {"--spec_decode_algo", NULL, "--spec_decode_max_draft_len", -1},
                       {"--spec-type", NULL, "--spec-draft-n-max", -1}};
    int code = read_json(c, &w[0], f->vllm, "method");
    if (code == EXIT_DONE)
        code = read_json(c, &w[1], f->mindie, "plugin_type");
    if (code == EXIT_DONE)
        code = read_options(c, &w[2], f->trt_algorithm, f->trt_length);
    if (code == EXIT_DONE)
        code = read_vanilla(c, &w[2]);
    if (code == EXIT_DONE)
        code = read_relaxed(c, &w[2]);
    if (code == EXIT_DONE)
        code = read_options(c, &w[3], f->llama_type, f->llama_length);
    for (size_t i = 0; i < sizeof w / sizeof *w && code == EXIT_DONE; i++) {
        if (w[i].method)
            f->by = w[i].option;
        code = agree(c, &all, &w[i]);
    }
    if (code == EXIT_DONE && f->by) {
        c->session.drafting.method = all.method;
        c->draft_tokens = all.tokens;
    }
    return code;
}

void cli_tell_foreign_draft(const struct cli *c)
{
    const struct foreign_draft *f = &c->foreign;
    char tokens[16];
    snprintf(tokens, sizeof tokens, c->draft_tokens == CLI_AUTO ? "auto" : "%d", cli_draft_tokens(c));
    if (f->by)
        fprintf(stderr, "verbatim: %s: --draft %s --draft-tokens %s%s%s%s\n", f->by, cli_draft_name(c), tokens,
                f->relaxed ? " --acceptance relaxed" : "", *f->ignored ? "; nothing here depends on " : "", f->ignored);
}
