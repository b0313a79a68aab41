/* tests/engine/test_ranks_weights.c -- several ranks compute the bits of one process from weights of every type and in
 * every layout. Runs in the repository's root. With --all: more settings of each. */
#include "engine/export/gguf_write.h"
#include "tests/support/layout_checkpoint.h"
#include "tests/support/quantized.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny.h"

#include <fcntl.h>

static int all;

#define PROMPT 19
#define TOKENS 8

/* A prompt in chunks of 7, then tokens with drafts, if the model has modules. */
static void prompt_and_tokens(vb_model *m, struct notes *n, void *context)
{
    int32_t prompt[PROMPT];
    const char *prefill = context;
    vb_session_options o = {.context = 64, .threads = 1, .prefill_chunk = 7, .prefill = prefill,
                            .drafting = {.method = vb_mtp_modules(m) ? "mtp-eagle" : "ngram", .tokens = 2}};
    random_tokens(m, 5, prompt, PROMPT);
    vb_session *s = open_session(m, &o, prompt, PROMPT);
    note_run(n, s, TOKENS, "run");
    vb_session_close(s);
}

static const char *const precisions[] = {"f32", "bf16", "q8", "q4"}, *const caches[] = {"f32", "bf16", "q8"};

/* Group i of a series: 2 to 8 ranks, with equal or different shares and different instruction sets. */
static struct group_options some_group(size_t i)
{
    const char *const *isas = isas_here();
    struct group_options g = {.count = (int[]){2, 3, 5, 8, 4}[i % 5]};
    size_t known = 0;
    while (isas[known])
        known++;
    for (int r = 0; r < g.count; r++) {
        g.isa[r] = isas[(i + (size_t)r) % known];
        g.weights[r] = i % 2 ? 1 + (uint32_t)(i + 3 * (size_t)r) % 4 : 1;
    }
    return g;
}

static void check(const char *name, const char *dir, vb_model_options o, size_t i)
{
    char what[200];
    struct group_options g = some_group(i);
    snprintf(what, sizeof what, "%s, precision %s, cache %s, repack %s, group %zu", name,
             o.precision ? o.precision : "f32", o.cache_type ? o.cache_type : "f32", o.repack ? o.repack : "on", i);
    check_scenario(what, dir, &o, &g, prompt_and_tokens, i % 3 == 2 ? "expanded" : NULL);
}

/* ---- directories ---- */

TEST(weights_in_every_layout_give_the_same_bits_in_every_precision)
{
    for (size_t l = 0; l < LAYOUTS; l++) {
        char dir[64];
        layout_checkpoint(dir,
                          (struct layout_checkpoint){.layout = (enum layout)l, .no_q_lora = l % 2, .tied = l % 3 == 1});
        for (size_t p = 0; p < COUNT(precisions); p++)
            for (size_t c = 0; c < COUNT(caches); c++)
                if (all || c == (l + p) % COUNT(caches))
                    check(layout_names[l], dir,
                          (vb_model_options){.precision = precisions[p], .cache_type = caches[c],
                                             .repack = p % 2 ? "off" : NULL},
                          4 * l + 3 * p + c);
        remove_dir(dir);
    }
}

/* The output head is tied: each rank has its rows of the head, and the whole embedding. */
TEST(a_tied_head_in_every_precision_gives_the_same_bits)
{
    char dir[64];
    layout_checkpoint(dir, (struct layout_checkpoint){.layout = LAYOUT_BF16, .tied = 1, .no_q_lora = 1});
    for (size_t p = 0; p < COUNT(precisions); p++)
        check("tied", dir, (vb_model_options){.precision = precisions[p]}, p);
    remove_dir(dir);
}

/* ---- GGUF files ---- */

TEST(every_quantized_type_of_a_gguf_file_gives_the_same_bits)
{
    for (size_t i = 0; i < COUNT(block_types); i++) {
        char dir[64], path[96];
        const char *name = block_types[i].name;
        struct quantized_model q = {.name = name, .types = {name}, .large = block_types[i].numbers > 32, .seed = 3 + i};
        if (i % 3)
            q.k_b = q.v_b = name;
        if (i % 2)
            q.embedding = name, q.tied = 1;
        make_dir(dir);
        snprintf(path, sizeof path, "%s/m.gguf", dir);
        write_quantized(dir, "m.gguf", q);
        check(name, path, (vb_model_options){.precision = precisions[i % 2], .repack = i / 2 % 2 ? "off" : NULL}, i);
        if (all)
            check(name, path,
                  (vb_model_options){.precision = precisions[1 - i % 2], .repack = i / 2 % 2 ? NULL : "off",
                                     .cache_type = "bf16"},
                  i + 1);
        remove_dir(dir);
    }
}

