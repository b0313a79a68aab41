/* tools/plan.c -- `verbatim plan`: memory, traffic and highest speed of machines that compute one model together, from
 * the shapes of the model alone. docs/RANKS.md derives the formulas, and engine/pass/plan.h computes them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/pass/plan.h"
#include "tools/cli/cli.h"

#define MOST_RANKS 1024
#define USUAL_CONTEXT 4096

struct planned {
    struct cli *c;
    struct vb_model *m;
    int from_config;       /* whether the types of the weights are assumed, because there are only shapes */
    struct op_ranks ranks; /* who has which rows */
    uint64_t before[MOST_RANKS + 1];
    double bandwidth[MOST_RANKS], net, latency; /* bytes per second, bytes per second, seconds */
    int is_timed;          /* whether these are known */
    double context, acceptance[VB_MAX_DRAFT], tokens; /* tokens: for each pass of the target */
    int drafts;
};

/* The same passes on every rank, and their time on the slowest one. */
struct plan_times {
    struct plan_cost of[MOST_RANKS];
    int slowest;
    double memory, network, latency, seconds;
};

/* ---- options ---- */

/* Reads a list of numbers above `least` (or equal to it, if or_equal). Returns how many there are, or -1 after
 * reporting an error. */
static int numbers_of(const struct cli *c, const char *option, const char *list, double *numbers, int most,
                      double least, int or_equal)
{
    int count = 0;
    for (const char *at = list;; at++) {
        char *end;
        double x = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !isfinite(x) || x < least || (x <= least && !or_equal))
            return cli_fail(c, EXIT_USAGE, "%s is %.64s, wanted numbers%s %g%s", option, list,
                            or_equal ? " of" : " above", least, or_equal ? " or more" : ""),
                   -1;
        if (count == most)
            return cli_fail(c, EXIT_USAGE, "%s is %.64s, wanted at most %d numbers", option, list, most), -1;
        numbers[count++] = x;
        if (!*(at = end))
            return count;
    }
}

static int read_shares(struct planned *p)
{
    const struct cli *c = p->c;
    double weights[MOST_RANKS];
    int given = c->ranks_weights ? numbers_of(c, "--ranks-weights", c->ranks_weights, weights, MOST_RANKS, 0, 0) : 0;
    if (given < 0)
        return EXIT_USAGE;
    p->ranks = (struct op_ranks){.count = c->ranks ? (int)c->ranks : given ? given : 1, .before = p->before};
    if (given && given != p->ranks.count)
        return cli_fail(c, EXIT_USAGE, "--ranks is %d, and --ranks-weights has %d numbers", p->ranks.count, given);
    for (int r = 0; r < p->ranks.count; r++) {
        if (given && (weights[r] != floor(weights[r]) || weights[r] > 1e6))
            return cli_fail(c, EXIT_USAGE, "--ranks-weights is %s, wanted integers of at most 1000000",
                            c->ranks_weights);
        p->before[r + 1] = p->before[r] + (given ? (uint64_t)weights[r] : 1);
    }
    return EXIT_DONE;
}

static int read_machine(struct planned *p)
{
    const struct cli *c = p->c;
    int N = p->ranks.count,
        given = c->bandwidth ? numbers_of(c, "--bandwidth", c->bandwidth, p->bandwidth, MOST_RANKS, 0, 0) : 0;
    if (given < 0)
        return EXIT_USAGE;
    p->is_timed = given > 0;
    if (given > 1 && given != N)
        return cli_fail(c, EXIT_USAGE, "--bandwidth has %d numbers, wanted one, or one for each of %d ranks", given, N);
    if (!given && (c->net > 0 || c->latency >= 0 || c->acceptance_rates))
        return cli_fail(c, EXIT_USAGE, "%s wants --bandwidth: without it, no times are computed",
                        c->net > 0 ? "--net" : c->latency >= 0 ? "--latency" : "--acceptance");
    if (given && N > 1 && (c->net <= 0 || c->latency < 0))
        return cli_fail(c, EXIT_USAGE, "%s is missing or 0: %d ranks wait for each other's bytes",
                        c->net <= 0 ? "--net" : "--latency", N);
    for (int r = 0; r < N; r++)
        p->bandwidth[r] = given ? 1e9 * p->bandwidth[given > 1 ? r : 0] : 1;
    p->net = c->net > 0 ? 1e9 * c->net : INFINITY;
    p->latency = c->latency > 0 ? 1e-6 * c->latency : 0;
    return EXIT_DONE;
}

/* One number is the probability that a draft is accepted if those before it were. Otherwise there is one number for
 * each draft: the share of the rounds in which it is accepted. */
