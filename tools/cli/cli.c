/* tools/cli/cli.c -- errors, prompts, sessions and output that the subcommands share. */
#include "tools/cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int cli_fail(const struct cli *c, int exit_code, const char *format, ...)
{
    vb_error err = {.code = exit_code == EXIT_USAGE ? VB_BAD_ARGUMENT : VB_IO};
    va_list args;
    va_start(args, format);
    vsnprintf(err.message, sizeof err.message, format, args);
    va_end(args);
    return cli_error(c, &err);
}

int cli_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

int cli_error(const struct cli *c, const vb_error *err)
{
    /* Names from outside can contain any bytes. Invalid bytes become U+FFFD and control characters become '?', so that
     * the message stays on one line. */
    vb_utf8 stream = {0};
    char whole[320 + sizeof err->message], message[3 * (sizeof whole + 4) + 12];
    snprintf(whole, sizeof whole, "%.300s%s%s", c->where ? c->where : "", c->where ? ": " : "", err->message);
    size_t size = vb_utf8_push(&stream, whole, strlen(whole), message);
    size += vb_utf8_finish(&stream, message + size);
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)message[i] < 0x20 || message[i] == 0x7f)
            message[i] = '?';
    if (c->json)
        cli_print_json(json_pack("{s:s%}", "error", message, size));
    else
        fprintf(stderr, "verbatim: %.*s\n", (int)size, message);
    return err->code == VB_BAD_ARGUMENT ? EXIT_USAGE : EXIT_OTHER;
}

int cli_print_json(json_t *value)
{
    int code = value ? EXIT_DONE : EXIT_OTHER;
    if (!value)
        value = json_pack("{s:s}", "error", "a name is not valid UTF-8, which JSON wants");
    json_dumpf(value, stdout, JSON_REAL_PRECISION(9)); /* main checks later whether stdout could be written */
    putchar('\n');
    fflush(stdout);
    json_decref(value);
    return code;
}

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cli_progress(const char *label, size_t done, size_t total)
{
    static double last;
    double now = cli_seconds();
    if (!cli_terminal(STDERR_FILENO) || (done < total && now - last < 0.1))
        return;
    last = now;
    if (done < total)
        fprintf(stderr, "\r%s: %3.0f %%", label, 100.0 * (double)done / (double)total);
    else
        fprintf(stderr, "\r\033[K");
}

static void show_copies(void *label, size_t done, size_t total)
{
    if (total >= (size_t)64 << 20) /* smaller copies take no noticeable time */
        cli_progress(label, done, total);
}

/* Prints the result of --numa: always if it failed, else only with --stats. */
static void tell_placement(const struct cli *c)
{
    vb_placement p;
    if (!vb_model_placement(c->model, &p) || !(c->stats || p.failed))
        return;
    fprintf(stderr, "--numa %s: ", c->numa);
    if (p.pages)
        fprintf(stderr,
                "%d nodes; of %zu pages of weights %zu lay in their place, %zu were moved there, %zu lie elsewhere "
                "(%.1f s)%s",
                p.nodes, p.pages, p.in_place, p.moved, p.pages - p.in_place - p.moved, p.seconds,
                *p.why_not ? "; " : "");
    fprintf(stderr, "%s\n", p.why_not);
}

vb_model_facts cli_facts(const struct cli *c)
{
    vb_model_facts facts;
    vb_model_look(c->model, &facts);
    return facts;
}

/* Warns about a GGUF file without a key that changes the results, unless the command reports this itself (as `inspect`
 * does). */
static void tell_missing(const struct cli *c)
{
    vb_model_facts facts = cli_facts(c);
    int told = c->command->traits & REPORTS_MISSING;
    if (facts.no_groups && !told)
        fprintf(stderr, "verbatim: warning: %s %s\n", c->model_dir, CLI_NO_GROUPS);
    if (facts.no_query_scale && !told)
        fprintf(stderr, "verbatim: warning: %s %s\n", c->model_dir, CLI_NO_QUERY_SCALE);
}

int cli_has_prefill(const struct cli *c, const char *kind)
{
    return c->session.prefill && !strcmp(c->session.prefill, kind);
}

int cli_without_prefill(const struct cli *c, const char *kind)
{
    return cli_has_prefill(c, kind)
               ? cli_fail(c, EXIT_USAGE, "verbatim %s does not have --prefill %s", c->command->name, kind)
               : EXIT_DONE;
}

int cli_has_tensor_cores(const struct cli *c) { return c->precision && !strcmp(c->precision, "tensor"); }

