/* tools/verify.c -- `verbatim verify`: checks with one prompt that all settings give the same bits.
 *
 * The first run decodes plainly, and its rows of logits are kept. Then the same tokens are generated with other
 * settings. Each row from which a token is chosen must have the same bits. With relaxed acceptance, and with rejection
 * when sampling, the output depends on the drafts. Then all runs with the same draft method and K must equal the first
 * of them. */
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/cli.h"
#include "numbers/numbers.h"

#define MOST_SPLITS 8 /* the largest number of splits between CPU and GPU */
#define MOST_ISAS 8 /* the largest number of instruction sets that are compared; no CPU has so many */

struct verify_setting {
    const char *draft, *isa;
    int draft_tokens, threads, chunk;
    int topk, nodes; /* of a tree; 0: a chain */
    int gpu;         /* how many layers a GPU computes, counted from the last one; one more: the output head and the MTP
                        modules, too */
};

/* The rows that others are compared with: those of plain decoding, or of the first run of the method. */
struct baseline {
    float *logits; /* [tokens, V] */
    int32_t *tokens;
    size_t count, room, V;
};

struct verify_comparison {
    const struct baseline *base;
    struct baseline *record; /* filled instead of compared, in the first run */
    size_t index;
    long long token, logit;  /* of the first difference; -1: none */
};

static int see_row(void *context, const vb_event *e)
{
    struct verify_comparison *k = context;
    size_t i = k->index++;
    if (k->record) {
        memcpy(k->record->logits + i * k->record->V, e->logits, k->record->V * sizeof *e->logits);
        k->record->tokens[i] = e->token;
        k->record->count = i + 1;
        return 0;
    }
    const struct baseline *b = k->base;
    if (k->token >= 0)
        return 0;
    if (i >= b->count || memcmp(b->logits + i * b->V, e->logits, b->V * sizeof *e->logits)) {
        k->token = (long long)i;
        for (size_t v = 0; i < b->count && v < b->V && k->logit < 0; v++)
            if (memcmp(&b->logits[i * b->V + v], &e->logits[v], sizeof *e->logits))
                k->logit = (long long)v;
    }
    return 0;
}

struct verify {
    struct cli *c;
    const int32_t *prompt;
    size_t prompt_count, n;
    struct baseline base;
    json_t *rows;
    struct verify_setting first; /* whose rows they are */
    int differences, runs, total;
    int layers; /* of the model, if a GPU computes some of them; else -1 */
};

/* Returns whether the output depends on the drafts. */
static int drafts_lead(const struct cli *c)
{
    return cli_is_relaxed(c) || (cli_is_rejection(c) && c->session.sampling.temperature != 0.0f);
}

/* Returns whether other runs are compared with this run. */
static int is_first(const struct verify *v, const struct verify_setting *s)
{
    return !v->runs ||
           (drafts_lead(v->c) && (strcmp(s->draft, v->first.draft) || s->draft_tokens != v->first.draft_tokens));
}

/* Returns how much the GPU computes: "-", a number of layers, or "all". */
static const char *gpu_name(const struct verify *v, const struct verify_setting *s, char number[12])
{
    snprintf(number, 12, "%d", s->gpu);
    return !s->gpu ? "-" : s->gpu > v->layers ? "all" : number;
}