static int read_drafts(struct planned *p)
{
    const struct cli *c = p->c;
    double *a = p->acceptance;
    int given = c->acceptance_rates ? numbers_of(c, "--acceptance", c->acceptance_rates, a, VB_MAX_DRAFT, 0, 1) : 0;
    p->tokens = 1;
    if (given < 0)
        return EXIT_USAGE;
    if (c->draft_tokens == CLI_AUTO)
        return cli_fail(c, EXIT_USAGE, "--draft-tokens is auto, wanted an integer from 0 to %d", VB_MAX_DRAFT);
    p->drafts = c->draft_tokens >= 0 ? (int)c->draft_tokens : given;
    if (p->drafts && p->is_timed && !given)
        return cli_fail(c, EXIT_USAGE, "--draft-tokens wants --acceptance: the speed depends on it");
    if (given > 1 && given != p->drafts)
        return cli_fail(c, EXIT_USAGE, "--draft-tokens is %d, and --acceptance has %d numbers", p->drafts, given);
    for (int k = 0; given && k < p->drafts; k++) {
        if (given == 1)
            a[k] = k ? a[0] * a[k - 1] : a[0];
        if (a[k] > 1 || (k && a[k] > a[k - 1]))
            return cli_fail(c, EXIT_USAGE,
                            "--acceptance is %s, wanted numbers of at most 1, none larger than the one before",
                            c->acceptance_rates);
        p->tokens += a[k];
    }
    return EXIT_DONE;
}

static int open_shapes(struct planned *p)
{
    const struct cli *c = p->c;
    struct model_options o = {0};
    vb_error err;
    if (precision_parse(&o.precision, &o.tensor_cores, c->precision, &err) ||
        cache_type_parse(&o.cache_type, c->cache_type, &err) ||
        model_open_shapes(&p->m, c->model_dir, c->weights, &o, &p->from_config, NULL, &err))
        return cli_error(c, &err);
    int most = p->m->config.max_position_embeddings;
    if (c->context > most)
        return cli_fail(c, EXIT_USAGE, "--context is %lld, max_position_embeddings is %d", c->context, most);
    p->context = c->context > 0 ? (double)c->context : most < USUAL_CONTEXT ? most : USUAL_CONTEXT;
    return EXIT_DONE;
}

/* ---- times ---- */

static struct plan_cost sum(struct plan_cost a, struct plan_cost b, double times)
{
    return (struct plan_cost){a.read + times * b.read, a.gathers + times * b.gathers, a.gathered + times * b.gathered,
                              a.received + times * b.received};
}

/* A rank reads its weights, then waits for a gather, and so on: its times add up. All ranks wait for the slowest
 * one. */
static void set_times(const struct planned *p, struct plan_times *t)
{
    t->seconds = -1;
    for (int r = 0; r < p->ranks.count; r++) {
        double memory = t->of[r].read / p->bandwidth[r], network = t->of[r].received / p->net,
               latency = t->of[r].gathers * p->latency;
        if (memory + network + latency > t->seconds) {
            t->slowest = r;
            t->memory = memory;
            t->network = network;
            t->latency = latency;
            t->seconds = memory + network + latency;
        }
    }
}

/* The passes of a round: the target verifies the drafts, and MTP module 0 makes the next ones. Its first pass has a row
 * for each new token, and each further pass has one row. */
struct plan_round {
    struct plan_times plain, verify, draft, all; /* plain: a pass of one row, without drafts */
};

static void compute(const struct planned *p, struct plan_round *o)
{
    for (int r = 0; r < p->ranks.count; r++) {
        o->plain.of[r] = plan_target(p->m, &p->ranks, r, 1, p->context, 1);
        o->verify.of[r] = plan_target(p->m, &p->ranks, r, p->drafts + 1, p->context, p->drafts + 1);
        if (p->m->num_mtp && p->drafts)
            o->draft.of[r] = sum(plan_module(p->m, &p->ranks, r, p->tokens, p->context),
                                 plan_module(p->m, &p->ranks, r, 1, p->context), p->drafts - 1);
        o->all.of[r] = sum(o->verify.of[r], o->draft.of[r], 1);
    }
    set_times(p, &o->plain);
    set_times(p, &o->verify);
    set_times(p, &o->draft);
    set_times(p, &o->all);
}

static const char *bound_of(const struct plan_times *t)
{
    return t->memory >= t->network && t->memory >= t->latency ? "memory"
           : t->network >= t->latency ? "network"
           : "latency";
}

/* ---- output ---- */

struct types {
    double bytes[WEIGHT_KINDS];
    const struct config *c;
};

static void add_type(void *context, const struct read *r)
{
    struct types *t = context;
    t->bytes[r->w.type] += read_bytes(&r->w, r->w.rows) * (r->routed ? t->c->n_routed_experts : 1);
}

static struct types types_of(const struct planned *p)
{
    struct types t = {.c = &p->m->config};
    for (size_t l = 0; l < t.c->dims.layers; l++)
        reads_of_layer(t.c, &p->m->layers[l], add_type, &t);
    return t;
}