int cli_without_tensor_cores(const struct cli *c)
{
    return cli_has_tensor_cores(c)
               ? cli_fail(c, EXIT_USAGE, "verbatim %s computes on the CPU, and --precision tensor is for a GPU",
                          c->command->name)
               : EXIT_DONE;
}

void cli_tensor_split(const struct cli *c, char *text, size_t size)
{
    vb_device_facts f;
    *text = 0;
    if (!cli_has_tensor_cores(c))
        return;
    vb_device_look(c->model, &f);
    snprintf(text, size, "%s %d %d %d %d", f.name, (int)f.layers, (int)f.attentions, (int)f.heads,
             c->gpu_experts && !strcmp(c->gpu_experts, "off"));
}

/* Reads the value of --gpu-layers or --draft-gpu-layers. */
static int read_layers(struct cli *c, const char *option, const char *given, int32_t *layers)
{
    const char *text = given ? given : "auto";
    int is_all = !strcmp(text, "all");
    char *end;
    long long n = strtoll(text, &end, 10);
    if (!is_all && strcmp(text, "auto") && (!*text || *end || n < 0 || n > INT32_MAX))
        return cli_fail(c, EXIT_USAGE, "%s is %s, wanted a number, all or auto", option, text);
    *layers = is_all ? INT32_MAX : !strcmp(text, "auto") ? VB_OFFLOAD_AUTO : (int32_t)n;
    return EXIT_DONE;
}

/* Reads the options about a GPU: for the model, and for a draft model. */
static int offload(struct cli *c, vb_offload *o, vb_offload *of_draft)
{
    *o = *of_draft = (vb_offload){.device = c->device,
                                  .without_experts = c->gpu_experts && !strcmp(c->gpu_experts, "off")};
    if (!c->device && (c->gpu_layers || c->gpu_experts || c->drafting.gpu_layers))
        return cli_fail(c, EXIT_USAGE, "--%s is for --device cuda",
                        c->gpu_layers ? "gpu-layers"
                        : c->gpu_experts ? "gpu-experts"
                        : "draft-gpu-layers");
    if (c->gpu_experts && !o->without_experts && strcmp(c->gpu_experts, "on"))
        return cli_fail(c, EXIT_USAGE, "--gpu-experts is %s, wanted on or off", c->gpu_experts);
    int code = read_layers(c, "--gpu-layers", c->gpu_layers, &o->layers);
    return code ? code : read_layers(c, "--draft-gpu-layers", c->drafting.gpu_layers, &of_draft->layers);
}

static void tell_device(const struct cli *c)
{
    const vb_model *models[] = {c->model, c->drafting.model};
    for (int i = 0; i < 2 && models[i]; i++) {
        vb_device_facts f;
        vb_device_look(models[i], &f);
        if (*f.why_not)
            fprintf(stderr, "verbatim: %s: the CPU computes everything%s: %s\n",
                    i ? "--draft-gpu-layers" : "--device auto", i ? " of the draft model" : "", f.why_not);
        if (c->stats && *f.name)
            fprintf(stderr, "%s: %s%d of %d layers, attention of %d, %s%.1f MB of weights\n", f.name,
                    i ? "of the draft model, " : "", (int)f.layers, (int)f.all_layers, (int)f.attentions,
                    f.heads ? "MTP modules and the output head, " : "", 1e-6 * (double)f.weight_bytes);
    }
}

