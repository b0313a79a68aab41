/* tools/diff/diff.c -- `verbatim diff`: finds out what each side is and which tokens it reads, and compares the
 * sides. */
#include "tools/diff/gradients.h"
#include "tools/diff/local.h"
#include "tools/score/compare.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct sides {
    struct cli *c;
    const char *path[2];
    int is_model[2];
    struct diff_side side[2];
    struct bounds bounds;
    struct local local[2]; /* the operators of A and of B alone */
    int has_local[2];
    int32_t *ids;     /* the tokens that a model reads */
    size_t count;
};

/* Returns whether `path` is a model: a file with the ending .gguf, or a directory with a config.json. */
static int has_config(const char *path)
{
    size_t n = strlen(path);
    if (n > 5 && !strcmp(path + n - 5, ".gguf"))
        return 1;
    char *inside = vb_path(NULL, path, "config.json");
    int is = inside && vb_file_exists(inside);
    vb_free(NULL, inside);
    return is;
}

static int wants_scores(const struct diff_side *side)
{
    for (size_t i = 0; i < side->count; i++)
        if (strstr(side->series[i].name, ".self_attn.scores."))
            return 1;
    return 0;
}

/* Chooses the tokens that a model reads: those of --tokens, else those of the dump on the other side. */
static int choose_tokens(struct sides *s)
{
    const struct diff_side *dump = !s->is_model[0] ? &s->side[0] : !s->is_model[1] ? &s->side[1] : NULL;
    if (dump && !dump->token_count && dump == &s->side[0] && !s->is_model[1])
        dump = &s->side[1];
    if (s->c->tokens)
        return cli_ids(s->c, s->c->tokens, &s->ids, &s->count);
    if (!dump || !dump->token_count)
        return EXIT_DONE;
    s->ids = malloc(dump->token_count * sizeof *s->ids);
    cli_must(s->ids);
    memcpy(s->ids, dump->tokens, dump->token_count * sizeof *s->ids);
    s->count = dump->token_count;
    return EXIT_DONE;
}

static int check_tokens(struct sides *s, const struct cli *model)
{
    /* the wrong tokens come from the command line or from the dump */
    enum exit_code wrong = s->c->tokens ? EXIT_USAGE : EXIT_OTHER;
    if (!s->count)
        return cli_fail(s->c, EXIT_USAGE,
                        "%s must read some tokens, and no dump beside it says which: --tokens IDS is missing",
                        model->model_dir);
    for (size_t i = 0; i < s->count; i++)
        if (s->ids[i] < 0 || s->ids[i] >= vb_vocab_size(model->model))
            return cli_fail(s->c, wrong, "token %zu is %d, outside the vocabulary of %d", i, s->ids[i],
                            vb_vocab_size(model->model));
    if ((long long)s->count > vb_max_positions(model->model))
        return cli_fail(s->c, wrong, "there are %zu tokens, max_position_embeddings is %d", s->count,
                        (int)vb_max_positions(model->model));
    return EXIT_DONE;
}

/* Sets the options for side i. The options of the command line apply to the only model or, if both sides are models, to
 * B. A is then the engine with its default options. But if B is the reference, A gets the precision and the cache
 * type of B. */
static void options_of(const struct sides *s, int i, struct cli *model)
{
    *model = *s->c;
    model->model = NULL;
    model->tokenizer = NULL;
    model->n = -1;
    model->taps = NULL;
    model->names = model->layers = model->steps = NULL;
    model->model_dir = s->path[i];
    if (i == 0 && s->is_model[1]) {
        model->session.threads = model->session.prefill_chunk = 0;
        model->session.isa = NULL;
        model->precision = s->c->reference ? s->c->precision : NULL;
        model->cache_type = s->c->reference ? s->c->cache_type : NULL;
        model->as = model->convention = NULL;
        model->context = -1;
        model->reference = 0;
    }
}

static int compute_side(struct sides *s, int i, int scores)
{
    struct cli model;
    options_of(s, i, &model);
    int code = cli_open(&model);
    if (code == EXIT_DONE && s->is_model[!i] && i == 0)
        model.session.routes = (vb_routes){0}; /* B follows A */
    if (code == EXIT_DONE)
        code = check_tokens(s, &model);
    if (code == EXIT_DONE)
        code = diff_dump(&model, s->ids, s->count, 0, scores, &s->side[i]);
    s->side[i].path = s->path[i];
    if (code == EXIT_DONE)
        s->side[i].layers = cli_facts(&model).layers;
    cli_close(&model);
    return code;
}

