/* tools/training/measure.c -- the end of a run: what drafting with the trained modules brings, on texts that were held
 * out.
 *
 * The beginnings of held-out documents are continued at temperature 0, without drafts, with the modules of MODEL and
 * with those of DIR/model, in turns: with mtp-vanilla, or with mtp-eagle if the loss runs module 0 at every depth. With
 * an EAGLE head, the old head is that of --eagle-head, and the new one DIR/head. Each draft is verified by the model,
 * so with --part modules all three write the same text; this is checked. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/file.h"
#include "tools/training/training.h"

#define MOST_PROMPT 64 /* tokens of a document's beginning */
#define NEW_TOKENS 64  /* tokens that continue it */
#define HEAD_DRAFTS 3  /* of an EAGLE head that is trained for one depth */
#define LEAST 8        /* a document that is shorter than two of these is no prompt */

enum { PLAIN, BEFORE, AFTER, WAYS };
static const char *const names[WAYS] = {"without drafts", "before", "after"};

/* The sums of one way over all prompts. */
struct way {
    const vb_model *model; /* NULL: there is none; before, if MODEL has no modules */
    const char *head;      /* the folder of parallel heads or of an EAGLE head; NULL: none */
    size_t tokens, forwards, accepted[VB_MAX_DRAFT], drafted[VB_MAX_DRAFT];
    double seconds;
    uint64_t fingerprint; /* of the newest prompt */
};

static double per_forward(const struct way *w) { return w->forwards ? (double)w->tokens / (double)w->forwards : NAN; }

static int stop_after_signal(void *unused)
{
    (void)unused;
    return cli_stopped() != 0;
}

/* The method, and K: an EAGLE head that is trained for one depth makes several drafts, too. */
static const char *method_of(const struct training *r)
{
    if (is_eagle(&r->c->train))
        return r->c->train.part;
    return has_heads(&r->c->train) ? "parallel-heads" : r->loss.chain == CHAIN_MODULES ? "mtp-vanilla" : "mtp-eagle";
}
static int drafts_of(const struct training *r)
{
    return is_eagle(&r->c->train) && r->c->train.depths == 1 ? HEAD_DRAFTS : (int)r->c->train.depths;
}

static int continue_prompt(const struct training *r, struct way *w, int drafts, const int32_t *prompt, size_t count,
                           int counts)
{
    const struct cli *c = r->c;
    vb_session_options o = {.context = (int32_t)(count + NEW_TOKENS), .threads = c->session.threads,
                            .isa = c->session.isa, .stop = stop_after_signal};
    vb_generate_options g = {.max_tokens = NEW_TOKENS, .ignore_eos = 1, .fingerprint = 1};
    vb_session *session = NULL;
    vb_result result = {0};
    vb_error err;
    if (o.context > vb_max_positions(c->model))
        o.context = vb_max_positions(c->model);
    if (drafts)
        o.drafting = (vb_drafting){.method = method_of(r), .tokens = drafts_of(r), .head = w->head};
    int rc = vb_session_open(&session, w->model, &o, &err);
    if (!rc)
        rc = vb_append(session, prompt, count, &err);
    if (!rc)
        rc = vb_generate(session, &g, &result, &err);
    vb_session_close(session);
    if (rc)
        return cli_error(c, &err);
    if (cli_stopped())
        return EXIT_INTERRUPTED;
    w->fingerprint = result.fingerprint;
    if (!counts)
        return EXIT_DONE;
    w->tokens += result.tokens - 1; /* the first token comes from the prompt's pass */
    w->forwards += result.forwards;
    w->seconds += result.decode_seconds;
    for (int k = 0; k < VB_MAX_DRAFT; k++) {
        w->accepted[k] += result.accepted_by_depth[k];
        w->drafted[k] += result.drafted_by_depth[k];
    }
    return EXIT_DONE;
}