int cli_open(struct cli *c)
{
    vb_error err = {0};
    vb_offload gpu, gpu_of_draft;
    if (offload(c, &gpu, &gpu_of_draft))
        return EXIT_USAGE;
    vb_model_options options = {.precision = c->precision, .cache_type = c->cache_type, .conventions = c->conventions,
                                .numa = c->numa, .repack = c->repack, .repack_cache = c->repack_cache,
                                .threads = c->session.threads, .progress = show_copies,
                                .progress_context = "copying weights", .ranks = c->group, .offload = &gpu};
    int size = snprintf(c->conventions, sizeof c->conventions, "%s%s%s%s", c->as ? "as=" : "", c->as ? c->as : "",
                        c->as && c->convention ? "," : "", c->convention ? c->convention : "");
    if (size >= (int)sizeof c->conventions)
        return cli_fail(c, EXIT_USAGE, "--convention has %d characters, at most %zu", size, sizeof c->conventions - 1);
    if (c->ranks_weights && !c->group)
        return cli_fail(c, EXIT_USAGE,
                        "--ranks-weights is for verbatim-mpi, which computes one model in several processes");
    if (!(c->command->takes & TAKES_COMPUTE) && cli_without_tensor_cores(c))
        return EXIT_USAGE;
    double start = cli_seconds();
    /* A draft model is small: rank 0 computes it alone. It gets memory of a GPU before the model does, which takes what
     * is left */
    vb_model_options of_draft = options;
    of_draft.ranks = NULL;
    of_draft.offload = c->device ? &gpu_of_draft : NULL;
    char optional[32]; /* what the GPU cannot do of drafting, the CPU does */
    if (c->device && !strncmp(c->device, "cuda", 4)) {
        snprintf(optional, sizeof optional, "auto%.20s", c->device + 4);
        gpu_of_draft.device = optional;
    }
    int code = c->device ? cli_draft_model_open(c, &of_draft) : EXIT_DONE;
    if (code)
        return code;
    if (vb_model_open(&c->model, c->model_dir, &options, &err))
        return cli_error(c, &err);
    tell_placement(c);
    tell_device(c);
    cli_tell_ranks(c, 0);
    tell_missing(c);
    if (*cli_facts(c).repack_cache_note)
        fprintf(stderr, "verbatim: --repack-cache: %s\n", cli_facts(c).repack_cache_note);
    /* without locked memory the output is the same, so this is only a warning, as in llama.cpp */
    if (c->mlock && vb_model_lock(c->model, &err))
        fprintf(stderr, "verbatim: --mlock, warning: %s; going on without\n", err.message);
    if (vb_tokenizer_open(&c->tokenizer, c->model_dir, NULL, &c->tokenizer_error))
        c->tokenizer = NULL;
    code = cli_drafting_open(c, &of_draft);
    c->open_seconds = cli_seconds() - start;
    if (code == EXIT_DONE)
        cli_tell_foreign_draft(c);
    return code;
}

static void tell_no_memory(const struct cli *c)
{
    vb_device_facts f;
    vb_device_look(c->model, &f);
    if (f.no_memory && !cli_has_tensor_cores(c)) /* with them it was an error */
        fprintf(stderr,
                "verbatim: %s had no memory for the cache or the passes of a session: what does not fit is left to the "
                "CPU\n",
                f.name);
    if (!c->drafting.model)
        return;
    vb_device_look(c->drafting.model, &f);
    if (f.no_memory)
        fprintf(stderr,
                "verbatim: %s failed, or had no memory for a session of the draft model: the CPU computed it then\n",
                f.name);
}

void cli_close(struct cli *c)
{
    if (c->model)
        tell_no_memory(c);
    vb_tokenizer_close(c->tokenizer);
    vb_template_close(c->template);
    cli_drafting_close(c); /* a draft vocabulary is closed before its model */
    if (c->model)
        vb_model_close(c->model);
    free(c->routes);
    free(c->kept);
    cli_sampling_close(c);
    cli_foreign_close(c);
}

int cli_ids(struct cli *c, const char *spec, int32_t **ids, size_t *count)
{
    char *text = NULL;
    const char *p = spec;
    size_t size = strlen(spec), room = 0;
    vb_error err;
    *ids = NULL;
    *count = 0;
    if (spec[0] == '@') {
        if (vb_read_input(NULL, spec + 1, &text, &size, &err))
            return cli_error(c, &err);
        p = text;
    }
    const char *end = p + size;
    while (p < end) {
        char *after;
        if (*p == ',' || isspace((unsigned char)*p)) {
            p++;
            continue;
        }
        errno = 0;
        long long id = strtoll(p, &after, 10);
        if (after == p || errno || id < 0 || id > INT32_MAX ||
            (after < end && *after != ',' && !isspace((unsigned char)*after))) {
            size_t shown = strcspn(p, ", \t\n\v\f\r");
            int code = cli_fail(c, EXIT_USAGE, "%.64s: token id %zu is \"%.*s\", wanted an integer of 0 or more", spec,
                                *count, (int)(shown < 16 ? shown : 16), p);
            vb_free(NULL, text);
            free(*ids);
            *ids = NULL; /* the caller frees *ids even after an error */
            return code;
        }
        if (*count == room) {
            room = room ? 2 * room : 256;
            *ids = realloc(*ids, room * sizeof **ids);
            cli_must(*ids);
        }
        (*ids)[(*count)++] = (int32_t)id;
        p = after;
    }
    vb_free(NULL, text);
    return EXIT_DONE;
}