/* Whether the operators of this side are judged alone: of each dump, or of A if both sides are models. */
static int judges(const struct sides *s, int i)
{
    return !s->side[i].is_stats && (!s->is_model[i] || (i == 0 && s->is_model[1]));
}

/* The number of tensor-parallel ranks whose roundings count when operators are judged alone. */
static int ranks_of(const struct sides *s, int i)
{
    return s->c->ranks > 0 ? (int)s->c->ranks : s->side[i].rank_count > 0 ? (int)s->side[i].rank_count : 1;
}

/* Judges the operators alone, and measures the bound with the model, if there is one and its tokens are known. If a
 * side computes in BF16 or F16 throughout, the bound is scaled from half an ulp of f32 to the unit roundoff of that
 * arithmetic. The measured reference must then not round or quantize anything itself (precision f32; see bound.c). */
static int measure(struct sides *s)
{
    if (s->c->local && s->c->runs == 0)
        return cli_fail(s->c, EXIT_USAGE, "--local wants perturbed runs, and --runs is 0");
    struct cli model;
    int which = s->is_model[1] ? 1 : 0, runs = s->c->runs >= 0 ? (int)s->c->runs : 8;
    const char *dir = s->c->model_of_bound ? s->c->model_of_bound : s->is_model[which] ? s->path[which] : NULL;
    if (!dir && (s->c->runs > 0 || s->c->local))
        return cli_fail(s->c, EXIT_USAGE, "%s wants a model: A or B, or --model DIR",
                        s->c->local ? "--local" : "--runs");
    if (s->c->local && !judges(s, 0) && !judges(s, 1))
        return cli_fail(s->c, EXIT_USAGE, "--local wants the numbers of a dump, and there are only statistics");
    if (!dir || !runs)
        return EXIT_DONE;
    options_of(s, 1, &model);
    model.model_dir = dir;
    if (s->bounds.arithmetic != DIFF_F32)
        model.precision = model.cache_type = NULL;
    int code = cli_open(&model);
    if (code == EXIT_DONE)
        code = check_tokens(s, &model);
    for (int i = 0; i < 2 && code == EXIT_DONE; i++)
        if (judges(s, i)) {
            code = diff_local(&model, &s->side[i], &s->bounds, s->ids, s->count, runs, ranks_of(s, i), &s->local[i]);
            local_select(s->c, &s->local[i]);
            s->has_local[i] = 1;
        }
    if (code == EXIT_DONE && !s->c->local)
        code = bounds_measure(&model, &s->bounds, runs, s->ids, s->count,
                              wants_scores(&s->side[0]) && wants_scores(&s->side[1]));
    cli_close(&model);
    return code;
}

static int read_dump(struct sides *s, int i, int layers)
{
    return diff_read_ranks(s->c, &s->side[i], s->path[i], s->c->names ? naming_find(s->c->names) : NULL, layers);
}

static int layers_of(struct sides *s, int i, int *layers)
{
    struct cli model;
    options_of(s, i, &model);
    if (!s->is_model[i])
        model.model_dir = s->c->model_of_bound;
    int code = cli_open(&model);
    if (code == EXIT_DONE)
        *layers = cli_facts(&model).layers;
    cli_close(&model);
    return code;
}

/* Reads both sides. Dumps are read first, because a model reads their tokens. The names of MTP modules can only be
 * translated if the number of the target's layers is known. It comes from a model or, without a model, from a manifest.
 * If a dump was read before this number was known, it is read again. */
static int read_all(struct sides *s)
{
    int code = EXIT_DONE, scores = 0, layers = -1;
    for (int i = 0; i < 2 && code == EXIT_DONE && layers < 0; i++)
        if (s->is_model[i] || s->c->model_of_bound)
            code = layers_of(s, i, &layers);
    for (int i = 0; i < 2 && code == EXIT_DONE; i++)
        if (!s->is_model[i])
            code = read_dump(s, i, layers);
    for (int i = 0; i < 2 && code == EXIT_DONE; i++)
        if (!s->is_model[i] && !s->side[i].has_manifest && s->side[!i].has_manifest &&
            s->side[i].layers != s->side[!i].layers) {
            layers = s->side[!i].layers;
            diff_close(&s->side[i]);
            code = read_dump(s, i, layers);
        }
    if (code == EXIT_DONE)
        code = diff_check_gather(s->c, &s->side[0], &s->side[1]);
    if (code == EXIT_DONE)
        code = choose_tokens(s);
    for (int i = 0; i < 2; i++)
        scores |= !s->is_model[i] && wants_scores(&s->side[i]);
    for (int i = 0; i < 2 && code == EXIT_DONE; i++)
        if (s->is_model[i])
            code = compute_side(s, i, scores);
    return code;
}