/* Runs all prompts. Returns an exit code; *prompts: how many there were. */
static int run_prompts(const struct training *r, struct way way[WAYS], long long *prompts)
{
    const struct documents *d = &r->held;
    int code = EXIT_DONE, same_text = !is_whole(&r->c->train);
    for (size_t i = 0; i < d->count && *prompts < r->c->train.prompts && code == EXIT_DONE; i++) {
        size_t first = i ? d->end[i - 1] : 0, count = (d->end[i] - first) / 2;
        count = count < MOST_PROMPT ? count : MOST_PROMPT;
        if (count < LEAST || (long long)count + 2 > vb_max_positions(r->c->model))
            continue;
        for (int turn = *prompts == 0 ? 0 : 1; turn < 2; turn++) /* the first prompt is run once more, to warm up */
            for (int w = 0; w < WAYS && code == EXIT_DONE; w++)
                if (way[w].model)
                    code = continue_prompt(r, &way[w], w != PLAIN, d->ids + first, count, turn);
        for (int w = 1; w < WAYS && code == EXIT_DONE; w++)
            if (way[w].model && same_text && way[w].fingerprint != way[PLAIN].fingerprint)
                code = cli_fail(r->c, EXIT_DIFFERENCE,
                                "held-out document %zu: the text with the drafts of %s training differs from that "
                                "without drafts",
                                i, names[w]);
        (*prompts)++;
        cli_progress("measuring", (size_t)*prompts, (size_t)r->c->train.prompts);
    }
    cli_progress("measuring", 1, 1);
    return code;
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

static json_t *way_json(const struct training *r, const struct way *w, int drafts)
{
    json_t *accepted = json_array();
    for (int k = 0; drafts && k < drafts_of(r); k++)
        json_array_append_new(accepted,
                              w->drafted[k] ? json_real((double)w->accepted[k] / (double)w->drafted[k]) : json_null());
    return json_pack("{s:I,s:I,s:f,s:o,s:f}", "tokens", (json_int_t)w->tokens, "forwards", (json_int_t)w->forwards,
                     "tokens_per_forward", w->forwards ? per_forward(w) : 0.0, "acceptance_by_depth", accepted,
                     "decode_seconds", w->seconds);
}

static void print_table(const struct training *r, const struct way way[WAYS], long long prompts)
{
    printf("%lld held-out prompt%s, up to %d tokens each\n%-16s%-16s%-12s%s\n", prompts, prompts == 1 ? "" : "s",
           NEW_TOKENS, "", "tokens/forward", "tokens/s", "accepted, by depth");
    for (int w = 0; w < WAYS; w++) {
        if (!way[w].model)
            continue;
        printf("%-16s%-16.2f%-12.1f", names[w], per_forward(&way[w]),
               way[w].seconds > 0 ? (double)way[w].tokens / way[w].seconds : 0.0);
        for (int k = 0; w != PLAIN && k < drafts_of(r); k++)
            printf("%s%.0f %%", k ? "  " : "",
                   way[w].drafted[k] ? 100.0 * (double)way[w].accepted[k] / (double)way[w].drafted[k] : 0.0);
        putchar('\n');
    }
}

static int write_result(const struct training *r, const json_t *result)
{
    char path[4096];
    struct cli c = *r->c;
    struct cli_file file;
    c.force = 1; /* the file is the run's */
    snprintf(path, sizeof path, "%s/result.json", r->dir);
    if (!cli_file_begin(&c, &file, path))
        return EXIT_OTHER;
    json_dumpf(result, file.stream.f, JSON_INDENT(2));
    fputc('\n', file.stream.f);
    return cli_file_end(&c, &file, NULL);
}

/* Whether the run made things worse, which is said first; null if it was not measured. A whole model with fewer tokens
 * per forward, but a smaller loss, is not worse. */
static void say_worse(const struct training *r, const struct way way[WAYS], json_t *result)
{
    /* without modules before, drafting is compared with decoding without drafts: one token per forward */
    double first, newest, before = way[BEFORE].model ? per_forward(&way[BEFORE]) : 1, after = per_forward(&way[AFTER]);
    int held = curves_held_out(&r->curves, &first, &newest), whole = is_whole(&r->c->train);
    int measured = whole ? held : way[AFTER].tokens > 0, worse = measured && (whole ? newest > first : after < before);
    if (held)
        json_object_update_new(result,
                               json_pack("{s:f,s:f}", "held_out_loss_before", first, "held_out_loss_after", newest));
    json_object_set_new(result, "worse", measured ? json_boolean(worse) : json_null());
    if (r->c->json)
        return;
    if (worse && whole)
        printf("WORSE: the held-out loss is %.4f after training, %.4f before\n", newest, first);
    else if (worse)
        printf("WORSE: %.2f tokens per forward after training, %.2f before\n", after, before);
    if (held && !(worse && whole))
        printf("held-out loss %.4f after training, %.4f before\n", newest, first);
}

static int report(const struct training *r, const struct way way[WAYS], long long prompts)
{
    static const char *const keys[WAYS] = {"without_drafts", "before", "after"};
    json_t *result = json_pack("{s:I,s:I}", "step", (json_int_t)r->step, "prompts", (json_int_t)prompts);
    say_worse(r, way, result);
    for (int w = 0; w < WAYS; w++)
        if (way[w].model && prompts)
            json_object_set_new(result, keys[w], way_json(r, &way[w], w != PLAIN));
    int code = write_result(r, result);
    if (code == EXIT_DONE && r->c->json) {
        char *text = cli_must(json_dumps(result, JSON_COMPACT));
        puts(text);
        free(text);
    } else if (code == EXIT_DONE) {
        if (prompts)
            print_table(r, way, prompts);
        else
            puts("no held-out document is long enough for a prompt: drafting was not measured");
        printf(is_eagle(&r->c->train) ? "%s/head is the trained head\n"
               : is_whole(&r->c->train) || !has_heads(&r->c->train) ? "%s/model is the trained model\n"
               : "%s/head has the trained heads\n",
               r->dir);
    }
    json_decref(result);
    return code;
}

/* Runs and reports. Reports errors. */
static int measure(struct training *r, struct way way[WAYS])
{
    long long prompts = 0;
    int code = run_prompts(r, way, &prompts);
    return code == EXIT_DONE ? report(r, way, prompts) : code;
}

/* Heads of a model that stays as it is. old: the folder that they began with, or NULL */
static int measure_heads(struct training *r, const char *old)
{
    char head[4096];
    struct way way[WAYS] = {[PLAIN] = {.model = r->c->model}, [AFTER] = {.model = r->c->model, .head = head}};
    snprintf(head, sizeof head, "%s/head", r->dir);
    if (old)
        way[BEFORE] = (struct way){.model = r->c->model, .head = old};
    return measure(r, way);
}

int measure_result(struct training *r)
{
    struct way way[WAYS] = {[PLAIN] = {.model = r->c->model}};
    char path[4096];
    vb_model *trained = NULL;
    vb_model_options o = {.conventions = r->c->conventions, .threads = r->c->session.threads};
    vb_error err;
    int heads = has_heads(&r->c->train);
    if (is_eagle(&r->c->train))
        return measure_heads(r, r->eagle.dir);
    if (heads && !is_whole(&r->c->train))
        return measure_heads(r, r->heads.stored ? r->c->train.heads : NULL);
    snprintf(path, sizeof path, "%s/model", r->dir);
    if (vb_model_open(&trained, path, &o, &err))
        return cli_error(r->c, &err);
    if (heads ? r->heads.stored != NULL : vb_mtp_modules(r->c->model) && r->c->train.depths)
        way[BEFORE] = (struct way){.model = r->c->model, .head = r->c->train.heads};
    if (heads || (vb_mtp_modules(trained) && r->c->train.depths))
        way[AFTER] = (struct way){.model = trained, .head = heads ? path : NULL};
    int code = measure(r, way);
    vb_model_close(trained);
    return code;
}