static void report(struct verify *v, const struct verify_setting *s, const struct verify_comparison *k,
                   const vb_result *r, int first_run)
{
    char fingerprint[17], K[12], number[12];
    int equal = k->token < 0 && k->index == v->base.count, is_auto = s->draft_tokens == CLI_AUTO,
        longest = cli_used_tokens(v->c, r);
    snprintf(K, sizeof K, is_auto ? "auto" : s->topk > 1 ? "%d/%d" : "%d", s->draft_tokens, s->topk);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, r->fingerprint);
    v->differences += !equal;
    if (v->c->json) {
        json_t *first = equal ? json_null()
                              : json_pack("{s:I,s:I}", "token",
                                          (json_int_t)(k->token < 0 ? (long long)k->index : k->token), "logit",
                                          (json_int_t)k->logit);
        json_array_append_new(v->rows, json_pack("{s:s,s:i,s:i,s:b,s:i,s:i,s:i,s:s,s:s,s:b,s:o,s:o}", "draft", s->draft,
                                                 "gpu_layers", s->gpu, "draft_tokens", longest, "auto", is_auto,
                                                 "draft_topk", s->topk > 1 ? s->topk : 1, "threads", s->threads,
                                                 "chunk", s->chunk, "isa", s->isa, "fingerprint", fingerprint, "equal",
                                                 equal, "first_difference", first, "stats", cli_stats(r, longest)));
        return;
    }
    if (!v->runs)
        printf("%-14s %4s %7s %6s %-7s %s%-16s  tokens/forward  equal\n", "draft", "K", "threads", "chunk", "isa",
               v->layers >= 0 ? "gpu  " : "", "fingerprint");
    printf("%-14s %4s %7d %6d %-7s ", s->draft, K, s->threads, s->chunk, s->isa);
    if (v->layers >= 0)
        printf("%-4s ", gpu_name(v, s, number));
    printf("%s  %14.2f  ", fingerprint,
           r->forwards ? ((double)r->tokens - 1.0) / (double)r->forwards : 0.0);
    if (equal)
        puts(!first_run ? "yes" : s->draft_tokens ? "(first of its K)" : "(plain decoding)");
    else
        printf("NO: token %lld, logit %lld\n", k->token < 0 ? (long long)k->index : k->token, k->logit);
    fflush(stdout);
}

/* Whether the bits depend on which layers the GPU computes. */
static int bits_depend_on_split(const struct cli *c) { return cli_has_prefill(c, "cublas") || cli_has_tensor_cores(c); }

static int run_setting(struct verify *v, const struct verify_setting *s)
{
    struct cli *c = v->c;
    vb_session *session = NULL;
    vb_result result;
    vb_error err;
    int first = is_first(v, s);
    struct verify_comparison k = {.base = &v->base, .record = first ? &v->base : NULL, .token = -1, .logit = -1};
    vb_generate_options o = {.max_tokens = v->n, .ignore_eos = c->ignore_eos, .fingerprint = 1, .callback = see_row,
                             .context = &k};
    c->session.drafting.method = s->draft;
    c->draft_tokens = s->draft_tokens;
    c->session.drafting.tree.topk = s->topk;
    c->session.drafting.tree.nodes = s->nodes;
    c->session.threads = s->threads;
    c->session.exact_threads = 1;
    c->session.isa = s->isa;
    c->session.prefill_chunk = s->chunk;
    c->session.cpu_layers = bits_depend_on_split(c) ? 0 : v->layers + 1 - s->gpu;
    int code = cli_stops(c, &o);
    if (code == EXIT_DONE)
        code = cli_session(c, v->prompt_count, (long long)v->n, &session);
    if (first)
        v->base.count = 0;
    if (code == EXIT_DONE &&
        (vb_append(session, v->prompt, v->prompt_count, &err) || vb_generate(session, &o, &result, &err)))
        code = cli_error(c, &err);
    if (code == EXIT_DONE) {
        report(v, s, &k, &result, first);
        v->first = first ? *s : v->first;
        v->runs++;
        cli_progress("verify", (size_t)v->runs, (size_t)v->total);
    }
    vb_session_close(session);
    return code;
}

/* The values of each setting. A setting that the command line fixes has one value. */
struct verify_choices {
    struct verify_setting drafts[64]; /* method and K; the first entry is plain decoding */
    int threads[4], chunks[4], gpu[MOST_SPLITS];
    const char *isa[MOST_ISAS];
    int num_drafts, num_threads, num_chunks, num_isa, num_gpu;
};

static const char *prefill_of(const struct cli *c) { return c->session.prefill ? c->session.prefill : "contract"; }

/* Libraries compute a prompt in chunks of 512 tokens; with other chunks, the bits differ */
static int prefill_has_chunks(const struct cli *c)
{
    return cli_has_prefill(c, "onednn") || cli_has_prefill(c, "cublas");
}

static void add_drafts(struct verify_choices *k, const char *draft, int K, int topk, int nodes)
{
    struct verify_setting *s = &k->drafts[k->num_drafts];
    if (K == 0)
        return;
    *s = k->drafts[0];
    s->draft = draft;
    s->draft_tokens = K;
    s->topk = topk;
    s->nodes = nodes;
    k->num_drafts++;
}