/* If nothing was compared, this is an error and not equality. */
static int check_common(struct sides *s, const struct comparison *r)
{
    size_t compared = 0;
    for (size_t i = 0; i < r->count; i++)
        compared += r->taps[i].verdict != NOT_COMPARED;
    if (compared)
        return EXIT_DONE;
    if (r->unselected)
        return cli_fail(s->c, EXIT_USAGE, "--taps, --layers and --steps leave nothing to compare");
    const char *name[2];
    for (int i = 0; i < 2; i++) {
        const json_t *note = json_array_get(s->side[i].notes, 0);
        if (!s->side[i].count && note)
            return cli_fail(s->c, EXIT_OTHER, "%s: there is nothing to compare: %.300s", s->path[i],
                            json_string_value(note));
        name[i] = s->side[i].count ? s->side[i].series[0].name : "nothing";
    }
    return cli_fail(s->c, EXIT_OTHER,
                    "A and B have no %s in common: A has %.100s, B has %.100s; --names says whose names they are",
                    r->count ? "rows" : "names", name[0], name[1]);
}

/* Collects what the bound needs from both sides: the length of the longest row, and the least precise dtype. This dtype
 * counts for all tensors, because a tensor in F32 may have been computed from BF16 values. */
static void look_over(struct sides *s)
{
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < s->side[i].count; k++) {
            const struct diff_series *one = &s->side[i].series[k];
            if (!diff_find(&s->side[!i], one->name, one->depth))
                continue;
            if (!s->bounds.arithmetic_given && one->dtype < s->bounds.arithmetic)
                s->bounds.arithmetic = one->dtype;
            if (!strstr(one->name, "head.output") && !naming_of_context(one->name) && one->width > s->bounds.longest)
                s->bounds.longest = one->width;
        }
}

/* Joins the ranks of each side, aligns the rows and names of both sides, and collects what the bound needs. Reports
 * errors. */
static int join(struct sides *s)
{
    int code = diff_select_rows(s->c, &s->side[0], &s->side[1]);
    for (int i = 0; i < 2 && code == EXIT_DONE; i++)
        code = diff_gather(s->c, &s->side[i], &s->side[!i]);
    if (code != EXIT_DONE)
        return code;
    diff_align(&s->side[0], &s->side[1], s->c->layout_a, s->c->layout_b);
    for (int i = 0; i < 2; i++) {
        diff_note_finite(&s->side[i], &s->side[!i], s->bounds.arithmetic);
        if (s->side[i].is_stats) {
            s->bounds.like = &s->side[i];
            json_array_append_new(s->side[i].notes, json_sprintf("%s has statistics of rows: it is not known which "
                                                                 "numbers of a row differ, and by "
                                                                 "how many ULPs; its operators are not "
                                                                 "judged",
                                                                 s->path[i]));
        }
    }
    s->bounds.layers = s->side[0].layers > 0 ? s->side[0].layers : s->side[1].layers;
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < s->side[i].count; k++)
            if (s->side[i].layers < 0 && s->side[i].series[k].layer >= s->bounds.layers)
                s->bounds.layers = s->side[i].series[k].layer + 1;
    look_over(s);
    return EXIT_DONE;
}

static struct diff_told told_of(const struct sides *s, const struct comparison *r)
{
    struct diff_told told = {.c = s->c, .a = &s->side[0], .b = &s->side[1], .r = r, .bounds = &s->bounds,
                             .tokens = s->count, .chain = !s->c->local, .verdict = r->verdict};
    for (int i = 0; i < 2; i++)
        if (s->has_local[i]) {
            told.local[i] = &s->local[i];
            enum diff_verdict alone = s->local[i].wrong ? STRUCTURAL
                                      : s->local[i].biased ? BIASED
                                      : s->local[i].judged ? ROUNDING
                                      : NOT_COMPARED;
            told.verdict = alone > ROUNDING || !told.chain ? (alone > told.verdict ? alone : told.verdict)
                                                           : told.verdict;
        }
    return told;
}

