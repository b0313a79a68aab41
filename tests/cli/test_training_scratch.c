/* tests/cli/test_training_scratch.c -- `verbatim train --from-scratch`: the shape comes from a config.json, and the weights from a seed. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>

#include "tests/support/cli.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define MTP3 TINY "v3-mtp3"

static char dir[64];

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    (void)st, (void)kind, (void)place;
    return remove(path);
}

static const char *in(const char *name)
{
    static char path[8][400];
    static int i;
    snprintf(path[i = (i + 1) % 8], sizeof *path, "%s/%s", dir, name);
    return path[i];
}

/* A folder with nothing but the config.json of a tiny checkpoint, and a text. */
static int begin(void **unused)
{
    size_t size;
    (void)unused;
    make_dir(dir);
    assert_int_equal(mkdir(in("shape"), 0777), 0);
    char *config = bytes_of(MTP3 "/config.json", &size);
    FILE *f = fopen(in("shape/config.json"), "wb");
    assert_true(f && fwrite(config, 1, size, f) == size && !fclose(f));
    free(config);
    write_text(dir, "data.jsonl", "{\"tokens\": [5, 9, 3, 14, 7, 8, 5, 9, 3, 14, 7, 8, 5, 9, 3, 14]}\n"
                                  "{\"tokens\": [11, 4, 6, 30, 11, 4, 6, 30, 11, 4, 6, 30]}\n{\"tokens\": [5, 9, 3, 30, 11, 4]}\n");
    return 0;
}

static int end(void **unused)
{
    (void)unused;
    nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return 0;
}

#define SCRATCH "--from-scratch", "--data", in("data.jsonl"), "--eval-share", "0.3", "--seq-length", "16", "--batch-tokens", "32", "--log-interval", "1"

static int same_file(const char *a, const char *b)
{
    size_t n, m;
    char *x = bytes_of(a, &n), *y = bytes_of(b, &m);
    int same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

static void expect_run(struct said s)
{
    expect_code(&s, 0);
    forget(&s);
}

/* Number i of a tensor depends on the seed, the name and i (engine/train/trainer.h). A model that has weights gives its shape alone. */
TEST(the_seed_decides_the_first_weights_and_the_bits_of_all_others)
{
    expect_run(RUN("train", in("shape"), SCRATCH, "--train-iters", "3", "-o", in("a"), "--threads", "1"));
    expect_run(RUN("train", MTP3, SCRATCH, "--train-iters", "3", "-o", in("b"), "--threads", "3", "--isa", "scalar"));
    expect_run(RUN("train", in("shape"), SCRATCH, "--train-iters", "0", "-o", in("c"), "--seed", "5"));
    assert_true(same_file(in("a/initial/model.safetensors"), in("b/initial/model.safetensors")));
    assert_true(same_file(in("a/model/model.safetensors"), in("b/model/model.safetensors")));
    assert_false(same_file(in("a/initial/model.safetensors"), in("c/initial/model.safetensors")));
}

TEST(a_run_from_scratch_is_resumed_with_the_same_bits)
{
    expect_run(RUN("train", in("shape"), SCRATCH, "--train-iters", "4", "--mtp-num-layers", "1", "-o", in("whole")));
    expect_run(RUN("train", in("shape"), SCRATCH, "--train-iters", "2", "--lr-decay-iters", "4", "--mtp-num-layers", "1", "-o", in("part")));
    expect_run(RUN("train", "--resume", in("part"), "--train-iters", "4"));
    assert_true(same_file(in("whole/model/model.safetensors"), in("part/model/model.safetensors")));
}

/* With all weights random, a model knows nothing: its loss is log(vocab_size), 128 here, and a little more, because its logits are not all equal.
 * Repeated texts are learnt quickly. */
TEST(training_from_scratch_lowers_the_loss)
{
    double first = 0, last = 0;
    struct said s = RUN("train", in("shape"), SCRATCH, "--train-iters", "30", "--lr", "0.01", "--mtp-num-layers", "0", "--json", "-o", in("run"));
    expect_code(&s, 0);
    for (char *line = strtok(s.out, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *j = json_loads(line, 0, NULL), *loss = json_object_get(j, "loss");
        if (loss && !first)
            first = json_number_value(loss);
        if (loss)
            last = json_number_value(loss);
        json_decref(j);
    }
    forget(&s);
    if (!(fabs(first - log(128)) < 0.5 && last < 0.7 * first))
        fail_msg("the loss is %g after the first step, and %g after the last", first, last);
}

TEST(what_has_no_shape_is_refused_and_leaves_no_folder)
{
    expect_failure(RUN("train", in("shape"), SCRATCH, "--train-iters", "1", "--part", "modules", "-o", in("run")), 2, "--part is modules");
    expect_failure(RUN("train", dir, SCRATCH, "--train-iters", "1", "-o", in("run")), 1, "config.json");
    expect_failure(RUN("train", in("shape"), SCRATCH, "--train-iters", "1", "--min-lr", "7", "-o", in("run")), 2, "--min-lr");
    assert_int_not_equal(access(in("run"), F_OK), 0);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(the_seed_decides_the_first_weights_and_the_bits_of_all_others),
        IN_DIR(a_run_from_scratch_is_resumed_with_the_same_bits),
        IN_DIR(training_from_scratch_lowers_the_loss),
        IN_DIR(what_has_no_shape_is_refused_and_leaves_no_folder),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