/* What the command line asks for, or two of them: few nodes of a wide tree, many of a deep one. */
static void add_trees(struct verify_choices *k, const struct cli *c, const char *draft)
{
    static const int levels[] = {2, 7}, topk[] = {5, 4}, nodes[] = {6, 30};
    int K = (int)c->draft_tokens;
    if (c->session.drafting.tree.topk > 1)
        add_drafts(k, draft, K == -1 ? 3 : K, c->session.drafting.tree.topk, c->session.drafting.tree.nodes);
    for (int i = 0; i < 2 && c->session.drafting.tree.topk == 0 && K != CLI_AUTO; i++) {
        int deep = K == -1 ? levels[i] : K;
        add_drafts(k, draft, deep, topk[i], deep > nodes[i] ? deep : nodes[i]);
    }
}

static void fill_choices(struct verify_choices *k, const struct cli *c, const struct verify_setting *plain)
{
    static const int lengths[] = {1, 2, 3, 7, 15, CLI_AUTO}, threads[] = {1, 2, 3}, chunks[] = {1, 7, 64, 512};
    *k = (struct verify_choices){.num_drafts = 1};
    k->drafts[0] = *plain;
    vb_draft_method method;
    for (size_t m = 0; vb_draft_methods(m, &method); m++) {
        vb_drafting drafting = c->session.drafting;
        drafting.method = method.name;
        if ((c->draft_given && strcmp(c->session.drafting.method, method.name)) ||
            vb_draft_check(c->model, &drafting, NULL))
            continue;
        for (int i = 0; i < 6 && c->session.drafting.tree.topk <= 1; i++) {
            int K = c->draft_tokens != -1 ? (int)c->draft_tokens : lengths[i];
            if (K == CLI_AUTO && c->draft_tokens == -1 && drafts_lead(c))
                continue; /* what is said would depend on the time that it takes */
            drafting.tokens = K > 0 ? K : 0;
            if (K > 0 && c->draft_tokens == -1 && vb_draft_tokens(c->model, &drafting) < K)
                continue; /* as many as the heads make is one of the shorter lengths */
            if (i == 0 || c->draft_tokens == -1)
                add_drafts(k, method.name, K, 0, c->session.drafting.tree.nodes);
        }
        if (method.trees && !drafts_lead(c) && !c->session.padded)
            add_trees(k, c, method.name);
    }
    k->threads[k->num_threads++] = plain->threads;
    for (int i = 0; i < 3 && !c->threads_given; i++)
        if (threads[i] != plain->threads)
            k->threads[k->num_threads++] = threads[i];
    k->chunks[k->num_chunks++] = plain->chunk;
    for (int i = 0; i < 4 && !c->session.prefill_chunk && !prefill_has_chunks(c); i++)
        if (chunks[i] != plain->chunk && k->num_chunks < 4)
            k->chunks[k->num_chunks++] = chunks[i];
    k->isa[k->num_isa++] = plain->isa;
    for (size_t i = 0; vb_isa(i) && k->num_isa < MOST_ISAS && !c->isa_given; i++)
        if (strcmp(vb_isa(i), plain->isa))
            k->isa[k->num_isa++] = vb_isa(i);
}

/* Adds splits between CPU and GPU: everything that the GPU has, half of the layers, and the last one. If the bits
 * depend on the split, there is only the first. */
static void add_splits(struct verify_choices *k, const struct cli *c, int layers)
{
    vb_device_facts f;
    vb_device_look(c->model, &f);
    int most = (int)(f.layers + f.heads), splits[] = {most, layers / 2, 1};
    int one = bits_depend_on_split(c);
    k->gpu[k->num_gpu++] = one ? most : 0;
    for (int i = 0; i < 3 && layers >= 0 && !one; i++)
        if (splits[i] <= most && splits[i] > 0 && (!i || splits[i] < splits[i - 1]))
            k->gpu[k->num_gpu++] = splits[i];
}

static struct verify_setting combine(const struct verify_choices *k, int draft, int threads, int chunk, int isa,
                                     int gpu)
{
    struct verify_setting s = k->drafts[draft];
    s.threads = k->threads[threads];
    s.chunk = k->chunks[chunk];
    s.isa = k->isa[isa];
    s.gpu = k->gpu[gpu];
    return s;
}

