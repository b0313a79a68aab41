/* tools/conventions.c -- `verbatim conventions`: lists the conventions and the systems that follow them, and measures
 * the effect of each convention on a model.
 *
 * The text is cut into windows. The first half of each window is the prompt. The rest is decoded with one setting after
 * another. All settings draft for the same output if the conventions of the target are the same; then every logit must
 * be equal, which is checked. */
#include <stdlib.h>
#include <string.h>

#include "tools/conventions.h"
#include "tools/diff/diff.h"
#include "tools/score/compare.h"

#define MOST_SETTINGS 64
#define MOST_WINDOWS 8

struct conventions_setting {
    char name[96], list[192]; /* list: for conventions_parse, after the command line's own */
    const char *draft;
    int is_target; /* whether the output may differ from that of the first setting */
    vb_result sum;
    uint64_t fingerprint; /* of all windows */
    int same;      /* as the first setting's */
};

struct conventions_text {
    const int32_t *ids;
    size_t count, windows, prompt, length; /* prompt: tokens of each window; length: those decoded after it */
};

/* --- the list of conventions --- */

/* Points on which engines differ that no model computes otherwise, so --convention does not set them: where they are
 * found, the values, and who has which. */
static const struct found_row {
    const char *name, *values, *who, *by;
} found_rows[] = {
    {"logprobs", "raw, temperature",
     "raw: vLLM since V1 (logprobs_mode raw_logprobs), llama.cpp, SGLang with SGLANG_RETURN_ORIGINAL_LOGPROB; "
     "temperature (the logits are divided by it): SGLang, vLLM with processed_logprobs, vLLM V0",
     "MODEL --against FILE.jsonl"},
    {"ranks", "1, 2, 4, 8",
     "ranks of tensor parallelism, whose parts of o_proj are added once (in F32, then one rounding: vLLM's custom "
     "all-reduce), in a chain (each sum rounded: a ring of NCCL) or in a tree",
     "MODEL --against DUMP, if the dump is in BF16 or F16"},
};

static json_t *list_of_values(const char *values)
{
    json_t *list = json_array();
    for (const char *at = values; *at; at += strcspn(at, ", "), at += strspn(at, ", "))
        json_array_append_new(list, json_stringn(at, strcspn(at, ", ")));
    return list;
}

static json_t *values_of(const vb_convention *r)
{
    json_t *values = json_array();
    for (int v = 0; v < VB_CONVENTION_VALUES && r->values[v]; v++)
        json_array_append_new(values, json_string(r->values[v]));
    return values;
}

static int list_json(void)
{
    json_t *rows = json_array(), *systems = json_array();
    vb_convention r;
    vb_system p;
    for (size_t i = 0; vb_convention_at(i, &r); i++)
        json_array_append_new(rows,
                              json_pack("{s:s,s:s,s:o,s:s}", "name", r.name, "of",
                                        r.changes_output ? "target" : "draft", "values", values_of(&r), "who", r.who));
    for (size_t i = 0; i < sizeof found_rows / sizeof *found_rows; i++)
        json_array_append_new(rows, json_pack("{s:s,s:s,s:o,s:s}", "name", found_rows[i].name, "of", "files", "values",
                                              list_of_values(found_rows[i].values), "who", found_rows[i].who));
    for (size_t i = 0; vb_system_at(i, &p); i++)
        json_array_append_new(systems, json_pack("{s:s,s:s,s:s,s:s}", "name", p.name, "sets", p.conventions, "draft",
                                                 p.draft, "evidence", p.evidence));
    return cli_print_json(json_pack("{s:o,s:o}", "conventions", rows, "systems", systems));
}