static int compare(struct sides *s)
{
    struct comparison r = {.other_token = -1};
    int code = EXIT_DONE;
    if (!s->c->local) {
        diff_compare(&r, &s->side[0], &s->side[1], &s->bounds);
        bias_judge(&r, &s->bounds);
        diff_select(s->c, &r);
        if (r.structural && !r.structural->is_stats)
            diff_explain(r.structural, &s->side[0], &s->side[1],
                         s->is_model[1] ? s->path[1]
                         : s->is_model[0] ? s->path[0]
                         : s->c->model_of_bound,
                         r.where, r.looks_like);
        if (r.biased && !r.biased->is_stats)
            diff_explain_bias(r.biased, &s->side[0], &s->side[1], r.biased_where);
        diff_settle_ties(&r, diff_ties(s->c));
        code = check_common(s, &r);
    }
    if (code == EXIT_DONE) {
        struct diff_told told = told_of(s, &r);
        json_t *all = cli_must(diff_json(&told)), *missing = diff_missing(s->c->require, all);
        json_object_set(all, "required_missing", missing);
        int written = s->c->junit ? diff_junit(s->c, all) : EXIT_DONE;
        written = written == EXIT_DONE && s->c->html ? diff_html(s->c, all) : written;
        if (s->c->json && written == EXIT_DONE)
            written = cli_print_json(json_incref(all));
        else if (written == EXIT_DONE)
            diff_print(&told, s->c->all, missing);
        int differs = told.verdict > ROUNDING || told.verdict == NOT_COMPARED ||
                      (told.verdict == ROUNDING && s->c->bits) || json_array_size(missing);
        code = written != EXIT_DONE ? written : differs ? EXIT_DIFFERENCE : EXIT_DONE;
        json_decref(missing);
        json_decref(all);
    }
    comparison_close(&r);
    return code;
}

/* Runs the model once more, with the choices of the other side. Both sides have been read and joined. */
static int follow(struct sides *s, int32_t **experts, int32_t **kept)
{
    int which = s->is_model[1], modules, found = 0;
    struct cli model;
    vb_routes shape;
    options_of(s, which, &model);
    int code = cli_open(&model);
    if (code == EXIT_DONE) {
        vb_model_routes(model.model, &shape);
        modules = vb_mtp_modules(model.model) < VB_MAX_DRAFT ? vb_mtp_modules(model.model) : VB_MAX_DRAFT;
        vb_routes *routes = &s->c->session.routes;
        int phantom = strstr(cli_facts(&model).conventions, "first-row=phantom") != NULL;
        found = diff_routes(&s->side[!which], &s->side[which], &shape, modules, s->count, routes, experts) > 0;
        found |= diff_kept(&s->side[!which], &shape, modules, phantom, s->count, routes, kept) > 0;
    }
    cli_close(&model);
    if (code == EXIT_DONE && !found)
        code = cli_fail(s->c, EXIT_OTHER, "%s: it has no choices of experts or of tokens to follow", s->path[!which]);
    for (int i = 0; i < 2 && code == EXIT_DONE; i++)
        diff_close(&s->side[i]);
    free(s->ids);
    s->ids = NULL;
    return code == EXIT_DONE ? read_all(s) : code;
}

static int run(struct cli *c)
{
    int32_t *followed = NULL, *kept = NULL;
    struct sides s = {.c = c, .path = {c->model_dir, c->other}};
    const char *arithmetic = c->arithmetic;
    if (scored_is(c->model_dir) && scored_is(c->other) && !diff_is_stats(c->model_dir) && !diff_is_stats(c->other))
        return scores_compare(c);
    if (diff_is_gradients(c))
        return diff_gradients(c);
    s.bounds.arithmetic_given = arithmetic != NULL;
    s.bounds.arithmetic = !arithmetic || !strcmp(arithmetic, "f32") ? DIFF_F32
                          : !strcmp(arithmetic, "f16") ? DIFF_F16
                          : DIFF_BF16;
    for (int i = 0; i < 2; i++)
        s.is_model[i] = has_config(s.path[i]);
    int models = s.is_model[0] + s.is_model[1], compute = c->threads_given || c->isa_given || c->precision ||
                                                          c->cache_type || c->reference || c->session.prefill_chunk ||
                                                          c->context > 0;
    if (!models && (compute || (!c->model_of_bound && (c->as || c->convention))))
        return cli_fail(c, EXIT_USAGE,
                        "--reference, --isa, --convention and the like are for a MODEL, and A and B are both dumps");
    if (models == 2 && !c->tokens)
        return cli_fail(c, EXIT_USAGE, "A and B are both models: --tokens IDS is missing");
    if (c->model_of_bound && !has_config(c->model_of_bound))
        return cli_fail(c, EXIT_USAGE, "--model %s: it has no config.json", c->model_of_bound);
    if (c->reference && c->context > 0)
        return cli_fail(c, EXIT_USAGE, "--reference computes one pass over the tokens; --context does not go with it");
    if (c->follow_choices && !models)
        return cli_fail(c, EXIT_USAGE, "--follow-choices wants a MODEL, and A and B are both dumps");
    int code = cli_check_file(c, "--junit", c->junit);
    code = code == EXIT_DONE ? cli_check_file(c, "--html", c->html) : code;
    code = code == EXIT_DONE ? read_all(&s) : code;
    if (code == EXIT_DONE && c->follow_choices) {
        code = join(&s);
        code = code == EXIT_DONE ? follow(&s, &followed, &kept) : code;
    }
    code = code == EXIT_DONE ? join(&s) : code;
    code = code == EXIT_DONE ? measure(&s) : code;
    if (code == EXIT_DONE)
        code = compare(&s);
    for (int i = 0; i < 2; i++) {
        diff_close(&s.side[i]);
        local_close(&s.local[i]);
    }
    bounds_close(&s.bounds);
    free(s.ids);
    free(followed);
    free(kept);
    return code;
}

