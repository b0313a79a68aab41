/* tests/cli/test_training_scratch.c -- `verbatim train --from-scratch`: the shape comes from a config.json, and the
 * weights from a seed. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "tests/support/runs.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))

/* A folder with nothing but the config.json of a tiny checkpoint, and a text. */
static int begin(void **unused)
{
    size_t size;
    runs_begin(unused);
    assert_int_equal(mkdir(run_file("shape"), 0777), 0);
    char *config = bytes_of(MTP3 "/config.json", &size);
    FILE *f = fopen(run_file("shape/config.json"), "wb");
    assert_true(f && fwrite(config, 1, size, f) == size && !fclose(f));
    free(config);
    write_text(runs_dir, "data.jsonl", "{\"tokens\": [5, 9, 3, 14, 7, 8, 5, 9, 3, 14, 7, 8, 5, 9, 3, 14]}\n"
                                  "{\"tokens\": [11, 4, 6, 30, 11, 4, 6, 30, 11, 4, 6, 30]}\n{\"tokens\": [5, 9, 3, "
                                  "30, 11, 4]}\n");
    return 0;
}

#define SCRATCH \
    "--from-scratch", "--data", run_file("data.jsonl"), "--eval-share", "0.3", "--seq-length", "16", "--batch-tokens", \
        "32", "--log-interval", "1"

static void expect_run(struct said s)
{
    expect_code(&s, 0);
    forget(&s);
}

/* Number i of a tensor depends on the seed, the name and i (engine/train/trainer.h). A model that has weights gives its
 * shape alone. */
TEST(the_seed_decides_the_first_weights_and_the_bits_of_all_others)
{
    expect_run(RUN("train", run_file("shape"), SCRATCH, "--train-iters", "3", "-o", run_file("a"), "--threads", "1"));
    expect_run(RUN("train", MTP3, SCRATCH, "--train-iters", "3", "-o", run_file("b"), "--threads", "3", "--isa",
                   "scalar"));
    expect_run(RUN("train", run_file("shape"), SCRATCH, "--train-iters", "0", "-o", run_file("c"), "--seed", "5"));
    assert_true(same_file(run_file("a/initial/model.safetensors"), run_file("b/initial/model.safetensors")));
    assert_true(same_file(run_file("a/model/model.safetensors"), run_file("b/model/model.safetensors")));
    assert_false(same_file(run_file("a/initial/model.safetensors"), run_file("c/initial/model.safetensors")));
}

TEST(a_run_from_scratch_is_resumed_with_the_same_bits)
{
    expect_run(RUN("train", run_file("shape"), SCRATCH, "--train-iters", "4", "--mtp-num-layers", "1", "-o",
                   run_file("whole")));
    expect_run(RUN("train", run_file("shape"), SCRATCH, "--train-iters", "2", "--lr-decay-iters", "4",
                   "--mtp-num-layers", "1", "-o", run_file("part")));
    expect_run(RUN("train", "--resume", run_file("part"), "--train-iters", "4"));
    assert_true(same_file(run_file("whole/model/model.safetensors"), run_file("part/model/model.safetensors")));
}

/* With all weights random, a model knows nothing: its loss is log(vocab_size), 128 here, and a little more, because its
 * logits are not all equal. Repeated texts are learnt quickly. */
TEST(training_from_scratch_lowers_the_loss)
{
    double first = 0, last = 0;
    struct said s = RUN("train", run_file("shape"), SCRATCH, "--train-iters", "30", "--lr", "0.01", "--mtp-num-layers",
                        "0", "--json", "-o", run_file("run"));
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
    expect_failure(RUN("train", run_file("shape"), SCRATCH, "--train-iters", "1", "--part", "modules", "-o",
                       run_file("run")),
                   2, "--part is modules");
    expect_failure(RUN("train", runs_dir, SCRATCH, "--train-iters", "1", "-o", run_file("run")), 1, "config.json");
    expect_failure(RUN("train", run_file("shape"), SCRATCH, "--train-iters", "1", "--min-lr", "7", "-o",
                       run_file("run")),
                   2, "--min-lr");
    assert_int_not_equal(access(run_file("run"), F_OK), 0);
}

#define WITH_SHAPE(test) cmocka_unit_test_setup_teardown(test, begin, runs_end)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_SHAPE(the_seed_decides_the_first_weights_and_the_bits_of_all_others),
        WITH_SHAPE(a_run_from_scratch_is_resumed_with_the_same_bits),
        WITH_SHAPE(training_from_scratch_lowers_the_loss),
        WITH_SHAPE(what_has_no_shape_is_refused_and_leaves_no_folder),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
