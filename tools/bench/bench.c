/* tools/bench/bench.c -- `verbatim bench`: compares the times of a checkpoint's passes with the limits of the machine.
 *
 * Each round measures every item once. Just before each item, the speed of the machine itself is measured. So if the
 * clock frequency or the load of other programs drifts, the drift affects all items in the same way. The results are
 * medians over the rounds. The least time of a pass is the larger of two times: its bytes divided by the read
 * bandwidth, and its operations divided by the peak speed of fma. Both speeds are measured in the same run. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "ops/onednn.h"
#include "tools/bench/bench.h"
#include "numbers/numbers.h"

#define READ_BYTES ((size_t)512 << 20)

static int measure(struct bench *b)
{
    vb_error err = {0};
    int code = EXIT_DONE, wanted = b->c->rounds > 0 ? (int)b->c->rounds : 9;
    for (size_t k = 0; k < b->count && code == EXIT_DONE; k++) {
        struct bench_item *i = &b->item[k];
        if (i->kind == BENCH_PREFILL)
            code = bench_pass_work(b, b->text, 0, i->rows, 1, i->expanded, &i->parts);
        else if (i->module)
            i->parts = bench_module_work(b->c->model, b->c->session.drafting.vocab, i->depth + 1, i->rows);
        else if (i->kind == BENCH_PASS)
            code = bench_pass_work(b, b->text, i->depth, i->rows, i->rows, 0, &i->parts);
        if (i->kind == BENCH_PREFILL || i->kind == BENCH_PASS)
            i->work = bench_sum(&i->parts);
    }
    /* the first round only warms up: it fills pages and caches, and computes the continuation that forced drafts use */
    for (int round = -1; round < wanted && code == EXIT_DONE; round++)
        for (size_t k = 0; k < b->count && code == EXIT_DONE; k++) {
            b->rounds = round < 0 ? 0 : round;
            b->warm = round < 0;
            cli_progress("bench", (size_t)(round + 1) * b->count + k, (size_t)(wanted + 1) * b->count);
            if (bench_run(b, &b->item[k], &err))
                code = cli_error(b->c, &err);
        }
    cli_progress("bench", 1, 1);
    b->rounds = wanted;
    return code;
}

/* Fills `data` with random BF16 numbers whose magnitudes are between 2^-7 and 2^-5. If two of them are read as one F32
 * number, its magnitude is in this range too. */
static void fill(uint16_t *data, size_t count, uint64_t seed)
{
    size_t first = count < (size_t)1 << 20 ? count : (size_t)1 << 20, n;
    for (size_t i = 0; i < first; i++) {
        seed = lcg_next(seed);
        data[i] = (uint16_t)(seed >> 48 & 0x80ff) | 0x3c00; /* the stored exponent is 120 or 121; the bias is 127 */
    }
    for (; first < count; first += n) {
        n = first < count - first ? first : count - first;
        memcpy(data + first, data, n * sizeof *data);
    }
}

