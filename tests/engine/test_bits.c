/* tests/engine/test_bits.c -- golden/bits/fingerprints.txt, expanded.txt with prefill expanded, and cache-TYPE.txt with
 * another cache type: the same bits on this machine, whatever the instruction set, the threads, the prefill chunk and
 * the draft method. These goldens are the engine's own and change only on purpose.
 *
 *     test_bits            of every line with every instruction set two settings, as said below
 *     test_bits --all      every setting
 *     test_bits LINES      only the first LINES lines of each file (for slow machines, such as an emulator) */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/verbatim.h"
#include "simd/kernels.h"
#include "tests/support/turn.h"

#define MAX_PROMPT 256

struct golden {
    char model[64];
    unsigned n;
    float temperature;
    unsigned long long seed;
    int32_t prompt[MAX_PROMPT];
    size_t prompt_count;
    uint64_t fingerprint;
    char precision[8];
};

static int most_lines = 1 << 30, all;
static const char *prefill, *cache_type; /* of the file that is read */

static int parse(struct golden *g, char *line)
{
    char ids[2048];
    strcpy(g->precision, "f32"); /* unless the line says more */
    if (sscanf(line, "%63s %u %f %llu %2047s %" SCNx64 " %7s", g->model, &g->n, &g->temperature, &g->seed, ids,
               &g->fingerprint, g->precision) < 6)
        return 0;
    g->prompt_count = 0;
    for (char *p = strtok(ids, ","); p && g->prompt_count < MAX_PROMPT; p = strtok(NULL, ","))
        g->prompt[g->prompt_count++] = atoi(p);
    return 1;
}

static void check(const vb_model *model, const struct golden *g, vb_session_options o)
{
    vb_session *s;
    vb_result r;
    vb_error err;
    o.context = (int32_t)(g->prompt_count + g->n);
    o.prefill = prefill;
    o.sampling.temperature = g->temperature;
    o.sampling.seed = g->seed;
    if (vb_session_open(&s, model, &o, &err) || vb_append(s, g->prompt, g->prompt_count, &err))
        fail_msg("%s: %s", g->model, err.message);
    vb_generate_options go = {.max_tokens = g->n, .ignore_eos = 1, .fingerprint = 1};
    if (vb_generate(s, &go, &r, &err))
        fail_msg("%s: %s", g->model, err.message);
    vb_session_close(s);
    if (r.fingerprint != g->fingerprint)
        fail_msg("%s, %s, prefill %s, cache type %s, %u tokens at temperature %g, %s K=%d, %s, %d threads, chunk %d: "
                 "fingerprint %016" PRIx64 ", golden %016" PRIx64,
                 g->model, g->precision, prefill ? prefill : "contract", cache_type ? cache_type : "f32", g->n,
                 (double)g->temperature, o.drafting.method ? o.drafting.method : "none", o.drafting.tokens, o.isa,
                 o.threads, o.prefill_chunk, r.fingerprint, g->fingerprint);
}

/* Of every line with every instruction set two of these, another two with the next: all of them many times over the
 * file. With the scalar kernels, which are slow, one. */
static const vb_session_options settings[] = {
    {.threads = 1},
    {.exact_threads = 1, .threads = 2, .drafting.method = "mtp-vanilla", .drafting.tokens = 3},
    {.exact_threads = 1, .threads = 2, .prefill_chunk = 1},
    {.threads = 1, .drafting.method = "mtp-eagle", .drafting.tokens = 5, .prefill_chunk = 7},
    {.exact_threads = 1, .threads = 3, .prefill_chunk = 7},
};

static void check_settings(const struct golden *g, size_t line)
{
    vb_model *model;
    vb_error err;
    size_t count = sizeof settings / sizeof *settings, sets = 0;
    if (vb_model_open(&model, g->model, &(vb_model_options){.precision = g->precision, .cache_type = cache_type}, &err))
        fail_msg("%s", err.message);
    for (size_t k = 0; kernel_tables[k]; k++) {
        const char *isa = kernel_tables[k]->name;
        if (kernels_select(isa, NULL) != kernel_tables[k]) /* a session takes another table of this name */
            continue;
        if (k && !strcmp(isa, "scalar") && !has_turn(line, 3)) /* they take most of the time */
            continue;
        size_t runs = all ? count : strcmp(isa, "scalar") ? 2 : 1, first = 2 * (line + sets++);
        for (size_t i = 0; i < runs; i++) {
            vb_session_options o = settings[(first + i) % count];
            o.isa = isa;
            if (!vb_mtp_modules(model))
                o.drafting.method = NULL, o.drafting.tokens = 0;
            check(model, g, o);
        }
    }
    vb_model_close(model);
}

static void check_file(const char *path, const char *with_prefill, const char *with_cache_type)
{
    char line[4096];
    int lines = 0;
    FILE *f = fopen(path, "r");
    prefill = with_prefill;
    cache_type = with_cache_type;
    assert_non_null(f);
    while (lines < most_lines && fgets(line, sizeof line, f)) {
        struct golden g;
        if (line[0] == '#')
            continue;
        assert_true(parse(&g, line));
        check_settings(&g, (size_t)lines++);
    }
    fclose(f);
    assert_true(lines > 0);
}

static void fingerprints_are_those_of_the_golden_file(void **state)
{
    (void)state;
    check_file("golden/bits/fingerprints.txt", NULL, NULL);
}

static void fingerprints_with_prefill_expanded_are_those_of_their_file(void **state)
{
    (void)state;
    check_file("golden/bits/expanded.txt", "expanded", NULL);
}

static void fingerprints_with_a_rounded_cache_are_those_of_their_files(void **state)
{
    (void)state;
    check_file("golden/bits/cache-bf16.txt", NULL, "bf16");
    check_file("golden/bits/cache-q8.txt", NULL, "q8");
}

int main(int argc, char **argv)
{
    all = argc > 1 && !strcmp(argv[1], "--all");
    if (argc > 1 && !all)
        most_lines = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fingerprints_are_those_of_the_golden_file),
        cmocka_unit_test(fingerprints_with_prefill_expanded_are_those_of_their_file),
        cmocka_unit_test(fingerprints_with_a_rounded_cache_are_those_of_their_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
