/* tools/bench/lines.c -- chooses the items that `verbatim bench` measures. */
#include <stdlib.h>
#include <string.h>

#include "simd/machine.h"
#include "ops/weights.h"
#include "tools/bench/bench.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

const char *const bench_kinds[BENCH_KINDS] = {"read", "fma", "bf16", "int8", "int4", "gpu", "prefill", "pass", "linear",
                                              "attention", "generate", "batch"};

/* Returns whether a list of names, separated by commas, contains `name`, which has `size` bytes. */
static int names(const char *list, const char *name, size_t size)
{
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (n == size && !strncmp(list, name, n))
            return 1;
    }
    return 0;
}

int bench_wants(const struct bench *b, enum bench_kind kind)
{
    return !b->c->only || names(b->c->only, bench_kinds[kind], strlen(bench_kinds[kind]));
}

int bench_check_only(struct bench *b)
{
    static const char known[] = "prefill,pass,linear,attention,generate,batch";
    const char *list = b->c->only;
    size_t n;
    if (list && !*list)
        return cli_fail(b->c, EXIT_USAGE, "--only is empty");
    for (; list && *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (!names(known, list, n))
            return cli_fail(b->c, EXIT_USAGE, "--only names %.*s, wanted some of %s", (int)n, list, known);
    }
    return EXIT_DONE;
}

struct bench_item *bench_add(struct bench *b, enum bench_kind kind, const char *format, ...)
{
    va_list args;
    b->item = realloc(b->item, (b->count + 1) * sizeof *b->item);
    cli_must(b->item);
    struct bench_item *i = &b->item[b->count++];
    *i = (struct bench_item){.kind = kind, .force = -1};
    va_start(args, format);
    vsnprintf(i->name, sizeof i->name, format, args);
    va_end(args);
    return i;
}

int bench_fits(const struct bench *b, size_t tokens) { return tokens <= b->text_count; }

static void add_machine(struct bench *b)
{
    bench_add(b, BENCH_READ, "read bandwidth");
    bench_add(b, BENCH_FMA, "fma peak");
    if (machine_bf16(1) > 0)
        bench_add(b, BENCH_BF16, "bf16 peak");
    if (machine_integers(b->isa, 8, 1) > 0)
        bench_add(b, BENCH_INT8, "int8 peak");
    if (machine_integers(b->isa, 4, 1) > 0)
        bench_add(b, BENCH_INT4, "int4 peak");
    if (b->gpu_copies)
        bench_add(b, BENCH_GPU, "GPU, copying in its memory");
}

static void add_prefill(struct bench *b)
{
    static const size_t lengths[] = {128, 512, 2048, 4096, 8192, 16384};
    for (size_t k = 0; k < COUNT(lengths); k++)
        for (int kind = 0; kind < (b->c->model->device ? 1 : 2 + b->prefill_onednn) && bench_fits(b, lengths[k] + 1);
             kind++) {
            static const char *const kinds[] = {"", ", expanded", ", onednn"};
            struct bench_item *i = bench_add(b, BENCH_PREFILL, "prefill %zu%s", lengths[k], kinds[kind]);
            i->rows = lengths[k];
            i->expanded = kind == 1;
            i->onednn = kind == 2;
        }
}

static void add_pass(struct bench *b, size_t rows, size_t depth)
{
    if (!bench_fits(b, depth + rows + 1))
        return;
    struct bench_item *i = bench_add(b, BENCH_PASS, rows > 1 ? "%zu rows after %zu" : "%zu row after %zu", rows, depth);
    i->rows = rows;
    i->depth = depth;
}

static void add_passes(struct bench *b)
{
    static const size_t depths[] = {16, 512, 2048, 4096, 8192, 16384}, rows[] = {2, 3, 4, 8, 16};
    for (size_t k = 0; k < COUNT(depths); k++)
        add_pass(b, 1, depths[k]);
    for (size_t k = 0; k < COUNT(rows); k++)
        add_pass(b, rows[k], depths[0]);
}

static void add_linear(struct bench *b, size_t N, size_t K, size_t rows, enum weight_type type, int onednn)
{
    const char *who = onednn ? type == WEIGHT_F32 ? ", oneDNN f32" : ", oneDNN bf16" : "";
    const char *weights = weight_is_quantized(type) ? quantized_format(type)->name : "";
    struct bench_item *i = bench_add(b, BENCH_LINEAR, rows > 1 ? "%zux%zu%s%s, %zu rows%s" : "%zux%zu%s%s, %zu row%s",
                                     N, K, *weights ? " " : "", weights, rows, who);
    i->rows = rows;
    i->outputs = N;
    i->inputs = K;
    i->type = type;
    i->onednn = onednn;
    bench_ops_plan(b, i);
}

/* Adds the items for one matrix. With BF16 weights, Verbatim multiplies f32 inputs, and oneDNN multiplies BF16 inputs.
 * With many rows, where the speed of arithmetic matters, oneDNN is also measured with f32 weights and inputs. The items
 * with quantized weights, in panels, come last. */