static int prepare(struct bench *b)
{
    struct cli *c = b->c;
    uint64_t seed = c->session.sampling.seed + 1;
    const struct kernels *k = kernels_select(c->session.isa, NULL);
    vb_session *probe = NULL;
    int code = cli_session(c, 1, 1, &probe); /* reports an error if the options are wrong */
    if (code != EXIT_DONE)
        return code;
    b->threads = probe->pass->cx.threads < 256 ? probe->pass->cx.threads : 256;
    b->isa = k->name;
    b->arithmetic = probe->pass->arithmetic;
    vb_session_close(probe);
    c->session.threads = b->threads;
    c->session.exact_threads = 1;
    c->session.drafting.method = NULL;
    size_t most = (size_t)(c->context > 0 ? c->context : vb_max_positions(c->model)),
           longest = (c->longer ? 16384 : 2048) + 32;
    if ((size_t)c->depth + 32 > longest)
        longest = (size_t)c->depth + 32;
    b->text_count = most < longest ? most : longest;
    b->length = c->n > 1 ? (size_t)c->n : 64;
    b->prompt = 16;
    if (b->prompt + b->length > most)
        return cli_fail(c, EXIT_USAGE, "-n is %zu: with 16 tokens before it is beyond %s, which is %zu", b->length,
                        c->context > 0 ? "--context" : "max_position_embeddings", most);
    b->text = calloc(b->text_count, sizeof *b->text);
    b->plain = calloc(b->prompt + b->length, sizeof *b->plain);
    b->bytes = READ_BYTES;
    b->data = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!b->text || !b->plain || b->data == MAP_FAILED)
        return cli_fail(c, EXIT_OTHER, "no memory for %zu bytes to read", b->bytes);
    fill(b->data, b->bytes / sizeof(uint16_t), seed);
    for (size_t i = 0; i < b->text_count; i++) {
        seed = lcg_next(seed);
        b->text[i] = (int32_t)((seed >> 33) % (uint64_t)vb_vocab_size(c->model));
    }
    b->no_onednn = onednn_open(&b->onednn, b->threads);
    b->no_onednn_bf16 = b->onednn ? onednn_lacks(b->onednn, ONEDNN_BF16) : b->no_onednn;
    vb_session_options o = c->session;
    o.context = 1;
    o.prefill = "onednn";
    b->prefill_onednn = !vb_session_open(&probe, c->model, &o, NULL);
    vb_session_close(probe);
    bench_gpu_open(b);
    return EXIT_DONE;
}

static int run(struct cli *c)
{
    struct bench b = {.c = c};
    int code = cli_check_file(c, "--svg", c->svg);
    if (code == EXIT_DONE)
        code = cli_open(c);
    if (code == EXIT_DONE && c->rounds > BENCH_ROUNDS)
        code = cli_fail(c, EXIT_USAGE, "--rounds is %lld, at most %d", c->rounds, BENCH_ROUNDS);
    if (code == EXIT_DONE)
        code = bench_check_only(&b);
    if (code == EXIT_DONE)
        code = bench_check_plan(&b);
    if (code == EXIT_DONE && c->svg && !vb_mtp_modules(c->model))
        code = cli_fail(c, EXIT_USAGE, "--svg: %s has no MTP modules, there is no speed-up to draw", c->model_dir);
    if (code == EXIT_DONE && c->svg && !bench_wants(&b, BENCH_GENERATE))
        code = cli_fail(c, EXIT_USAGE, "--svg draws the lines of generate, which --only leaves out");
    if (code == EXIT_DONE)
        code = prepare(&b);
    if (code == EXIT_DONE) {
        bench_choose(&b);
        code = bench_ops_open(&b);
    }
    if (code == EXIT_DONE)
        code = measure(&b);
    if (code == EXIT_DONE && c->svg)
        code = bench_svg(&b, c->svg);
    if (code == EXIT_DONE)
        code = bench_tell(&b);
    for (size_t k = 0; k < b.count; k++) {
        vb_session_close(b.item[k].session);
        free(b.item[k].times);
    }
    bench_close_module(&b);
    bench_gpu_close(&b);
    if (b.data && b.data != MAP_FAILED)
        munmap(b.data, b.bytes);
    bench_ops_close(&b);
    free(b.item);
    free(b.text);
    free(b.plain);
    return code;
}

static const struct note notes[] = {
    {"--draft-topk",
     "Also measure trees with M children per token at K = 2, 4 and 6, for methods that can draft trees."},
    {"--draft-nodes", "Verify the N most probable tokens of each tree."},
    {"--seed", "Set the seed of the random tokens (default 0)."},
    {"--context", "Leave out all measurements with more than N tokens. For example, 600 leaves out the measurements "
                  "with 2048 tokens."},
    {"-n", "Decode N tokens per run (default 64)."},
    {"--json", "Print {\"rows\": [{name, kind, seconds, quarter, three_quarters, bytes, of_ceiling, gpu_bytes, "
               "of_gpu_copy, of_gpu_peak, efficiency, ...}], \"gpu\": {...}}, or with --plan "
               "{\"next\": {...}, \"passes\": [{name, seconds, floor, waiting, peaks, \"parts\": [...]}]}."},
    {NULL, NULL}};

