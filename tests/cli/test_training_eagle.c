/* tests/cli/test_training_eagle.c -- `verbatim train --part eagle` and eagle3: the folder of the head, its vocabulary,
 * resumed runs, options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/runs.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define V3 TINY "v3"
#define NEW "--num-attention-heads", "4", "--num-query-groups", "2", "--kv-channels", "16", "--ffn-hidden-size", "48"

static json_t *config_of(const char *head)
{
    char path[400];
    snprintf(path, sizeof path, "%s/config.json", head);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    return config;
}

static int64_t number_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* ---- a new head -------------------------------------------------------------------------------------------------- */

/* The head drafts, and the text is the same as without it. Returns how many first drafts were accepted. */
static int64_t expect_drafts(const char *model, const char *method, const char *head)
{
    json_t *with = JSON("generate", model, "--tokens", "5,6,7,8", "-n", "48", "--ignore-eos", "--draft", method,
                        "--draft-model", head);
    json_t *without = JSON("generate", model, "--tokens", "5,6,7,8", "-n", "48", "--ignore-eos");
    assert_true(json_equal(json_object_get(with, "tokens"), json_object_get(without, "tokens")));
    int64_t accepted = json_integer_value(json_array_get(json_object_get(json_object_get(with, "stats"),
                                                                         "accepted_by_depth"),
                                                         0));
    json_decref(with);
    json_decref(without);
    return accepted;
}

TEST(a_run_that_is_resumed_ends_with_the_same_head)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", V3, "--part", "eagle3", "--draft-vocab-size", "60", "--norm-before-residual",
                        "--fc-norm", "--norm-output", NEW, "--data", run_file("data.jsonl"), "--train-iters", "4",
                        SMALL, "-o", run_file("whole"));
    expect_code(&s, 0);
    forget(&s);
    s = RUN("train", V3, "--part", "eagle3", "--draft-vocab-size", "60", "--norm-before-residual", "--fc-norm",
            "--norm-output", NEW, "--data", run_file("data.jsonl"), "--train-iters", "2", "--lr-decay-iters", "4",
            SMALL, "-o", run_file("run"));
    expect_code(&s, 0);
    forget(&s);
    s = RUN("train", "--resume", run_file("run"), "--train-iters", "4", "--threads", "2", "--micro-tokens", "7",
            "--isa", "scalar");
    expect_code(&s, 0);
    forget(&s);
    expect_same_file(run_file("whole/head/model.safetensors"), run_file("run/head/model.safetensors"));
    expect_same_file(run_file("whole/head/config.json"), run_file("run/head/config.json"));
    expect_drafts(V3, "eagle3", run_file("run/head"));
}

TEST(a_new_head_has_the_shape_of_the_options)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", V3, "--part", "eagle", NEW, "--data", run_file("data.jsonl"), "--train-iters", "2",
                        SMALL, "-o", run_file("run"));
    expect_code(&s, 0);
    forget(&s);
    json_t *config = config_of(run_file("run/head"));
    assert_int_equal(number_of(config, "num_attention_heads"), 4);
    assert_int_equal(number_of(config, "num_key_value_heads"), 2);
    assert_int_equal(number_of(config, "head_dim"), 16);
    assert_int_equal(number_of(config, "intermediate_size"), 48);
    assert_int_equal(number_of(config, "hidden_size"), 64);
    json_decref(config);
    expect_drafts(V3, "eagle", run_file("run/head"));
}

/* The most frequent labels, and of equally frequent ones those with the lowest ids. */
TEST(a_draft_vocabulary_has_the_most_frequent_tokens)
{
    static const int64_t tokens[] = {3, 7, 8, 20}; /* 7 and 20 three times; 3, 8 and 11 twice; 40 once */
    vb_tensors *tensors;
    vb_tensor d2t, t2d;
    vb_error err;
    write_text(runs_dir, "data.jsonl", "{\"tokens\": [7, 20, 11, 7, 20, 11, 7, 20, 3, 8]}\n{\"tokens\": [8, 3, 40]}\n"
                                       "{\"tokens\": [50, 50, 50, 50, 40], \"loss_mask\": [0, 0, 0, 0, 0]}\n");
    struct said s = RUN("train", V3, "--part", "eagle3", "--draft-vocab-size", "4", NEW, "--data",
                        run_file("data.jsonl"), "--eval-share", "0", "--mtp-num-layers", "1", "--train-iters", "1",
                        SMALL, "-o", run_file("run"));
    expect_code(&s, 0);
    forget(&s);
    assert_int_equal(vb_tensors_open(&tensors, run_file("run/head"), NULL, &err), VB_OK);
    assert_true(vb_tensors_find(tensors, "d2t", &d2t) && vb_tensors_find(tensors, "t2d", &t2d));
    assert_int_equal(d2t.bytes, sizeof tokens);
    assert_int_equal(t2d.bytes, 160);
    for (int64_t i = 0, offset; i < 4; i++) {
        memcpy(&offset, (const char *)d2t.data + i * 8, sizeof offset);
        assert_int_equal(i + offset, tokens[i]);
    }
    for (int v = 0; v < 160; v++)
        assert_int_equal(((const char *)t2d.data)[v], v == 3 || v == 7 || v == 8 || v == 20);
    vb_tensors_close(tensors);
    json_t *config = config_of(run_file("run/head")), *layer = json_object_get(config, "transformer_layer_config");
    assert_int_equal(number_of(config, "draft_vocab_size"), 4);
    assert_int_equal(number_of(layer, "vocab_size"), 160);
    assert_string_equal(json_string_value(json_object_get(config, "speculators_model_type")), "eagle3");
    json_decref(config);
}

