/* tests/cli/test_training_heads.c -- `verbatim train` with parallel heads: resumed runs, the folder of the result, and
 * what is refused. Runs in the repository's root. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/runs.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void expect_run(struct said s)
{
    expect_code(&s, 0);
    forget(&s);
}

#define HEADS(model) "train", model, "--part", "parallel-heads", "--data", run_file("data.jsonl"), SMALL

TEST(a_run_with_heads_that_is_resumed_on_another_machine_keeps_its_bits)
{
    static const struct {
        const char *part, *file;
    } cases[] = {{"parallel-heads", "head/model.safetensors"}, {"model-with-heads", "model/model.safetensors"}};
    write_data("data.jsonl", 12, 7);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char a[400], b[400];
        expect_run(RUN(HEADS(V3), "--part", cases[i].part, "--soft-targets", "0.5", "--train-iters", "4", "-o",
                       run_file("whole"), "--threads", "3"));
        expect_run(RUN(HEADS(V3), "--part", cases[i].part, "--soft-targets", "0.5", "--train-iters", "2",
                       "--lr-decay-iters", "4", "-o", run_file("run"), "--threads", "1", "--isa", "scalar",
                       "--micro-tokens", "30"));
        expect_run(RUN("train", "--resume", run_file("run"), "--train-iters", "4", "--threads", "2"));
        snprintf(a, sizeof a, "%s/whole/%s", runs_dir, cases[i].file);
        snprintf(b, sizeof b, "%s/run/%s", runs_dir, cases[i].file);
        expect_same_file(a, b);
        remove_tree(run_file("whole"));
        remove_tree(run_file("run"));
    }
}

/* Only the whole model has a main loss. */
TEST(curves_have_a_column_for_each_head)
{
    static const char *const parts[] = {"parallel-heads", "model-with-heads"};
    write_data("data.jsonl", 12, 7);
    for (int whole = 0; whole < 2; whole++) {
        double main_loss = 0;
        size_t size;
        expect_run(RUN(HEADS(V3), "--part", parts[whole], "--mtp-num-layers", "2", "--train-iters", "1", "-o",
                       run_file("run")));
        char *csv = bytes_of(run_file("run/curves.csv"), &size);
        assert_non_null(strstr(csv, "step,tokens,lr,norm,loss,main,head1,head2,held_out_loss,held_out_main,held_out_"
                                    "head1,held_out_head2\n"));
        char *row = strstr(csv, "\n1,");
        assert_non_null(row);
        assert_int_equal(sscanf(row, "\n1,%*[^,],%*[^,],%*[^,],%*[^,],%lf,", &main_loss), whole ? 1 : 0);
        assert_true(!whole || main_loss > 1);
        free(csv);
        remove_tree(run_file("run"));
    }
}

static int has(const vb_tensors *t, const char *name)
{
    vb_tensor x;
    return vb_tensors_find(t, name, &x);
}

/* Drafts of the heads in this folder leave the text as it is. */
static void expect_same_text(const char *model, const char *heads)
{
    struct said plain = RUN("generate", model, "--tokens", "5,9,3", "-n", "30", "--json");
    struct said drafted = RUN("generate", model, "--tokens", "5,9,3", "-n", "30", "--json", "--draft", "parallel-heads",
                              "--draft-model", heads);
    expect_code(&plain, 0);
    expect_code(&drafted, 0);
    json_t *a = json_loads(plain.out, 0, NULL), *b = json_loads(drafted.out, 0, NULL);
    assert_true(json_equal(json_object_get(a, "tokens"), json_object_get(b, "tokens")));
    assert_string_equal(json_string_value(json_object_get(b, "draft")), "parallel-heads");
    json_decref(a);
    json_decref(b);
    forget(&plain);
    forget(&drafted);
}

/* The second run begins with the heads of the first, so its table has a line "before". */
TEST(the_heads_open_with_draft_parallel_heads_and_can_be_trained_again)
{
    vb_tensors *tensors;
    vb_error err;
    json_t *result;
    write_data("data.jsonl", 12, 7);
    expect_run(RUN(HEADS(V3), "--train-iters", "2", "--mtp-num-layers", "2", "--heads-mlp", "dense", "--heads-trunk",
                   "after", "--heads-init", "zero", "-o", run_file("a")));
    assert_int_equal(vb_tensors_open(&tensors, run_file("a/head"), NULL, &err), 0);
    assert_true(has(tensors, "extra_heads.1.mlp.gate_proj.weight") && !has(tensors, "extra_heads.1.mlp.gate.weight") &&
                !has(tensors, "extra_heads.2.input_layernorm.weight") && !has(tensors, "model.norm.weight"));
    vb_tensors_close(tensors);
    expect_same_text(V3, run_file("a/head"));
    expect_run(RUN(HEADS(V3), "--train-iters", "1", "--heads", run_file("a/head"), "-o", run_file("b")));
    expect_same_text(V3, run_file("b/head"));
    result = json_load_file(run_file("b/result.json"), 0, NULL);
    assert_true(json_object_get(result, "before") &&
                json_array_size(json_object_get(json_object_get(result, "after"), "acceptance_by_depth")) == 2);
    json_decref(result);
    assert_false(same_file(run_file("a/head/model.safetensors"), run_file("b/head/model.safetensors")));
    expect_run(RUN(HEADS(V3), "--part", "model-with-heads", "--train-iters", "1", "-o", run_file("c")));
    expect_same_text(run_file("c/model"), run_file("c/model"));
    expect_run(RUN(HEADS(V3), "--part", "model-with-heads", "--from-scratch", "--train-iters", "1", "-o",
                   run_file("d")));
    expect_same_text(run_file("d/model"), run_file("d/model"));
}