static void add_matrix(struct bench *b, size_t N, size_t K)
{
    static const size_t rows[] = {1, 2, 4, 8, BENCH_MOST_ROWS};
    for (size_t k = 0; k < COUNT(rows); k++) {
        add_linear(b, N, K, rows[k], WEIGHT_BF16, 0);
        if (b->onednn && rows[k] == BENCH_MOST_ROWS)
            add_linear(b, N, K, rows[k], WEIGHT_F32, 1);
        if (!b->no_onednn_bf16)
            add_linear(b, N, K, rows[k], WEIGHT_BF16, 1);
    }
    for (size_t k = 0; k < 2 * COUNT(rows) && K % QUANTIZED_GROUP == 0; k++)
        add_linear(b, N, K, rows[k % COUNT(rows)], k < COUNT(rows) ? WEIGHT_Q8_0 : WEIGHT_Q4_0, 0);
}

static void add_linears(struct bench *b)
{
    const size_t large_N = 2048, large_K = 7168; /* an expert's gate_proj in DeepSeek-V3 */
    size_t N, K;
    bench_largest_matrix(b->c->model, &N, &K);
    add_matrix(b, N, K);
    if (N != large_N || K != large_K)
        add_matrix(b, large_N, large_K);
}

/* Adds the items for attention. The cache contains random numbers, so its length is limited by --long and --context
 * only, and not by the context of the model. */
static void add_attentions(struct bench *b)
{
    static const size_t depths[] = {2048, 16384}, rows[] = {1, BENCH_MOST_QUERIES};
    size_t most = b->c->longer ? 16384 : 2048;
    if (b->c->context > 0 && (size_t)b->c->context < most)
        most = (size_t)b->c->context;
    for (size_t k = 0; k < COUNT(depths); k++)
        for (size_t r = 0; r < COUNT(rows) && depths[k] <= most; r++) {
            struct bench_item *i = bench_add(b, BENCH_ATTENTION,
                                             rows[r] > 1 ? "attention, %zu rows over %zu"
                                                         : "attention, %zu row over %zu",
                                             rows[r], depths[k]);
            i->rows = rows[r];
            i->depth = depths[k];
            bench_ops_plan(b, i);
        }
}

static void add_generate(struct bench *b, const char *draft, int K, double force)
{
    struct bench_item *i = force < 0 ? bench_add(b, BENCH_GENERATE, K ? "%s, K %d" : "%s", draft, K)
                                     : bench_add(b, BENCH_GENERATE, "%s, K %d, forced %.2g", draft, K, force);
    i->draft = draft;
    i->K = K ? K : -1;
    i->force = force;
    i->rows = (size_t)K + 1;
}

static void add_tree(struct bench *b, const char *draft, int K)
{
    struct bench_item *i = bench_add(b, BENCH_GENERATE, "%s, K %d, topk %d", draft, K,
                                     b->c->session.drafting.tree.topk);
    i->draft = draft;
    i->K = K;
    i->topk = b->c->session.drafting.tree.topk;
    i->force = -1;
    i->rows = 1 + (size_t)(b->c->session.drafting.tree.nodes ? b->c->session.drafting.tree.nodes
                           : K * i->topk < VB_MAX_NODES ? K * i->topk
                           : VB_MAX_NODES);
}

static void add_generates(struct bench *b)
{
    static const struct drafter_type *const methods[] = {&draft_mtp_vanilla, &draft_mtp_eagle, &draft_model,
                                                         &draft_eagle, &draft_eagle3, &draft_parallel_heads};
    const char *forced = NULL;
    add_generate(b, "none", 0, -1);
    for (size_t m = 0; m < COUNT(methods); m++) {
        if (drafter_check(methods[m], b->c->model, &b->c->session, NULL))
            continue;
        for (int K = 1; K <= 3; K++)
            add_generate(b, methods[m]->name, K, -1);
        for (int K = 2; K <= 6 && methods[m]->propose_tree && b->c->session.drafting.tree.topk > 1; K += 2)
            if (!b->c->session.drafting.tree.nodes || b->c->session.drafting.tree.nodes >= K)
                add_tree(b, methods[m]->name, K);
        if (!forced || methods[m] == &draft_mtp_eagle)
            forced = methods[m]->name;
    }
    for (int K = 1; K <= 3 && forced; K++)
        for (int p = 0; p <= 10; p += 2)
            if (b->c->force_accept < 0 ? p >= 6 : p == 0)
                add_generate(b, forced, K, b->c->force_accept < 0 ? p / 10.0 : b->c->force_accept);
}

static void add_batches(struct bench *b)
{
    static const size_t sequences[] = {4, 8, 16};
    for (size_t k = 0; k < COUNT(sequences); k++)
        bench_add(b, BENCH_BATCH, "%zu sequences", sequences[k])->rows = sequences[k];
}

/* The items that come nearest to the limits of the machine are measured right after the items for the machine
 * itself. */
void bench_choose(struct bench *b)
{
    add_machine(b);
    if (b->c->plan) {
        bench_choose_plan(b);
        return;
    }
    int of_cpu = !b->c->model->device || b->c->only; /* operators alone are those of the CPU */
    if (of_cpu && bench_wants(b, BENCH_LINEAR))
        add_linears(b);
    if (of_cpu && bench_wants(b, BENCH_ATTENTION))
        add_attentions(b);
    if (bench_wants(b, BENCH_PASS))
        add_passes(b);
    if (bench_wants(b, BENCH_PREFILL))
        add_prefill(b);
    if (bench_wants(b, BENCH_GENERATE))
        add_generates(b);
    if (bench_wants(b, BENCH_BATCH))
        add_batches(b);
}