static int list(const struct cli *c)
{
    if (c->json)
        return list_json();
    puts("--convention NAME=VALUE,...; the first value is the default\n");
    vb_convention r;
    vb_system p;
    for (size_t i = 0, of_target = 0; vb_convention_at(i, &r); i++) {
        char values[96] = "";
        for (int v = 0; v < VB_CONVENTION_VALUES && r.values[v]; v++)
            snprintf(values + strlen(values), sizeof values - strlen(values), "%s%s", v ? ", " : "", r.values[v]);
        if (i == 0)
            puts("of drafting: they change no output");
        if (r.changes_output && !of_target++)
            puts("\nof the target: they change the output");
        printf("  %-16s %-34s %s\n", r.name, values, r.who);
    }
    puts("\nof files: --against finds them, and no option sets them");
    for (size_t i = 0; i < sizeof found_rows / sizeof *found_rows; i++)
        printf("  %-16s %-34s %s\n  %-16s found by verbatim conventions %s\n", found_rows[i].name, found_rows[i].values,
               found_rows[i].who, "", found_rows[i].by);
    puts("\n--as SYSTEM");
    for (size_t i = 0; vb_system_at(i, &p); i++)
        printf("  %-13s %s\n  %-13s drafts with %s; %s\n", p.name, *p.conventions ? p.conventions : "(the defaults)",
               "", p.draft, p.evidence);
    return EXIT_DONE;
}

/* --- the settings --- */

static struct conventions_setting *add(struct conventions_setting *s, size_t *count, const char *draft,
                                       const char *list, int is_target)
{
    struct conventions_setting *n = &s[(*count)++];
    *n = (struct conventions_setting){.draft = draft, .is_target = is_target, .fingerprint = VB_FINGERPRINT_START};
    snprintf(n->name, sizeof n->name, "%s", *list ? list : "defaults");
    snprintf(n->list, sizeof n->list, "%s", list);
    return n;
}

/* The method with the defaults, the other methods, each convention alone, each system. */
static size_t settings_of(const struct cli *c, struct conventions_setting *s)
{
    static const char *const methods[] = {"mtp-eagle", "mtp-vanilla", "eagle-reroll", "eagle-keep"};
    const char *draft = c->draft_given ? c->session.drafting.method : "mtp-eagle";
    size_t count = 0;
    add(s, &count, draft, "", 0);
    for (size_t m = 0; m < sizeof methods / sizeof *methods && !c->draft_given; m++)
        if (strcmp(methods[m], draft))
            add(s, &count, methods[m], "", 0);
    vb_convention r;
    vb_system p;
    char list[96];
    for (size_t i = 0; vb_convention_at(i, &r); i++)
        for (int v = 1; vb_model_convention(c->model, i) >= 0 && v < VB_CONVENTION_VALUES && r.values[v]; v++) {
            snprintf(list, sizeof list, "%s=%s", r.name, r.values[v]);
            add(s, &count, draft, list, r.changes_output);
        }
    for (size_t i = 0; vb_system_at(i, &p); i++) {
        snprintf(list, sizeof list, "as=%s", p.name);
        add(s, &count, c->draft_given || !strcmp(p.draft, "none") ? draft : p.draft, list, p.changes_output);
    }
    return count;
}

/* --- the matrix --- */

static int decode_windows(struct cli *c, struct conventions_setting *s, const struct conventions_text *t)
{
    char conventions[sizeof c->conventions + sizeof s->list + 2];
    vb_model_options options = {.precision = c->precision, .cache_type = c->cache_type, .conventions = conventions,
                                .numa = c->numa, .repack = c->repack, .threads = c->session.threads};
    vb_session_options so = c->session;
    vb_model *model;
    vb_error err = {0};
    if (cli_without_tensor_cores(c))
        return EXIT_USAGE;
    snprintf(conventions, sizeof conventions, "%s%s%s", c->conventions, *c->conventions && *s->list ? "," : "",
             s->list);
    if (vb_model_open(&model, c->model_dir, &options, &err))
        return cli_error(c, &err);
    so.context = (int32_t)(t->prompt + t->length);
    so.drafting.method = s->draft;
    so.drafting.tokens = (int32_t)(c->draft_tokens > 0 ? c->draft_tokens : 0);
    int failed = 0;
    for (size_t i = 0; i < t->windows && !failed; i++) {
        vb_session *session = NULL;
        vb_result r;
        vb_generate_options g = {.max_tokens = t->length, .ignore_eos = 1, .fingerprint = 1};
        failed = vb_session_open(&session, model, &so, &err) ||
                 vb_append(session, t->ids + i * t->prompt, t->prompt, &err) || vb_generate(session, &g, &r, &err);
        vb_session_close(session);
        if (failed)
            break;
        s->fingerprint = (s->fingerprint ^ r.fingerprint) * 1099511628211u;
        s->sum.tokens += r.tokens - 1;
        s->sum.forwards += r.forwards;
        for (int k = 0; k < VB_MAX_DRAFT; k++) {
            s->sum.accepted_by_depth[k] += r.accepted_by_depth[k];
            s->sum.drafted_by_depth[k] += r.drafted_by_depth[k];
        }
    }
    vb_model_close(model);
    return failed ? cli_error(c, &err) : EXIT_DONE;
}