TEST(files_of_the_repository_give_the_same_bits)
{
    static const char *const files[] = {"golden/gguf/quantized.gguf", "golden/gguf/tiny-indexer.gguf",
                                        "golden/gguf/tiny-quantized.gguf", "golden/gguf/tiny.gguf"};
    for (size_t i = 0; i < COUNT(files); i++)
        check(files[i], files[i], (vb_model_options){.precision = precisions[i % 4]}, i);
}

/* A model of several groups of rows, quantized by this program. */
TEST(files_that_the_program_has_quantized_give_the_same_bits)
{
    static const enum gguf_as as[] = {GGUF_AS_Q8_0, GGUF_AS_Q4_0};
    char dir[64], path[96];
    layout_checkpoint(dir, (struct layout_checkpoint){.layout = LAYOUT_BF16, .tied = 1});
    snprintf(path, sizeof path, "%s/q.gguf", dir);
    for (size_t i = 0; i < COUNT(as); i++) {
        vb_model *m = open_model(dir);
        struct vb_quantize *p = NULL;
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        assert_true(fd >= 0);
        OK(gguf_plan_open(&p, m, dir, &(struct gguf_write_options){as[i], as[i], as[i]}, &err));
        OK(gguf_plan_write(p, fd, path, 1, NULL, NULL, &err));
        close(fd);
        gguf_plan_close(p);
        vb_model_close(m);
        check("quantized", path, (vb_model_options){.repack = NULL}, 2 * i + 1);
        check("quantized", path, (vb_model_options){.repack = "off", .cache_type = "q8"}, 2 * i + 2);
    }
    remove_dir(dir);
}

/* ---- copies in files ---- */

/* Ranks share one directory of copies, and find their own copies again; those of other shares, and of one process, are
 * others. */
TEST(ranks_share_a_directory_of_copies)
{
    char dir[64], copies[64];
    size_t files = 0;
    layout_checkpoint(dir, (struct layout_checkpoint){.layout = LAYOUT_BF16});
    make_dir(copies);
    for (size_t i = 0; i < 6; i++)
        check("copies", dir, (vb_model_options){.precision = "q8", .repack_cache = copies},
              (size_t[]){0, 0, 1, 1, 5, 0}[i]);
    DIR *d = opendir(copies);
    for (struct dirent *e; (e = readdir(d));)
        files += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(files, 1 + 2 + 3 + 2); /* of one process, and of groups 0, 1 and 5; groups 0 and 5 divide the rows
                                               between two ranks in two ways */
    remove_dir(copies);
    remove_dir(dir);
}

/* ---- conventions ---- */

TEST(conventions_of_the_target_give_the_same_bits)
{
    static const struct {
        const char *dir, *list;
    } cases[] = {{"golden/tiny/v3", "gate=bf16,group-mask=zero,normaliser-eps=1e-20"},
                 {"golden/tiny/v3",
                  "main-hidden=pre-norm,draft-hidden=pre-norm,first-row=phantom,first-embedding=zeroed"},
                 {"golden/tiny/v3-mtp3", "concat=hidden-embedding,chain-module=step,module-hidden=target"},
                 {"golden/tiny/v32", "indexer-weights=bf16,latent-cache=fp8,indexer-codes=fp8,gate=bf16"},
                 {"golden/tiny/v32", "indexer-ties=highest,indexer-scores=bf16,indexer-rope=pairs,mtp-indexer=none"},
                 {"golden/tiny/glm5", "mtp-set=first,yarn=max-len"},
                 {"golden/tiny/v3", "rope-angle=f32,latent-eps=config,prefill-draft=discarded"}};
    for (size_t i = 0; i < COUNT(cases); i++)
        check(cases[i].list, cases[i].dir,
              (vb_model_options){.conventions = cases[i].list, .precision = precisions[i % 4]}, i);
}

int main(int argc, char **argv)
{
    all = argc > 1 && !strcmp(argv[1], "--all");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_in_every_layout_give_the_same_bits_in_every_precision),
        cmocka_unit_test(a_tied_head_in_every_precision_gives_the_same_bits),
        cmocka_unit_test(every_quantized_type_of_a_gguf_file_gives_the_same_bits),
        cmocka_unit_test(files_of_the_repository_give_the_same_bits),
        cmocka_unit_test(files_that_the_program_has_quantized_give_the_same_bits),
        cmocka_unit_test(ranks_share_a_directory_of_copies),
        cmocka_unit_test(conventions_of_the_target_give_the_same_bits),
    };
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