int cli_encode(struct cli *c, const char *name, const char *text, size_t size, int special, int32_t **ids,
               size_t *count)
{
    vb_error err;
    size_t room;
    int code;
    *ids = NULL;
    *count = size + 1; /* a text rarely has more tokens than bytes; if it has, the loop tries again with more room */
    do {
        room = *count;
        *ids = cli_must(realloc(*ids, room * sizeof **ids));
        code = (special ? vb_encode : vb_encode_plain)(c->tokenizer, text, size, *ids, room, count, &err);
    } while (!code && *count > room);
    if (!code)
        return EXIT_DONE;
    free(*ids);
    *ids = NULL;
    return cli_fail(c, EXIT_OTHER, "%.256s: %s", name, err.message); /* the error is in the text, not in the command
                                                                        line */
}

int cli_encode_prompt(struct cli *c, const char *name, const char *text, size_t size, int is_chat, int32_t **ids,
                      size_t *count)
{
    int32_t *encoded;
    int bos = c->bos || (!c->no_bos && !is_chat && vb_add_bos(c->tokenizer)); /* a chat template writes BOS itself */
    if (bos && vb_bos_token(c->tokenizer) < 0)
        return cli_fail(c, EXIT_USAGE, "--bos: the tokenizer has no BOS token");
    int code = cli_encode(c, name, text, size, 1, &encoded, count);
    if (code != EXIT_DONE)
        return code;
    *ids = malloc((*count + 1) * sizeof **ids);
    cli_must(*ids);
    memcpy(*ids + bos, encoded, *count * sizeof **ids);
    if (bos)
        (*ids)[0] = vb_bos_token(c->tokenizer);
    int empty = *count == 0 && !c->bos; /* with --bos, BOS alone is a valid prompt */
    *count += (size_t)bos;
    free(encoded);
    if (empty) {
        free(*ids);
        *ids = NULL;
        return cli_fail(c, EXIT_USAGE, "the prompt is empty");
    }
    return EXIT_DONE;
}

int cli_prompt(struct cli *c, int32_t **ids, size_t *count)
{
    int code;
    vb_error err;
    *ids = NULL;
    *count = 0;
    if (c->tokens) {
        code = cli_ids(c, c->tokens, ids, count);
    } else if (!c->tokenizer) {
        code = cli_error(c, &c->tokenizer_error);
    } else if (c->chat) {
        char *text;
        size_t size;
        code = cli_chat_text(c, &text, &size);
        if (code == EXIT_DONE)
            code = cli_encode_prompt(c, "the chat template's text", text, size, 1, ids, count);
        vb_text_free(text);
    } else if (c->prompt) {
        code = cli_encode_prompt(c, "--prompt", c->prompt, strlen(c->prompt), 0, ids, count);
    } else {
        char *text;
        size_t size;
        if (vb_read_input(NULL, c->prompt_file, &text, &size, &err))
            return cli_error(c, &err);
        code = cli_encode_prompt(c, c->prompt_file, text, size, 0, ids, count);
        vb_free(NULL, text);
    }
    if (code != EXIT_DONE)
        return code;
    if (*count == 0)
        code = cli_fail(c, EXIT_USAGE, "the prompt is empty");
    for (size_t i = 0; i < *count && code == EXIT_DONE; i++)
        if ((*ids)[i] >= vb_vocab_size(c->model))
            code = cli_fail(c, EXIT_USAGE, "token %zu is %d, outside the vocabulary of %d", i, (*ids)[i],
                            vb_vocab_size(c->model));
    if (code != EXIT_DONE) {
        free(*ids);
        *ids = NULL;
    }
    return code;
}

int cli_draft_tokens(const struct cli *c)
{
    vb_drafting drafting = c->session.drafting;
    drafting.automatic = c->draft_tokens == CLI_AUTO;
    drafting.tokens = c->draft_tokens > 0 ? (int32_t)c->draft_tokens : 0;
    /* in cli.draft_tokens, 0 means no drafts; in vb_drafting.tokens, 0 means the default of the method */
    return c->draft_tokens == 0 ? 0 : vb_draft_tokens(c->model, &drafting);
}

int cli_used_tokens(const struct cli *c, const vb_result *r)
{
    int used = c->draft_tokens == CLI_AUTO ? VB_MAX_DRAFT : cli_draft_tokens(c);
    while (c->draft_tokens == CLI_AUTO && used && !r->drafted_by_depth[used - 1])
        used--;
    return used;
}

const char *cli_draft_name(const struct cli *c) { return cli_draft_tokens(c) ? c->session.drafting.method : "none"; }