/* Of the 9 tokens to predict, 7, 20, 7, 20, 3 and 8 are among the 4 that can be drafted; 11 (twice) and 40 are not. */
TEST(labels_outside_of_the_draft_vocabulary_are_counted)
{
    write_text(runs_dir, "data.jsonl", "{\"tokens\": [7, 20, 11, 7, 20, 11, 7, 20, 3, 8]}\n{\"tokens\": [8, 3, 40]}\n");
    struct said s = RUN("train", V3, "--part", "eagle3", "--draft-vocab-size", "4", NEW, "--data",
                        run_file("data.jsonl"), "--eval-share", "0", "--mtp-num-layers", "1", "--loss", "megatron",
                        "--train-iters", "1", SMALL, "--json", "-o", run_file("run"));
    json_t *lines = json_lines(s), *line = json_array_get(lines, 0);
    expect_keys(line, "step:i tokens:i loss:r main_loss:n loss_by_depth:a in_draft_vocabulary:r lr:r gradient_norm:r "
                      "tokens_per_second:r");
    assert_true(real(line, "in_draft_vocabulary") == 1 - 3.0 / 9);
    json_decref(lines);
    remove_tree(run_file("run"));
    /* the target would have to choose 5 or 6 */
    write_text(runs_dir, "data.jsonl", "{\"tokens\": [5, 6, 5, 6, 5, 6, 5, 6]}\n");
    s = RUN("train", V3, "--part", "eagle3", "--draft-vocab-size", "2", NEW, "--data", run_file("data.jsonl"),
            "--eval-share", "0", "--train-iters", "2", SMALL, "-o", run_file("run"));
    expect_code(&s, 0);
    const char *said =
        strstr(s.err,
               "verbatim: no row has a loss: none of the tokens to predict is among the 2 of the draft vocabulary\n");
    if (!said || strstr(said + 30, "no row") ||
        !strstr(s.out, "step 1 of 2  loss 0.0000  depth 0.0000 0.0000 0.0000  in vocabulary 0 %  lr"))
        fail_msg("%s%s", s.out, s.err);
    forget(&s);
}

static int is_true(const json_t *object, const char *key) { return json_is_true(json_object_get(object, key)); }

/* Also if a run goes on from the head. */
TEST(norms_of_speculators_are_trained_and_kept)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", V3, "--part", "eagle3", "--norm-before-residual", "--norm-before-fc", "--norm-output",
                        NEW, "--data", run_file("data.jsonl"), "--train-iters", "2", SMALL, "-o", run_file("run"));
    expect_code(&s, 0);
    forget(&s);
    json_t *config = config_of(run_file("run/head"));
    assert_true(is_true(config, "norm_before_residual") && is_true(config, "norm_before_fc") &&
                is_true(config, "norm_output") && !is_true(config, "fc_norm"));
    expect_drafts(V3, "eagle3", run_file("run/head"));
    s = RUN("train", V3, "--part", "eagle3", "--eagle-head", run_file("run/head"), "--data", run_file("data.jsonl"),
            "--train-iters", "2", SMALL, "-o", run_file("more"));
    expect_code(&s, 0);
    forget(&s);
    json_t *kept = config_of(run_file("more/head"));
    assert_true(json_equal(config, kept));
    json_decref(kept);
    json_decref(config);
    expect_drafts(V3, "eagle3", run_file("more/head"));
}

/* ---- a head that is continued ------------------------------------------------------------------------------------ */

