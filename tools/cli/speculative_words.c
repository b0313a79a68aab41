/* tools/cli/speculative_words.c -- --draft-words SYSTEM 'WORDS': drafting in the options of SGLang, TensorRT-LLM and
 * llama.cpp.
 *
 * The names and defaults are those of SGLang's server_args.py, of TensorRT-LLM's
 * examples/llm-api/quickstart_advanced.py and of llama.cpp's common/arg.cpp and common/speculative.cpp (read, not
 * copied). In all of them, one MTP module makes all drafts, and its rows are later computed again from the target's
 * hidden states. With --use_mtp_vanilla of TensorRT-LLM, module k makes draft k+1 instead. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/speculative.h"

enum meaning {
    METHOD,
    LENGTH,
    MODEL,
    TOPK,
    VERIFIED,
    NGRAM_MIN,
    NGRAM_MAX,
    P_MIN,
    VANILLA,
    RELAXED,
    RELAXED_TOPK,
    RELAXED_DELTA,
    MEANINGS
};

static const struct foreign_word {
    const char *name;
    enum meaning meaning;
    int is_flag;
    long long least, most;
} sglang_words[] = {
    {"--speculative-algorithm", METHOD, 0, 0, 0},
    {"--speculative-num-steps", LENGTH, 0, 0, VB_MAX_DRAFT},
    {"--speculative-eagle-topk", TOPK, 0, 1, VB_MAX_TOPK},
    {"--speculative-num-draft-tokens", VERIFIED, 0, 1, VB_MAX_NODES + 1},
    {"--speculative-draft-model-path", MODEL, 0, 0, 0},
    {"--speculative-draft-model", MODEL, 0, 0, 0},
    {"--speculative-ngram-min-match-window-size", NGRAM_MIN, 0, 1, 64},
    {"--speculative-ngram-max-match-window-size", NGRAM_MAX, 0, 1, 64},
    {0},
}, tensorrt_words[] = {
    {"--spec_decode_algo", METHOD, 0, 0, 0},
    {"--spec_decode_max_draft_len", LENGTH, 0, 0, VB_MAX_DRAFT},
    {"--draft_model_dir", MODEL, 0, 0, 0},
    {"--max_matching_ngram_size", NGRAM_MAX, 0, 1, 64},
    {"--use_mtp_vanilla", VANILLA, 1, 0, 0},
    {"--use_relaxed_acceptance_for_thinking", RELAXED, 1, 0, 0},
    {"--relaxed_topk", RELAXED_TOPK, 0, 1, 1 << 30},
    {"--relaxed_delta", RELAXED_DELTA, 0, 0, 0},
    {0},
}, llama_words[] = {
    {"--spec-type", METHOD, 0, 0, 0},
    {"--spec-draft-n-max", LENGTH, 0, 0, VB_MAX_DRAFT},
    {"--spec-draft-p-min", P_MIN, 0, 0, 0},
    {"--spec-draft-model", MODEL, 0, 0, 0},
    {"--model-draft", MODEL, 0, 0, 0},
    {"-md", MODEL, 0, 0, 0},
    {0},
};

/* EAGLE without a second model means the MTP module of the model; see fill_sglang. */
static const struct method_name sglang_methods[] = {
    {"EAGLE", "mtp-eagle"}, {"NEXTN", "mtp-eagle"}, {"EAGLE3", "eagle3"},
    {"NGRAM", "ngram"}, {"STANDALONE", "draft-model"}, {NULL, NULL}};
static const struct method_name tensorrt_methods[] = {
    {"MTP", "mtp-eagle"}, {"EAGLE3", "eagle3"}, {"NGRAM", "ngram"}, {"DRAFT_TARGET", "draft-model"}, {NULL, NULL}};
static const struct method_name llama_methods[] = {
    {"draft-mtp", "mtp-eagle"}, {"draft-eagle3", "eagle3"}, {"draft-simple", "draft-model"}, {"none", "none"},
    {NULL, NULL}};