int cli_session_options(struct cli *c, size_t prompt_tokens, long long n, vb_session_options *o)
{
    long long most = vb_max_positions(c->model), wanted = (long long)prompt_tokens + n;
    *o = c->session;
    if (c->context > most)
        return cli_fail(c, EXIT_USAGE, "--context is %lld, max_position_embeddings is %lld", c->context, most);
    if ((long long)prompt_tokens > (c->context > 0 ? c->context : most))
        return cli_fail(c, EXIT_USAGE, "the prompt has %zu tokens, the context %lld", prompt_tokens,
                        c->context > 0 ? c->context : most);
    int code = cli_thinking(c);
    if (code != EXIT_DONE)
        return code;
    o->sampling = c->session.sampling;
    o->context = (int32_t)(c->context > 0 ? c->context : wanted < most ? wanted : most);
    o->drafting.method = cli_draft_name(c);
    o->drafting.tokens = cli_draft_tokens(c);
    o->drafting.automatic = c->draft_tokens == CLI_AUTO;
    return EXIT_DONE;
}

int cli_session(struct cli *c, size_t prompt_tokens, long long n, vb_session **out)
{
    vb_error err;
    vb_session_options o;
    *out = NULL;
    int code = cli_session_options(c, prompt_tokens, n, &o);
    if (code != EXIT_DONE)
        return code;
    return vb_session_open(out, c->model, &o, &err) ? cli_error(c, &err) : EXIT_DONE;
}

char *cli_text(const struct cli *c, const int32_t *ids, size_t count, size_t most, size_t *bytes)
{
    vb_utf8 stream = {0};
    size_t room = 16, used = 0, taken = 0, size;
    if (!c->tokenizer)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (vb_piece(c->tokenizer, ids[i], &size))
            room += 3 * (size + 4);
    char *text = malloc(room);
    cli_must(text);
    for (size_t i = 0; i < count; i++) {
        const char *piece = vb_piece(c->tokenizer, ids[i], &size);
        if (!piece || (i + 1 == count && c->model && !c->ignore_eos && vb_is_end_token(c->model, ids[i])))
            continue;
        size = size < most - taken ? size : most - taken;
        taken += size;
        used += vb_utf8_push(&stream, piece, size, text + used);
    }
    used += vb_utf8_finish(&stream, text + used);
    text[used] = '\0';
    *bytes = used;
    return text;
}

static json_t *ratio(double a, double b) { return b > 0.0 ? json_real(a / b) : json_null(); }

const char *cli_reject_name(enum vb_reject why)
{
    static const char *const names[VB_REJECT_REASONS] = {
        [VB_REJECT_OTHER_TOKEN] = "other_token", [VB_REJECT_CHANCE] = "chance", [VB_REJECT_MASKED] = "masked",
        [VB_REJECT_CUT_OFF] = "cut_off", [VB_REJECT_RANK] = "rank", [VB_REJECT_DELTA] = "delta"};
    return names[why];
}

static json_t *reject_reasons(const vb_result *r)
{
    json_t *reasons = json_object();
    for (int why = 0; why < VB_REJECT_REASONS; why++)
        json_object_set_new(reasons, cli_reject_name((enum vb_reject)why),
                            json_integer((json_int_t)r->first_reject[why]));
    return reasons;
}

json_t *cli_stats(const vb_result *r, int draft_tokens)
{
    json_t *by_depth = json_array(), *drafted = json_array(), *rejected = json_array();
    for (int k = 0; k < draft_tokens; k++) {
        json_array_append_new(by_depth, json_integer((json_int_t)r->accepted_by_depth[k]));
        json_array_append_new(drafted, json_integer((json_int_t)r->drafted_by_depth[k]));
        json_array_append_new(rejected, json_integer((json_int_t)r->rejected_by_depth[k]));
    }
    double after_first = r->tokens ? (double)r->tokens - 1.0 : 0.0;
    return json_pack("{s:I,s:o,s:I,s:I,s:o,s:o,s:o,s:o,s:I,s:f,s:o,s:o}", "forwards", (json_int_t)r->forwards,
                     "tokens_per_forward", ratio(after_first, (double)r->forwards), "drafted", (json_int_t)r->drafted,
                     "accepted", (json_int_t)r->accepted, "accepted_by_depth", by_depth, "drafted_by_depth", drafted,
                     "rejected_by_depth", rejected, "first_reject", reject_reasons(r), "relaxed",
                     (json_int_t)r->relaxed, "relaxed_nats", r->relaxed_nats, "prefill_tokens_per_second",
                     ratio((double)r->prefill_tokens, r->prefill_seconds), "decode_tokens_per_second",
                     ratio(after_first, r->decode_seconds));
}