static double share(size_t part, size_t whole) { return whole ? (double)part / (double)whole : 0.0; }

static void print_row(const struct conventions_setting *s)
{
    const char *output = s->same ? "same bits" : s->is_target ? "its own" : "DIFFERS";
    printf("%-32s %-13s %6.3f ", s->name, s->draft, share(s->sum.tokens, s->sum.forwards));
    for (int k = 0; k < VB_MAX_DRAFT && s->sum.drafted_by_depth[k]; k++)
        printf(" %5.1f %%", 100 * share(s->sum.accepted_by_depth[k], s->sum.drafted_by_depth[k]));
    printf("   %s\n", output);
    fflush(stdout);
}

static json_t *row_json(const struct conventions_setting *s)
{
    json_t *depths = json_array();
    for (int k = 0; k < VB_MAX_DRAFT && s->sum.drafted_by_depth[k]; k++)
        json_array_append_new(depths, json_real(share(s->sum.accepted_by_depth[k], s->sum.drafted_by_depth[k])));
    return json_pack("{s:s,s:s,s:f,s:o,s:s,s:b}", "conventions", s->list, "draft", s->draft, "tokens_per_forward",
                     share(s->sum.tokens, s->sum.forwards), "acceptance_by_depth", depths, "of",
                     s->is_target ? "target" : "draft", "same_bits", s->same);
}

static int matrix(struct cli *c, const struct conventions_text *t)
{
    struct conventions_setting *s = calloc(MOST_SETTINGS, sizeof *s);
    json_t *rows = json_array();
    int code = EXIT_DONE, broken = 0;
    cli_must(s);
    size_t count = settings_of(c, s);
    if (!c->json)
        printf("%zu windows: %zu tokens of the text, then %zu decoded\n\n%-32s %-13s %6s   %s\n", t->windows, t->prompt,
               t->length, "conventions", "drafts by", "tokens/forward", "accepted by depth, output");
    for (size_t i = 0; i < count && code == EXIT_DONE; i++) {
        cli_progress("conventions", i, count);
        code = decode_windows(c, &s[i], t);
        s[i].same = s[i].fingerprint == s[0].fingerprint;
        broken |= !s[i].same && !s[i].is_target;
        if (code == EXIT_DONE && c->json)
            json_array_append_new(rows, row_json(&s[i]));
        else if (code == EXIT_DONE)
            print_row(&s[i]);
    }
    cli_progress("conventions", count, count);
    free(s);
    if (code == EXIT_DONE && c->json)
        code = cli_print_json(json_pack("{s:I,s:I,s:I,s:O}", "windows", (json_int_t)t->windows, "prompt",
                                        (json_int_t)t->prompt, "decoded", (json_int_t)t->length, "rows", rows));
    json_decref(rows);
    return code != EXIT_DONE ? code : broken ? EXIT_DIFFERENCE : EXIT_DONE;
}