const struct command command_bench = {
    "bench", "compare the speed of passes with the limits of the machine, and measure the speed-up of drafting",
    "MODEL [OPTIONS]",
    "Measures these kinds of work in turn, round after round, on random tokens, and prints medians.\n"
    "  `machine`              The read bandwidth of the machine, and its peak speed of fma, BF16, int8 and int4 "
    "arithmetic. BF16,\n"
    "                         int8 and int4 are left out if the CPU has no instructions for them.\n"
    "  `prefill`              Prompts of 128, 512 and 2048 tokens, also with --prefill expanded. If the weights and "
    "the CPU allow\n"
    "                         it, --prefill onednn is measured too.\n"
    "  `pass`                 Passes of 1 row after 16, 512 and 2048 tokens, and of 2 to 16 rows after 16 tokens. A "
    "row is one\n"
    "                         token.\n"
    "  `linear`               Multiplying 1, 2, 4, 8 and 512 rows by a matrix as large as the model's largest, and by "
    "a matrix of\n"
    "                         2048x7168 numbers. The weights are larger than the CPU caches. If oneDNN is installed, "
    "it is measured\n"
    "                         too, but with BF16 weights only if it supports BF16 on this CPU.\n"
    "  `attention`            Attention alone, in every layer once: 1 row, or 32 rows, attend to 2048 tokens.\n"
    "  `generate`             Plain decoding, and each MTP method with K = 1, 2 and 3 drafts per round. After that, "
    "one method\n"
    "                         (mtp-eagle if possible) is measured with forced acceptance: each draft is made correct "
    "with a given\n"
    "                         probability.\n"
    "  `batch`                Plain decoding of 4, 8 and 16 sequences that share passes (tokens per second of all "
    "together).\n"
    "Each measurement has a ceiling: the speed at which the memory could deliver its bytes, or the speed at which fma "
    "instructions\n"
    "could compute its operations, whichever is lower. If several rows of a pass chose the same expert, its bytes "
    "count once. The\n"
    "BF16 arithmetic of oneDNN can be faster than this ceiling. If a measurement is faster than the read bandwidth of "
    "the memory\n"
    "allows, its weights came from the CPU caches. The table then shows \"in cache\" instead of the percentage of the "
    "ceiling.\n"
    "For drafting, the table shows what percentage of the ideal speed-up was reached. The ideal speed-up would be "
    "reached if time\n"
    "depended only on the bytes that are read: it is (tokens per forward pass) x B(1) / (B(K+1) + B_modules). B(n) is "
    "the number of\n"
    "bytes that one pass over n rows reads from the model, as counted in this run. B_modules is the number of bytes "
    "that the passes\n"
    "of the MTP modules read in one round.\n\n"
    "With --device, `machine` also has the speed at which the GPU's memory copies (bytes read plus bytes written), and "
    "each pass and\n"
    "each way of decoding has the bytes per second that were read from this memory: weights and the cache, divided by "
    "the whole time.\n"
    "They are compared with the copies, and with the peak that follows from the clock and the width of the GPU's "
    "memory, if its driver\n"
    "says them. The ceiling is the time to read all bytes: those in the GPU's memory as fast as it copies, the others "
    "at the read\n"
    "bandwidth. Left out are prompts with --prefill expanded or onednn, which the CPU computes, and, unless --only "
    "names them, linear\n"
    "layers and attention alone.\n\n"
    "With --plan, the command measures each operator inside of passes instead, and prints for each pass how far above "
    "their floors\n"
    "its operators are, and what limits them. The floor of an operator is the larger of two times: its bytes divided "
    "by the read\n"
    "bandwidth, and its operations divided by the peak speed of its instructions. The first sentence names the largest "
    "gap.\n",
    TAKES_MODEL | TAKES_COMPUTE | TAKES_LENGTH | TAKES_SAMPLING | TAKES_BENCH, run, notes, COMPARES_METHODS, NULL};