/* The words that the user gave. An entry is NULL if its word was not given. */
struct given {
    const struct foreign_word *words;
    const char *value[MEANINGS], *name[MEANINGS];
};

static int fill_sglang(struct cli *c, struct wish *w, const struct given *g);
static int fill_tensorrt(struct cli *c, struct wish *w, const struct given *g);
static int fill_llama(struct cli *c, struct wish *w, const struct given *g);

static const struct foreign_system {
    const char *name, *option;
    const struct foreign_word *words;
    const struct method_name *methods;
    /* sets the defaults of the system, and checks which words can be used together */
    int (*fill)(struct cli *c, struct wish *w, const struct given *g);
} systems[] = {
    {"sglang", "--draft-words sglang", sglang_words, sglang_methods, fill_sglang},
    {"tensorrt-llm", "--draft-words tensorrt-llm", tensorrt_words, tensorrt_methods, fill_tensorrt},
    {"llama.cpp", "--draft-words llama.cpp", llama_words, llama_methods, fill_llama},
};
#define SYSTEMS (sizeof systems / sizeof *systems)

static const struct foreign_word *find_word(const struct foreign_word *words, const char *name, size_t length)
{
    for (; words->name; words++)
        if (strlen(words->name) == length && !strncmp(words->name, name, length))
            return words;
    return NULL;
}

const char *cli_foreign_option(const char *name, size_t length)
{
    for (size_t i = 0; i < SYSTEMS; i++)
        if (find_word(systems[i].words, name, length))
            return systems[i].name;
    return NULL;
}

static int unknown_word(const struct cli *c, const struct foreign_system *s, const char *name, size_t length)
{
    char known[512] = "";
    for (const struct foreign_word *w = s->words; w->name; w++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", w->name);
    }
    return cli_fail(c, EXIT_USAGE, "%s: unknown word %.*s; known are %s", s->option, (int)(length < 64 ? length : 64),
                    name, known);
}

/* Splits the text into words, which are separated by blanks. A value follows its word, as a word of its own or after an
 * equals sign. */
static int split(struct cli *c, const struct foreign_system *s, struct given *g)
{
    char *place = NULL;
    c->foreign.words_read = strdup(c->foreign.words);
    if (!c->foreign.words_read)
        return cli_fail(c, EXIT_OTHER, "no memory for the options of %s", s->option);
    for (char *p = strtok_r(c->foreign.words_read, " \t\n", &place); p; p = strtok_r(NULL, " \t\n", &place)) {
        char *equals = strchr(p, '=');
        size_t length = equals ? (size_t)(equals - p) : strlen(p);
        const struct foreign_word *w = find_word(s->words, p, length);
        if (!w)
            return unknown_word(c, s, p, length);
        if (w->is_flag && equals)
            return cli_fail(c, EXIT_USAGE, "%s: %s takes no value", s->option, w->name);
        const char *value = w->is_flag ? "" : equals ? equals + 1 : strtok_r(NULL, " \t\n", &place);
        if (!value || (!*value && !w->is_flag))
            return cli_fail(c, EXIT_USAGE, "%s: %s wants a value", s->option, w->name);
        g->value[w->meaning] = value;
        g->name[w->meaning] = w->name;
    }
    return EXIT_DONE;
}

/* Reads the value of a word into *number. If the word was not given, *number is not changed. */
static int read_integer(const struct cli *c, const struct wish *w, const struct given *g, enum meaning meaning,
                        long long *number)
{
    const char *value = g->value[meaning];
    char *end;
    if (!value)
        return EXIT_DONE;
    const struct foreign_word *word = find_word(g->words, g->name[meaning], strlen(g->name[meaning]));
    errno = 0;
    *number = strtoll(value, &end, 10);
    if (end == value || *end || errno || *number < word->least || *number > word->most)
        return cli_fail(c, EXIT_USAGE, "%s: %s is %.64s, wanted an integer from %lld to %lld", w->option, word->name,
                        value, word->least, word->most);
    return EXIT_DONE;
}