/* Method after method: first as they come, then every other value once. */
static int list_by_draft(struct verify_setting *list, const struct verify_choices *k)
{
    int n = 0;
    for (int d = 0; d < k->num_drafts; d++)
        for (int i = 0; i < max_int(max_int(k->num_threads, k->num_gpu), max_int(k->num_chunks, k->num_isa)); i++)
            list[n++] = combine(k, d, i % k->num_threads, i % k->num_chunks, i % k->num_isa, i % k->num_gpu);
    return n;
}

/* The settings to run, plain decoding first. With all, the full product; else each value alone, then 8 combinations,
 * the same every time. */
static int list_settings(struct verify_setting *list, const struct verify_choices *k, int all, int by_draft)
{
    int n = 0;
    uint64_t random = 1;
    for (int d = 0; all && d < k->num_drafts; d++)
        for (int t = 0; t < k->num_threads; t++)
            for (int c = 0; c < k->num_chunks; c++)
                for (int i = 0; i < k->num_isa; i++)
                    for (int g = 0; g < k->num_gpu; g++)
                        list[n++] = combine(k, d, t, c, i, g);
    if (all || by_draft)
        return all ? n : list_by_draft(list, k);
    for (int d = 0; d < k->num_drafts; d++)
        list[n++] = combine(k, d, 0, 0, 0, d && k->num_gpu > 1); /* with drafts, the GPU computes what it can */
    for (int t = 1; t < k->num_threads; t++)
        list[n++] = combine(k, 0, t, 0, 0, 0);
    for (int c = 1; c < k->num_chunks; c++)
        list[n++] = combine(k, 0, 0, c, 0, k->num_gpu > 1);
    for (int i = 1; i < k->num_isa; i++)
        list[n++] = combine(k, 0, 0, 0, i, 0);
    for (int g = 1; g < k->num_gpu; g++)
        list[n++] = combine(k, 0, 0, 0, 0, g);
    for (int i = 0; i < 8; i++) {
        int of[5] = {k->num_drafts, k->num_threads, k->num_chunks, k->num_isa, k->num_gpu}, pick[5] = {0};
        for (int j = 0; j < (k->num_gpu > 1 ? 5 : 4); j++) {
            random = lcg_next(random);
            pick[j] = (int)((random >> 33) % (uint64_t)of[j]);
        }
        list[n++] = combine(k, pick[0], pick[1], pick[2], pick[3], pick[4]);
    }
    return n;
}

#define MOST_SETTINGS (64 * 4 * 4 * MOST_ISAS * MOST_SPLITS)

static int run_choices(struct verify *v, const struct verify_choices *k, int all)
{
    struct verify_setting *list = malloc(MOST_SETTINGS * sizeof *list);
    int code = EXIT_DONE;
    if (!list)
        return cli_fail(v->c, EXIT_OTHER, "no memory for the list of settings");
    v->total = list_settings(list, k, all, drafts_lead(v->c));
    for (int i = 0; i < v->total && code == EXIT_DONE && !ferror(stdout); i++)
        code = run_setting(v, &list[i]);
    free(list);
    return code;
}

static int processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

/* "best" where a session will say why there is none. */
static const char *isa_name(const struct cli *c)
{
    const char *given = c->session.isa && strcmp(c->session.isa, "best") ? c->session.isa : vb_isa(0);
    return given ? given : "best";
}

/* Returns the number of decoder layers of the model, or -1 if no GPU computes any. */
static int device_layers(const struct cli *c)
{
    vb_device_facts f;
    vb_device_look(c->model, &f);
    return *f.name ? (int)f.all_layers : -1;
}

static void conclude(const struct verify *v)
{
    const struct cli *c = v->c;
    printf("%d runs: %s", v->runs, v->differences ? "DIFFERENT" : "identical, bit for bit");
    if (prefill_has_chunks(c))
        printf("; with --prefill %s chunks are 512 and were not varied", prefill_of(c));
    if (bits_depend_on_split(c))
        fputs("; the bits depend on --gpu-layers, which were not varied", stdout);
    if (drafts_lead(c))
        printf("; with --acceptance %s each draft method and K was compared with itself alone: %s", cli_acceptance(c),
               cli_is_relaxed(c) ? "it is lossy, others give other tokens"
                                 : "the distribution is that of plain decoding, the tokens are not");
    putchar('\n');
}