/* No step is taken, and the model's weights are BF16. */
TEST(new_heads_begin_as_copies_of_the_last_layer)
{
    vb_tensors *head, *model;
    vb_tensor x, y;
    vb_error err;
    write_data("data.jsonl", 12, 7);
    expect_run(RUN(HEADS(TALE), "--train-iters", "0", "-o", run_file("a")));
    assert_int_equal(vb_tensors_open(&head, run_file("a/head"), NULL, &err), 0);
    assert_int_equal(vb_tensors_open(&model, TALE, NULL, &err), 0);
    json_t *config = json_load_file(TALE "/config.json", 0, NULL);
    for (int k = 0; k < 3; k++) {
        char name[100], last[100];
        snprintf(name, sizeof name, "extra_heads.%d.self_attn.kv_b_proj.weight", k);
        snprintf(last, sizeof last, "model.layers.%d.self_attn.kv_b_proj.weight",
                 (int)integer(config, "num_hidden_layers") - 1);
        assert_true(vb_tensors_find(head, name, &x) && vb_tensors_find(model, last, &y));
        assert_true(x.bytes == y.bytes && !memcmp(x.data, y.data, x.bytes));
    }
    json_decref(config);
    vb_tensors_close(head);
    vb_tensors_close(model);
}

TEST(the_heads_of_the_bundled_model_draft_for_it)
{
    struct said s = RUN("generate", TALE, "--prompt", "Once upon a time", "-n", "64", "--json", "--draft",
                        "parallel-heads", "--draft-model", "golden/heads/parallel-tale");
    expect_code(&s, 0);
    json_t *out = json_loads(s.out, 0, NULL),
           *accepted = json_object_get(json_object_get(out, "stats"), "accepted_by_depth");
    assert_int_equal(json_array_size(accepted), 2);
    assert_true(json_integer_value(json_array_get(accepted, 0)) > 0);
    json_decref(out);
    forget(&s);
    expect_same_text(TALE, "golden/heads/parallel-tale");
}

TEST(heads_that_cannot_be_trained_are_refused_in_one_sentence)
{
    write_data("data.jsonl", 12, 7);
#define REFUSE(text, ...) \
    expect_failure(RUN(HEADS(V3), "--train-iters", "1", "-o", run_file("run"), __VA_ARGS__), 2, text)
    REFUSE("--heads-init is random, wanted copy or zero", "--heads-init", "random");
    REFUSE("--heads-trunk is for new heads, and --heads names some", "--heads", "golden/heads/parallel-v3",
           "--heads-trunk", "after");
    REFUSE("--heads-mlp is for --part parallel-heads and model-with-heads", "--part", "modules", "--heads-mlp",
           "dense");
    REFUSE("--mtp-num-layers is 0, and --part parallel-heads trains parallel heads", "--mtp-num-layers", "0");
    REFUSE("--mtp-modules does not go together with --part parallel-heads", "--mtp-modules", "2");
    REFUSE("--mtp-new does not go together with --part model-with-heads", "--part", "model-with-heads", "--mtp-new");
    REFUSE("--save-megatron does not go together with --part parallel-heads", "--save-megatron");
    REFUSE("head 0 would be dense, but by config.json layer 3 is a layer with experts", "--part", "model-with-heads",
           "--heads-mlp", "dense");
    REFUSE("--loss eagle compares hidden states with those of the model, and --part parallel-heads has none to compare",
           "--loss", "eagle");
    REFUSE("--loss fastmtp runs one module at every depth, and --part parallel-heads trains a head for each depth",
           "--loss", "fastmtp");
    REFUSE("--mtp-modules is 3, and --mtp-num-layers 2 with --loss megatron trains only 2 of them", "--part", "modules",
           "--mtp-modules", "3", "--mtp-num-layers", "2");
    expect_failure(RUN(HEADS(V3), "--train-iters", "1", "-o", run_file("run"), "--heads", "golden/heads/parallel-v3"),
                   1, "num_attention_heads of the heads is 2");
    assert_true(access(run_file("run"), F_OK));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(a_run_with_heads_that_is_resumed_on_another_machine_keeps_its_bits),
        IN_DIR(curves_have_a_column_for_each_head),
        IN_DIR(the_heads_open_with_draft_parallel_heads_and_can_be_trained_again),
        IN_DIR(new_heads_begin_as_copies_of_the_last_layer),
        IN_DIR(the_heads_of_the_bundled_model_draft_for_it),
        IN_DIR(heads_that_cannot_be_trained_are_refused_in_one_sentence),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