TEST(a_head_that_is_not_trained_stays_as_it_is)
{
    static const char *const heads[] = {"golden/eagle/eagle1-v3", "golden/eagle/eagle3-v3"};
    write_data("data.jsonl", 12, 7);
    for (int i = 0; i < 2; i++) {
        vb_tensors *before, *after;
        vb_tensor a, b;
        vb_error err;
        float x[64], y[64];
        struct said s = RUN("train", V3, "--part", i ? "eagle3" : "eagle", "--eagle-head", heads[i], "--data",
                            run_file("data.jsonl"), "--train-iters", "0", SMALL, "--type", "f32", "-o",
                            run_file("run"));
        expect_code(&s, 0);
        forget(&s);
        assert_int_equal(vb_tensors_open(&before, heads[i], NULL, &err), VB_OK);
        assert_int_equal(vb_tensors_open(&after, run_file("run/head"), NULL, &err), VB_OK);
        for (size_t n = 0; vb_tensors_at(before, n, &a); n++) {
            assert_true(vb_tensors_find(after, a.name, &b));
            assert_int_equal(a.ndim, b.ndim);
            assert_int_equal(a.shape[0], b.shape[0]);
            if (!strcmp(a.dtype, "BOOL") || !strcmp(a.dtype, "I64")) {
                assert_memory_equal(a.data, b.data, a.bytes);
                continue;
            }
            assert_int_equal(vb_tensor_f32(&a, 0, 64, x, &err), VB_OK);
            assert_int_equal(vb_tensor_f32(&b, 0, 64, y, &err), VB_OK);
            assert_memory_equal(x, y, sizeof x);
        }
        vb_tensors_close(before);
        vb_tensors_close(after);
        json_t *result = json_load_file(run_file("run/result.json"), 0, NULL), *old = json_object_get(result, "before");
        assert_true(old && json_equal(json_object_get(old, "acceptance_by_depth"),
                                      json_object_get(json_object_get(result, "after"), "acceptance_by_depth")));
        json_decref(result);
        remove_tree(run_file("run"));
    }
}

TEST(the_heads_of_the_bundled_model_draft_for_it)
{
    assert_true(expect_drafts(TALE, "eagle", "golden/eagle/eagle1-tale") > 0);
    assert_true(expect_drafts(TALE, "eagle3", "golden/eagle/eagle3-tale") > 0);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

#define REFUSED(code, message, ...) \
    expect_failure(RUN("train", V3, "--data", "x", "--train-iters", "1", "-o", run_file("run"), __VA_ARGS__), code, \
                   message)

TEST(options_of_other_parts_are_refused_by_name)
{
    REFUSED(2, "--draft-vocab-size does not go together with --part eagle", "--part", "eagle", "--draft-vocab-size",
            "9");
    REFUSED(2, "--norm-before-residual does not go together with --part eagle3 and --eagle-head", "--part", "eagle3",
            "--eagle-head", "golden/eagle/eagle3-v3", "--norm-before-residual");
    REFUSED(2, "--eagle-head does not go together with --part modules", "--eagle-head", "golden/eagle/eagle1-v3");
    REFUSED(2, "--mtp-new does not go together with --part eagle", "--part", "eagle", "--mtp-new");
    REFUSED(2, "--kv-channels does not go together with --part eagle and --eagle-head", "--part", "eagle",
            "--eagle-head", "golden/eagle/eagle1-v3", "--kv-channels", "16");
    REFUSED(2, "--draft-vocab-size is 161, the model has 160 tokens", "--part", "eagle3", "--draft-vocab-size", "161");
    REFUSED(2, "--mtp-num-layers is 0, and --part eagle trains nothing else", "--part", "eagle", "--mtp-num-layers",
            "0");
    REFUSED(1, "not aligned", "--part", "eagle", "--mtp-num-layers", "2");
    REFUSED(2, "is an EAGLE-3 head, draft method eagle wants the other kind", "--part", "eagle", "--eagle-head",
            "golden/eagle/eagle3-v3");
    REFUSED(2, "wanted heads that the groups divide", "--part", "eagle", "--num-attention-heads", "4",
            "--num-query-groups", "3");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_run_that_is_resumed_ends_with_the_same_head),
        IN_DIR(a_new_head_has_the_shape_of_the_options),
        IN_DIR(a_draft_vocabulary_has_the_most_frequent_tokens),
        IN_DIR(labels_outside_of_the_draft_vocabulary_are_counted),
        IN_DIR(norms_of_speculators_are_trained_and_kept),
        IN_DIR(a_head_that_is_not_trained_stays_as_it_is),
        IN_DIR(the_heads_of_the_bundled_model_draft_for_it),
        IN_DIR(options_of_other_parts_are_refused_by_name),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