static int read_int32(const struct cli *c, const struct wish *w, const struct given *g, enum meaning meaning,
                      int32_t *number)
{
    long long wide = *number;
    int code = read_integer(c, w, g, meaning, &wide);
    *number = (int32_t)wide;
    return code;
}

static int wants(const struct cli *c, const struct wish *w, const struct given *g, enum meaning meaning,
                 const char *partner)
{
    return cli_fail(c, EXIT_USAGE, "%s: %s wants %s", w->option, g->name[meaning], partner);
}

/* Checks that a second model is given if and only if the method needs one. It may also be given as --draft-model. */
static int check_model(const struct cli *c, const struct wish *w, const char *name)
{
    int takes = !strcmp(w->method, "eagle") || !strcmp(w->method, "eagle3") || !strcmp(w->method, "draft-model");
    if (takes && !w->model && !c->drafting.model_dir)
        return cli_fail(c, EXIT_USAGE, "%s: %s is missing, the directory of what drafts with the method %s", w->option,
                        name, w->method);
    return takes || !w->model ? EXIT_DONE
                              : cli_fail(c, EXIT_USAGE, "%s: %s takes no second model", w->option, w->method);
}

/* Sets the draft length to the default of the system if no option gives a length. */
static void default_length(const struct cli *c, struct wish *w, int length)
{
    if (w->tokens < 0 && c->draft_tokens == -1 && strcmp(w->method, "none"))
        w->tokens = length;
}

/* By default, SGLang drafts chains of 3 tokens for DeepSeek models. Its options count the verified tokens: the drafts
 * and one token before them. Its n-grams have 1 to 12 tokens, and it verifies 12 tokens. */
static int fill_sglang(struct cli *c, struct wish *w, const struct given *g)
{
    long long verified = 0, topk = 1;
    int is_ngram = !strcmp(w->method, "ngram");
    int code = read_integer(c, w, g, VERIFIED, &verified);
    if (code == EXIT_DONE)
        code = read_integer(c, w, g, TOPK, &topk);
    if (code != EXIT_DONE)
        return code;
    for (enum meaning m = NGRAM_MIN; m <= NGRAM_MAX; m++)
        if (g->value[m] && !is_ngram)
            return wants(c, w, g, m, "--speculative-algorithm NGRAM");
    if (is_ngram) {
        w->ngram_min = w->ngram_min ? w->ngram_min : 1;
        w->ngram_max = w->ngram_max ? w->ngram_max : 12;
        w->tokens = verified ? verified - 1 : -1;
        w->length_option = verified ? g->name[VERIFIED] : w->length_option;
        default_length(c, w, 11);
        return w->tokens <= VB_MAX_DRAFT ? check_model(c, w, "--speculative-draft-model-path")
                                         : cli_fail(c, EXIT_USAGE, "%s: %s is %lld, wanted an integer from 1 to %d",
                                                    w->option, g->name[VERIFIED], verified, VB_MAX_DRAFT + 1);
    }
    if (w->model && !strcmp(w->method, "mtp-eagle") && !(c->model_dir && !strcmp(w->model, c->model_dir)))
        w->method = "eagle";
    else if (!strcmp(w->method, "mtp-eagle"))
        w->model = NULL; /* this is the path of the model itself, whose MTP module is used */
    default_length(c, w, 3);
    if (topk > 1) {
        w->topk = (int32_t)topk;
        w->nodes = verified > 1 ? (int32_t)verified - 1 : 0;
    }
    return check_model(c, w, "--speculative-draft-model-path");
}