static int run(struct cli *c)
{
    struct verify v = {.c = c, .n = (size_t)(c->n < 0 ? 64 : c->n)};
    int32_t *prompt = NULL;
    int code = cli_open(c);
    if (code == EXIT_DONE)
        code = cli_prompt(c, &prompt, &v.prompt_count);
    if (code == EXIT_DONE && v.n > (size_t)vb_max_positions(c->model))
        v.n = (size_t)vb_max_positions(c->model); /* no run has more; the rows are allocated for n */
    if (code == EXIT_DONE) {
        struct verify_setting plain = {"none", isa_name(c), 0, c->session.threads ? c->session.threads : processors(),
                                c->session.prefill_chunk ? c->session.prefill_chunk : 512, 0, 0, 0};
        struct verify_choices choices;
        v.layers = device_layers(c);
        fill_choices(&choices, c, &plain);
        add_splits(&choices, c, v.layers);
        v.prompt = prompt;
        v.rows = json_array();
        v.base.V = (size_t)vb_vocab_size(c->model);
        v.base.logits = malloc((v.n ? v.n : 1) * v.base.V * sizeof *v.base.logits);
        v.base.tokens = malloc((v.n ? v.n : 1) * sizeof *v.base.tokens);
        if (!v.base.logits || !v.base.tokens)
            code = cli_fail(c, EXIT_OTHER, "no memory for %zu rows of logits", v.n);
        else
            code = run_choices(&v, &choices, c->all);
        if (code == EXIT_DONE && c->json)
            code = cli_print_json(json_pack("{s:b,s:s,s:s,s:O}", "equal", v.differences == 0, "prefill", prefill_of(c),
                                            "compared_with",
                                            drafts_lead(c) ? "the same draft method and K" : "plain decoding", "rows",
                                            v.rows));
        else if (code == EXIT_DONE)
            conclude(&v);
        if (code == EXIT_DONE && v.differences)
            code = EXIT_DIFFERENCE;
        json_decref(v.rows);
        free(v.base.logits);
        free(v.base.tokens);
    }
    free(prompt);
    return code;
}

static const struct note notes[] = {
    {"--draft", "Verify this method only (default: every method that the model can use)."},
    {"--draft-tokens", "Verify this draft length only, 0 to 15 or auto (default: 1, 2, 3, 7, 15 and auto)."},
    {"--draft-model",
     "Also verify the methods that need a second model: draft-model if DIR is a smaller checkpoint, eagle, eagle3 or "
     "parallel-heads if it holds draft heads."},
    {"--threads", "Use N threads in every run (default: several numbers in turn)."},
    {"--isa", "Use this instruction set in every run (default: each one that the processor has)."},
    {"--prefill-chunk", "Compute N tokens of the prompt per pass in every run (default: 1, 7, 64 and 512 in turn)."},
    {"--prefill", "Choose how the prompt is computed in every run: contract, expanded, onednn or cublas (default "
                  "contract). With onednn "
                  "and cublas, the prompt is always computed in chunks of 512 tokens, so `verify` does not vary the "
                  "chunk size. With cublas, it does not vary the layers of the GPU either."},
    {"--json", "Print an object with the keys equal, prefill, compared_with and rows. Each row describes one run."},
    {NULL, NULL}};

const struct command command_verify = {
    "verify", "check that every setting gives the same bits",
    "MODEL (--prompt TEXT | --prompt-file FILE | --tokens IDS) [OPTIONS]",
    "First decodes plainly, that is, without drafts. Then decodes again several times: first with one setting changed "
    "at a\n"
    "time (draft method, draft length, threads, prefill chunk, instruction set), then with 8 combinations of changed "
    "settings.\n"
    "All logits from which tokens were chosen are compared bit by bit. The exit code is 3 if any bit differs.\n"
    "The text depends on the drafts with --acceptance relaxed, and with --acceptance rejection at a temperature above "
    "0. In these\n"
    "two cases, a run is compared only with the first run of the same draft method and length.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_PROMPT | TAKES_SAMPLING | TAKES_DRAFT | TAKES_LENGTH | TAKES_ALL |
        TAKES_PREFILL | TAKES_STOP | TAKES_ACCEPTANCE,
    run, notes, COMPARES_METHODS, NULL};