static const struct note notes[] = {
    {"--tokens", "Use these token ids (5,6,7 or @FILE) instead of those in the manifest. This option is needed if no "
                 "manifest contains "
                 "token ids."},
    {"--taps",
     "Compare and judge only values whose names match one of these patterns. The option may be given several times."},
    {"--names", "If a dump has no manifest: its tensors have the names of this system: hf, llama.cpp, megatron, sglang "
                "or vllm. Or a FILE that "
                "maps names: see docs/ORACLE.md."},
    {"--reference", "Run MODEL with the double-precision reference instead of the engine."},
    {"--json", "Print an object with the keys verdict, first, first_structural, first_biased, taps, local_a, local_b "
               "(operators alone), "
               "only_in_a, only_in_b, notes and others."},
    {NULL, NULL}};

const struct command command_diff = {
    "diff", "compare two dumps, or a dump with a model, and name the first difference",
    "A B [OPTIONS]",
    "A and B are dumps or models. A dump is a .safetensors file of Verbatim or another engine, a directory with\n"
    "dump.safetensors, a directory with a file for each rank, or a file of statistics that `dump --stats` has written. "
    "If one\n"
    "side is a model, it is run on the tokens of the other side. So a token that the two sides chose differently does "
    "not change\n"
    "all later values. If A and B are both models, A runs in the engine with default options, and B runs with the "
    "options below.\n"
    "With --reference, A also runs with --precision and --cache-type.\n"
    "\n"
    "For each value, the table shows how many numbers have equal bits, the largest distance in ULPs, and the largest "
    "absolute\n"
    "distance. It also shows the relative distance, the bound for the relative distance, the NMSE (normalised mean "
    "square error)\n"
    "and the cosine. The relative distance is the largest distance in a row of the tensor, divided by the largest "
    "number of this\n"
    "row. If A and B have different dtypes, the numbers are first rounded to the less precise dtype.\n"
    "Each value gets one of six verdicts.\n"
    "  `identical`            All bits are equal.\n"
    "  `rounding`             In every row, the relative distance is at most the bound.\n"
    "  `tie-flip`             Another expert, another token of sparse attention or another best token was chosen, and "
    "rounding can\n"
    "                         explain it.\n"
    "  `after a tie-flip`     All rows that differ were computed from the results of a tie-flip. These rows are not "
    "judged.\n"
    "  `biased`               Every row is within the bound, but A is larger or smaller by a factor that rounding "
    "cannot explain.\n"
    "  `structural`           Any other difference.\n"
    "\n"
    "If a model is given, each operator is also judged alone: the reference computes it from the dump's own inputs, in "
    "double\n"
    "precision. Wrong and biased operators are listed in the order of computation. If the dump lacks an input, it is "
    "computed from\n"
    "earlier values. With --local, only this is done.\n"
    "\n"
    "For the first structural difference, diff says which rows, heads, columns or experts differ. It also tries common "
    "mistakes:\n"
    "a factor, shifted rows or positions, RoPE in halves instead of pairs, heads or experts in another order, a "
    "transposed matrix,\n"
    "another expert, a missing shard.\n"
    "\n"
    "The exit code is 0 if all values are identical or differ by rounding and no operator is wrong, and 3 otherwise. "
    "The options\n"
    "--bits, --ties, --follow-choices and --require change this.\n"
    "\n"
    "If A or B is a file of gradients (dump --gradients), the gradients are compared. A MODEL then always runs the "
    "reference.\n"
    "\n"
    "If A and B end in .jsonl or .json, they are files of log-probabilities, which `score`, SGLang, vLLM or another "
    "program has\n"
    "written. The verdicts on tokens are then identical, rounding, tie, other route and structural.\n",
    TAKES_COMPUTE | TAKES_REFERENCE | TAKES_NAMES | TAKES_DIFF, run, notes, 0, NULL};