static double share_of(const struct planned *p, int r)
{
    return (double)(p->before[r + 1] - p->before[r]) / (double)p->before[p->ranks.count];
}

static struct plan_memory memory_of(const struct planned *p, int r)
{
    return plan_memory(p->m, &p->ranks, r, p->context, p->drafts && p->m->num_mtp);
}

static double all_of(const struct plan_memory *m) { return m->own + m->whole + m->cache; }

/* Returns the ranks that the table of memory shows: the one with the most if all shares are equal. */
static int first_shown(const struct planned *p)
{
    int first = 0;
    for (int r = 1; !p->c->ranks_weights && r < p->ranks.count; r++) {
        struct plan_memory a = memory_of(p, r), b = memory_of(p, first);
        if (all_of(&a) > all_of(&b))
            first = r;
    }
    return first;
}

static void print_memory(const struct planned *p)
{
    int equal = !p->c->ranks_weights, first = first_shown(p);
    printf("\n%-26s %8s %10s %12s %8s %10s\n", "memory, GB", "share", "own rows", "on each rank", "cache", "all");
    for (int r = first; r < (equal ? first + 1 : p->ranks.count); r++) {
        struct plan_memory m = memory_of(p, r);
        char name[40] = "each rank, at most";
        if (!equal)
            snprintf(name, sizeof name, "rank %d", r);
        printf("%-26s %6.1f %% %10.3f %12.3f %8.3f %10.3f\n", name, 100 * share_of(p, r), m.own / 1e9, m.whole / 1e9,
               m.cache / 1e9, all_of(&m) / 1e9);
    }
}

static void print_pass(const struct planned *p, const char *name, const struct plan_times *t, double tokens)
{
    const struct plan_cost *of = &t->of[t->slowest];
    printf("%-26s %8.3f %7.0f %11.3f %11.3f", name, of->read / 1e9, of->gathers, of->gathered / 1e6,
           of->received / 1e6);
    if (p->is_timed)
        printf(" %9.2f %9.2f %9.2f %9.2f", 1e3 * t->memory, 1e3 * t->network, 1e3 * t->latency, 1e3 * t->seconds);
    if (p->is_timed && tokens > 0)
        printf(" %9.2f  %s", tokens / t->seconds, bound_of(t));
    putchar('\n');
}

static void print_types(const struct planned *p)
{
    struct types t = types_of(p);
    const char *comma = "";
    printf("%s: ", p->from_config ? "layers, types assumed" : "layers");
    for (int type = 0; type < WEIGHT_KINDS; type++)
        if (t.bytes[type] > 0) {
            printf("%s%s %.3f GB", comma, weight_type_name((enum weight_type)type), t.bytes[type] / 1e9);
            comma = ", ";
        }
    putchar('\n');
}

static void print_all(const struct planned *p, const struct plan_round *r)
{
    const struct config *c = &p->m->config;
    char name[40];
    printf("%s, %d layers, MTP modules: %d, precision %s, cache %s, %.0f tokens, %d rank%s\n", c->architecture,
           c->num_hidden_layers, p->m->num_mtp, precision_name(c), cache_type_name(c->cache_type), p->context,
           p->ranks.count, p->ranks.count > 1 ? "s" : "");
    print_types(p);
    print_memory(p);
    printf("\n%-26s %8s %7s %11s %11s", "passes", "read GB", "gathers", "gathered MB", "received MB");
    if (p->is_timed)
        printf(" %9s %9s %9s %9s %9s  %s", "memory ms", "net ms", "lat. ms", "all ms", "tokens/s", "bound by");
    putchar('\n');
    print_pass(p, "a token", &r->plain, 1);
    if (!p->drafts)
        return;
    snprintf(name, sizeof name, "verifying %d draft%s", p->drafts, p->drafts > 1 ? "s" : "");
    print_pass(p, name, &r->verify, 0);
    print_pass(p, p->m->num_mtp ? "drafting, MTP module 0" : "drafting, taken as free", &r->draft, 0);
    snprintf(name, sizeof name, "a round of %.2f tokens", p->tokens);
    if (p->is_timed)
        print_pass(p, name, &r->all, p->tokens);
}

/* Rounds: with several rows, the expected number of bytes is not an integer. */
static json_int_t whole(double bytes) { return (json_int_t)llround(bytes); }