static int fill_tensorrt(struct cli *c, struct wish *w, const struct given *g)
{
    int is_mtp = !strcmp(w->method, "mtp-eagle"), is_ngram = !strcmp(w->method, "ngram");
    if (g->value[VANILLA] && !is_mtp)
        return wants(c, w, g, VANILLA, "--spec_decode_algo MTP");
    if (g->value[RELAXED] && !is_mtp)
        return wants(c, w, g, RELAXED, "--spec_decode_algo MTP");
    if (g->value[NGRAM_MAX] && !is_ngram)
        return wants(c, w, g, NGRAM_MAX, "--spec_decode_algo NGRAM");
    if (!g->value[RELAXED] && (g->value[RELAXED_TOPK] || g->value[RELAXED_DELTA]))
        return wants(c, w, g, g->value[RELAXED_TOPK] ? RELAXED_TOPK : RELAXED_DELTA,
                     "--use_relaxed_acceptance_for_thinking");
    if (g->value[VANILLA])
        w->method = "mtp-vanilla";
    if (is_ngram) {
        w->ngram_min = 1;
        w->ngram_max = w->ngram_max ? w->ngram_max : 5;
    }
    if (g->value[RELAXED]) {
        w->relaxed = w->relaxed_topk = 1;
        w->relaxed_delta = g->value[RELAXED_DELTA] ? g->value[RELAXED_DELTA] : "0";
        int code = read_int32(c, w, g, RELAXED_TOPK, &w->relaxed_topk);
        if (code != EXIT_DONE)
            return code;
    }
    default_length(c, w, 1);
    return check_model(c, w, "--draft_model_dir");
}

static int fill_llama(struct cli *c, struct wish *w, const struct given *g)
{
    char *end = NULL;
    if (g->value[P_MIN]) {
        w->p_min = strtof(g->value[P_MIN], &end);
        if (end == g->value[P_MIN] || *end || !(w->p_min >= 0.0f && w->p_min <= 1.0f))
            return cli_fail(c, EXIT_USAGE, "%s: %s is %.64s, wanted a number from 0 to 1", w->option, g->name[P_MIN],
                            g->value[P_MIN]);
    }
    default_length(c, w, 3);
    return check_model(c, w, "--spec-draft-model");
}

static int find_system(const struct cli *c, const char *name, const struct foreign_system **found)
{
    for (size_t i = 0; i < SYSTEMS; i++)
        if (!strcmp(systems[i].name, name)) {
            *found = &systems[i];
            return EXIT_DONE;
        }
    int is_vllm = !strncmp(name, "vllm", 4), is_mindie = !strcmp(name, "mindie");
    return cli_fail(c, EXIT_USAGE, "--draft-words: unknown system %.64s; known are sglang, tensorrt-llm, llama.cpp%s",
                    name,
                    is_vllm ? "; vLLM's words are --speculative-config JSON"
                    : is_mindie ? "; MindIE's words are --plugin-params JSON"
                    : "");
}

int wish_of_words(struct cli *c, struct wish *w)
{
    const struct foreign_system *s = NULL;
    if (!c->foreign.words)
        return EXIT_DONE;
    int code = find_system(c, c->foreign.words_system, &s);
    if (code != EXIT_DONE)
        return code;
    struct given g = {.words = s->words};
    w->option = s->option;
    code = split(c, s, &g);
    if (code == EXIT_DONE && !g.value[METHOD])
        return cli_fail(c, EXIT_USAGE, "%s: %s is missing", s->option, s->words[0].name);
    if (code == EXIT_DONE)
        code = wish_method(c, w, s->methods, g.value[METHOD]);
    w->length_option = g.name[LENGTH] ? g.name[LENGTH] : w->option;
    w->model = g.value[MODEL];
    if (code == EXIT_DONE)
        code = read_integer(c, w, &g, LENGTH, &w->tokens);
    if (code == EXIT_DONE)
        code = read_int32(c, w, &g, NGRAM_MIN, &w->ngram_min);
    if (code == EXIT_DONE)
        code = read_int32(c, w, &g, NGRAM_MAX, &w->ngram_max);
    return code == EXIT_DONE ? s->fill(c, w, &g) : code;
}