static int run(struct cli *c)
{
    int32_t *ids = NULL;
    struct conventions_text t = {.length = c->n > 0 ? (size_t)c->n : 64};
    if (!c->model_dir && (c->against || c->file || c->tokens))
        return cli_fail(c, EXIT_USAGE, "MODEL is missing; see verbatim conventions --help");
    if (!c->model_dir)
        return list(c);
    int code = cli_open(c);
    c->prompt_file = c->file;
    if (code == EXIT_DONE && c->against)
        return scored_is(c->against) && !diff_is_stats(c->against) ? conventions_against_scores(c)
                                                                   : conventions_against(c);
    if (code == EXIT_DONE && !vb_mtp_modules(c->model))
        code = cli_fail(c, EXIT_USAGE, "%s has no MTP modules: it drafts nothing", c->model_dir);
    if (code == EXIT_DONE && !c->file == !c->tokens)
        code = cli_fail(c, EXIT_USAGE, "wanted one of --file and --tokens, found %s", c->file ? "both" : "neither");
    if (code == EXIT_DONE && ((c->draft_given && !strcmp(c->session.drafting.method, "none")) || c->draft_tokens == 0))
        code = cli_fail(c, EXIT_USAGE, "%s drafts nothing", c->draft_tokens ? "--draft none" : "--draft-tokens 0");
    if (code == EXIT_DONE && c->n == 0)
        code = cli_fail(c, EXIT_USAGE, "-n is 0: nothing would be decoded");
    if (code == EXIT_DONE)
        code = cli_prompt(c, &ids, &t.count);
    if (code == EXIT_DONE) {
        size_t most = (size_t)vb_max_positions(c->model);
        t.prompt = c->context > 0 ? (size_t)c->context : 64;
        t.prompt = t.prompt < t.count ? t.prompt : t.count;
        t.windows = t.count / t.prompt < MOST_WINDOWS ? t.count / t.prompt : MOST_WINDOWS;
        t.ids = ids;
        code = t.prompt + t.length > most
                   ? cli_fail(c, EXIT_USAGE,
                              "%zu tokens and %zu decoded do not fit into max_position_embeddings, which is %zu",
                              t.prompt, t.length, most)
                   : matrix(c, &t);
    }
    free(ids);
    return code;
}

static const struct note notes[] = {
    {"--context", "Cut the text into windows of N tokens (default 64). At most the first 8 windows are used."},
    {"-n", "Decode N tokens after each window (default 64)."},
    {"--draft", "Measure with this method only. By default, all conventions are measured with mtp-eagle, and the "
                "default conventions "
                "also with the other methods."},
    {"--convention", "Start from these conventions instead of the defaults."},
    {"--as", "Start from all conventions of this system instead of the defaults."},
    {"--names",
     "With --against, and if DUMP has no manifest: its tensors have the names of this system: hf, llama.cpp, megatron, "
     "sglang or vllm."},
    {"--json", "Print {\"rows\": [{conventions, draft, tokens_per_forward, acceptance_by_depth, same_bits}]}."},
    {NULL, NULL}};

const struct command command_conventions = {
    "conventions", "list the points on which inference engines disagree; measure the effect of each convention",
    "[--json]\nMODEL (--file FILE | --tokens IDS) [OPTIONS]\nMODEL --against DUMP [OPTIONS]",
    "Without MODEL, lists the conventions and the systems, and says which system follows which convention.\n"
    "With MODEL, cuts a text into windows and decodes after each window with several settings: the default "
    "conventions, every draft\n"
    "method, each convention changed alone, and all conventions of each system. For each setting, prints the tokens "
    "per forward\n"
    "pass and the acceptance at each draft depth. The command also checks that conventions about drafting do not "
    "change any logit\n"
    "of the output. If one of them does, the exit code is 3.\n"
    "With --against, searches for the conventions that reproduce a dump, and for its number of tensor-parallel ranks. "
    "If DUMP is a\n"
    "file of log-probabilities (.jsonl or .json, as `score`, SGLang or vLLM write them), finds out whether they are "
    "raw or at the\n"
    "temperature. The temperature is in the file, or --temperature gives it.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_EVAL | TAKES_LENGTH | TAKES_DRAFT | TAKES_SAMPLING | TAKES_NO_MODEL |
        TAKES_AGAINST,
    run, notes, COMPARES_SYSTEMS, NULL};