static json_t *pass_json(const struct planned *p, const struct plan_times *t, double tokens)
{
    const struct plan_cost *of = &t->of[t->slowest];
    json_t *o = json_pack("{s:i,s:I,s:I,s:I,s:I}", "rank", t->slowest, "read_bytes", whole(of->read), "gathers",
                          whole(of->gathers), "gathered_bytes", whole(of->gathered), "received_bytes",
                          whole(of->received));
    if (p->is_timed)
        json_object_update_new(o, json_pack("{s:f,s:f,s:f,s:f}", "memory_seconds", t->memory, "network_seconds",
                                            t->network, "latency_seconds", t->latency, "seconds", t->seconds));
    if (p->is_timed && tokens > 0)
        json_object_update_new(o, json_pack("{s:f,s:f,s:s}", "tokens", tokens, "tokens_per_second", tokens / t->seconds,
                                            "bound_by", bound_of(t)));
    return o;
}

static json_t *ranks_json(const struct planned *p, const struct plan_times *plain)
{
    json_t *ranks = json_array();
    for (int r = 0; r < p->ranks.count; r++) {
        struct plan_memory m = memory_of(p, r);
        json_array_append_new(ranks,
                              json_pack("{s:f,s:I,s:I,s:I,s:I,s:I,s:I}", "share", share_of(p, r), "own_bytes",
                                        whole(m.own), "whole_bytes", whole(m.whole), "cache_bytes", whole(m.cache),
                                        "bytes", whole(all_of(&m)), "read_bytes", whole(plain->of[r].read),
                                        "received_bytes", whole(plain->of[r].received)));
    }
    return ranks;
}

static json_t *types_json(const struct planned *p)
{
    struct types t = types_of(p);
    json_t *types = json_object();
    for (int type = 0; type < WEIGHT_KINDS; type++)
        if (t.bytes[type] > 0)
            json_object_set_new(types, weight_type_name((enum weight_type)type), json_integer(whole(t.bytes[type])));
    return types;
}

static int print_json(const struct planned *p, const struct plan_round *r)
{
    struct plan_cost layers = plan_target(p->m, &p->ranks, 0, 1, p->context, 0);
    json_t *o = json_pack("{s:s,s:b,s:o,s:I,s:o,s:{s:I,s:I},s:o}", "architecture", p->m->config.architecture,
                          "types_assumed", p->from_config, "types", types_json(p), "context", whole(p->context),
                          "ranks", ranks_json(p, &r->plain), "layers", "gathers", whole(layers.gathers),
                          "gathered_bytes", whole(layers.gathered), "token", pass_json(p, &r->plain, 1));
    if (p->drafts)
        json_object_update_new(o, json_pack("{s:o,s:o,s:o}", "verifying", pass_json(p, &r->verify, 0), "drafting",
                                            pass_json(p, &r->draft, 0), "round", pass_json(p, &r->all, p->tokens)));
    return cli_print_json(o);
}

static int tell(const struct planned *p)
{
    struct plan_round *r = calloc(1, sizeof *r);
    int code = EXIT_DONE;
    cli_must(r);
    compute(p, r);
    if (p->c->json)
        code = print_json(p, r);
    else
        print_all(p, r);
    free(r);
    return code;
}

static int run(struct cli *c)
{
    struct planned *p = calloc(1, sizeof *p);
    cli_must(p);
    p->c = c;
    int code = read_shares(p);
    if (code == EXIT_DONE)
        code = read_machine(p);
    if (code == EXIT_DONE)
        code = read_drafts(p);
    if (code == EXIT_DONE)
        code = open_shapes(p);
    if (code == EXIT_DONE)
        code = tell(p);
    model_close(p->m);
    free(p);
    return code;
}

static const struct note notes[] = {
    {"--precision",
     "Plan for weights in this precision: f32, bf16, q8 or q4 (default f32: the weights as they are stored)."},
    {"--cache-type", "Plan for KV caches of this type: f32, bf16 or q8 (default f32)."},
    {"--context", "Plan for a sequence of N tokens (default 4096, if the context is long enough)."},
    {"--draft-tokens",
     "Also plan for drafts of K tokens by the first MTP module. If the model has no MTP modules, drafts take no time."},
    {"--json", "Print an object with the keys architecture, types, types_assumed, context, ranks (memory, bytes read "
               "and received by each rank), "
               "layers (the gathers of a token without that of lm_head), token, and, with drafts, verifying, drafting "
               "and round."},
    {NULL, NULL}};

const struct command command_plan = {
    "plan", "compute memory, traffic and highest speed of a model on several machines, from its shapes",
    "MODEL [OPTIONS]",
    "Computes what a model needs on N ranks, which are processes that compute each pass together, on one machine or on "
    "many. Prints\n"
    "the memory of each rank and, for a pass, the bytes that the slowest rank reads, the number of exchanges (gathers) "
    "and their\n"
    "bytes. With --bandwidth (and, for several ranks, --net and --latency), also prints the shortest possible time of "
    "a token, and\n"
    "what limits it. Nothing is measured. MODEL may also be only a config.json. Then quantization_config in this file, "
    "or --weights,\n"
    "determines the types of the weights.\n",
    TAKES_MODEL | TAKES_PLAN, run, notes, 0, NULL};
