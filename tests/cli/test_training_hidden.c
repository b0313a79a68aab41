/* tests/cli/test_training_hidden.c -- `verbatim train`: hidden states of the frozen model that are kept on disk or come
 * from dumps. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/runs.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void expect_done(struct said s)
{
    expect_code(&s, 0);
    forget(&s);
}

/* Two runs must have the same curves and weights. */
static void expect_same_result(const char *a, const char *b)
{
    static const char *const files[] = {"curves.csv", "model/model-trained-00001.safetensors",
                                        "head/model.safetensors"};
    int compared = 0;
    for (size_t i = 0; i < COUNT(files); i++) {
        char x[400], y[400];
        snprintf(x, sizeof x, "%s/%s", a, files[i]);
        snprintf(y, sizeof y, "%s/%s", b, files[i]);
        if (access(x, F_OK))
            continue;
        expect_same_file(x, y);
        compared++;
    }
    assert_int_equal(compared, 2); /* a run trains modules, or a head */
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int ch = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(ch ^ 64, f);
    fclose(f);
}

/* ---- rows that are kept ------------------------------------------------------------------------------------------ */

#define KEPT "hidden_states.safetensors"
#define RUN_OF(data, iterations, ...) \
    RUN("train", MTP3, "--data", data, "--train-iters", iterations, "--lr-decay-iters", "6", "--eval-interval", "3", \
        "--seq-length", "24", "--batch-tokens", "64", "--log-interval", "1", "--eval-prompts", "0", __VA_ARGS__)

TEST(hidden_states_that_are_kept_change_no_bit)
{
    static const char *const losses[] = {"megatron", "eagle"}; /* the rows that learn from the target read one row
                                                                  more */
    write_data("data.jsonl", 6, 7); /* six steps are more than two epochs */
    for (size_t i = 0; i < COUNT(losses); i++) {
        expect_done(RUN_OF(run_file("data.jsonl"), "6", "--loss", losses[i], "-o", run_file("plain")));
        expect_done(RUN_OF(run_file("data.jsonl"), "6", "--loss", losses[i], "-o", run_file("kept"),
                           "--keep-hidden-states", "--threads", "2", "--micro-tokens", "30"));
        expect_same_result(run_file("plain"), run_file("kept"));
        assert_int_equal(access(run_file("plain/" KEPT), F_OK), -1);
        remove_tree(run_file("plain"));
        remove_tree(run_file("kept"));
    }
    expect_failure(RUN_OF(run_file("data.jsonl"), "6", "--part", "model", "-o", run_file("run"),
                          "--keep-hidden-states"),
                   2, "--keep-hidden-states keeps what a frozen model computes");
}

/* A file that is damaged, too short, or of another run is made anew, also only in part. */
TEST(a_run_that_is_resumed_reads_kept_hidden_states_unless_they_are_damaged)
{
    enum { SAME, DAMAGED, TOO_SHORT, FOREIGN, LOST, CASES };
    size_t size, other_size, foreign_size;
    write_data("data.jsonl", 6, 7);
    write_data("other.jsonl", 6, 8);
    expect_done(RUN_OF(run_file("data.jsonl"), "6", "-o", run_file("whole")));
    expect_done(RUN_OF(run_file("other.jsonl"), "6", "--keep-hidden-states", "-o", run_file("other")));
    char *other = bytes_of(run_file("other/" KEPT), &foreign_size);
    for (int i = SAME; i < CASES; i++) {
        const char *path = run_file("run/" KEPT);
        expect_done(RUN_OF(run_file("data.jsonl"), "3", "--keep-hidden-states", "-o", run_file("run")));
        char *was = bytes_of(path, &size);
        if (i == DAMAGED)
            for (long at = (long)size - 64 * 4 * 40; at < (long)size; at += 64 * 4) /* 40 rows, of those held out and
                                                                                       the last to train on */
                flip(path, at + 3);
        else if (i == TOO_SHORT)
            write_file(run_file("run"), KEPT, was, size / 2);
        else if (i == FOREIGN)
            write_file(run_file("run"), KEPT, other, foreign_size);
        else if (i == LOST)
            remove(path);
        expect_done(RUN("train", "--resume", run_file("run"), "--train-iters", "6"));
        expect_same_result(run_file("whole"), run_file("run"));
        char *now = bytes_of(path, &other_size);
        assert_int_equal(size, other_size);
        assert_memory_equal(was, now, 64); /* the header again */
        free(now);
        free(was);
        remove_tree(run_file("run"));
    }
    free(other);
}

/* ---- files of dumps ---------------------------------------------------------------------------------------------- */

/* Dumps the first `count` documents of a file of tokens, and makes files of vLLM's form of the dumps
 * (tests/support/hidden_states.py). */
static void write_dumps(const char *data, int count, const char *dir, const char *taps)
{
    char line[4096], name[64];
    FILE *f = fopen(run_file(data), "r");
    assert_non_null(f);
    assert_int_equal(mkdir(run_file(dir), 0777), 0);
    for (int i = 0; i < count; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        char *ids = strchr(line, '[') + 1;
        *strchr(ids, ']') = '\0';
        snprintf(name, sizeof name, "%s/%d.safetensors", dir, i);
        expect_done(RUN("dump", MTP3, "--tokens", ids, "--prefill", "expanded", "--taps", taps, "-o", run_file(name)));
    }
    fclose(f);
}

static void to_vllm(const char *from, const char *to, const char *how)
{
    char command[1200];
    snprintf(command, sizeof command, "python3 tests/support/hidden_states.py %s %s %s", run_file(from), run_file(to),
             how);
    assert_int_equal(system(command), 0);
}

#define FROM(dir, ...) \
    RUN("train", MTP3, "--hidden-states", run_file(dir), "--train-iters", "4", "--eval-interval", "2", "--seq-length", \
        "64", "--batch-tokens", "64", "--log-interval", "1", "--eval-prompts", "1", "--eval-share", "0.2", \
        __VA_ARGS__)
#define FROM_TEXTS(...) \
    RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "4", "--eval-interval", "2", "--seq-length", \
        "64", "--batch-tokens", "64", "--log-interval", "1", "--eval-prompts", "1", "--eval-share", "0.2", \
        __VA_ARGS__)

/* Our own dumps, and the same numbers as vLLM writes them, have the same bits as texts: with the row after model.norm,
 * with that before it, with rows that learn from the model's distribution, with heads that read two layers, with a head
 * that reads the row after model.norm, and with one that reads three layers, whose draft vocabulary is chosen by the
 * tokens. */
TEST(hidden_states_of_dumps_have_the_bits_of_texts)
{
    static const char *const cases[][2] = {{"--convention", "main-hidden=post-norm"},
                                           {"--convention", "main-hidden=pre-norm"}, {"--soft-targets", "0.5"},
                                           {"--part", "parallel-heads"}, {"--part", "eagle"}, {"--part", "eagle3"}};
    write_data("data.jsonl", 6, 7);
    write_dumps("data.jsonl", 6, "own",
                "model.norm.input,model.layers.0.input_layernorm.input,model.layers.1.input_layernorm.input,model."
                "layers.2.input_layernorm.input");
    to_vllm("own", "vllm", "F32");
    for (size_t i = 0; i < COUNT(cases); i++) {
        expect_done(FROM_TEXTS(cases[i][0], cases[i][1], "-o", run_file("texts")));
        expect_done(FROM("own", cases[i][0], cases[i][1], "-o", run_file("a"), "--threads", "2"));
        if (!strcmp(cases[i][1], "eagle3")) /* the default layers are those of such heads, and the last */
            expect_done(FROM("vllm", cases[i][0], cases[i][1], "-o", run_file("b")));
        else
            expect_done(FROM("vllm", cases[i][0], cases[i][1], "-o", run_file("b"), "--hidden-states-layers",
                             "0,1,2,3"));
        expect_same_result(run_file("texts"), run_file("a"));
        expect_same_result(run_file("texts"), run_file("b"));
        remove_tree(run_file("texts"));
        remove_tree(run_file("a"));
        remove_tree(run_file("b"));
    }
}

TEST(a_run_from_dumps_is_resumed_unless_a_file_has_changed)
{
    size_t size;
    write_data("data.jsonl", 6, 7);
    write_dumps("data.jsonl", 6, "own", "model.norm.input");
    to_vllm("own", "bf16", "BF16");
    to_vllm("own", "one", "F16");
    to_vllm("own", "f16", "four"); /* the last of four layers */
    expect_done(FROM("bf16", "-o", run_file("whole")));
    expect_done(FROM("bf16", "-o", run_file("run"), "--train-iters", "2", "--lr-decay-iters", "4"));
    char *was = bytes_of(run_file("bf16/3.safetensors"), &size);
    flip(run_file("bf16/3.safetensors"), (long)size / 2);
    expect_failure(RUN("train", "--resume", run_file("run"), "--train-iters", "4"), 1,
                   "3.safetensors: it has changed since the run in");
    write_file(run_file("bf16"), "3.safetensors", was, size);
    free(was);
    expect_done(RUN("train", "--resume", run_file("run"), "--train-iters", "4"));
    expect_same_result(run_file("whole"), run_file("run"));
    expect_done(FROM("one", "-o", run_file("one-run")));
    expect_done(FROM("f16", "-o", run_file("four")));
    expect_same_result(run_file("one-run"), run_file("four"));
    expect_done(FROM("f16", "-o", run_file("named"), "--hidden-states-layers", "0,1,2,3"));
    expect_same_result(run_file("four"), run_file("named"));
    expect_failure(FROM("f16", "-o", run_file("no"), "--hidden-states-layers", "3,1,2"), 1,
                   "hidden_states has 4 layers, and --hidden-states-layers names 3");
    expect_failure(FROM("f16", "-o", run_file("no"), "--hidden-states-layers", "0,1,2,2"), 1,
                   "none is known to be the residual stream before layer 3 (3: after the last)");
    expect_failure(FROM("f16", "-o", run_file("no"), "--hidden-states-layers", "0,x"), 2,
                   "--hidden-states-layers is 0,x, wanted numbers of layers");
}

/* A new EAGLE-3 head knows which rows it reads only when all tokens are known: then the rows are checked. */
TEST(a_new_head_refuses_a_bad_row_before_its_run_begins)
{
    write_data("data.jsonl", 2, 7);
    write_dumps("data.jsonl", 2, "own",
                "model.norm.input,model.layers.0.input_layernorm.input,model.layers.1.input_layernorm.input,model."
                "layers.2.input_layernorm.input");
    to_vllm("own", "wrong", "nan");
    expect_failure(FROM("wrong", "--part", "eagle3", "--hidden-states-layers", "0,1,2,3", "-o", run_file("run")), 1,
                   "hidden_states: number 7 of the hidden state of token 5 is not finite");
    expect_failure(FROM("own", "--part", "eagle3", "--loss", "hass", "-o", run_file("run")), 2,
                   "--loss hass compares hidden states with those of the model");
    assert_int_equal(access(run_file("run"), F_OK), -1);
}

/* The script's other ways are mistakes. */
TEST(wrong_files_of_hidden_states_are_refused_in_one_sentence)
{
    static const char *const cases[][2] = {
        {"width", "hidden_states is [16,1,63], wanted [tokens, layers, 64]"},
        {"lengths", "token_ids has 15 tokens, and hidden_states 16 rows"},
        {"vocabulary", "token 3 is 128, the vocabulary of golden/tiny/v3-mtp3 has 128"},
        {"negative", "token 3 is -1, the vocabulary of golden/tiny/v3-mtp3 has 128"},
        {"dtype", "hidden_states is I32, wanted F32, BF16 or F16"},
        {"ids", "token_ids is F32 with 1 dimensions, wanted I64 or I32"},
        {"nan", "number 7 of the hidden state of token 5 is not finite"},
        {"no-ids", "it has hidden_states, but no token_ids"},
        {"neither", "it has neither hidden_states, as vLLM writes them, nor model.norm.input, as dump --taps does"},
        {"truncated", "0.safetensors: "},
        {"empty", "it has no files whose names end with .safetensors"}};
    write_text(runs_dir, "data.jsonl", "{\"tokens\": [5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]}\n");
    write_dumps("data.jsonl", 1, "own", "model.norm.input");
    for (size_t i = 0; i < COUNT(cases); i++) {
        to_vllm("own", "wrong", cases[i][0]);
        expect_failure(FROM("wrong", "-o", run_file("run")), 1, cases[i][1]);
        remove_tree(run_file("wrong"));
    }
    expect_failure(FROM("nothing", "-o", run_file("run")), 1, "nothing: No such file or directory");
    expect_failure(FROM("own", "--data", "x", "-o", run_file("run")), 2,
                   "--data and --hidden-states do not go together");
    expect_failure(FROM("own", "--keep-hidden-states", "-o", run_file("run")), 2,
                   "--hidden-states and --keep-hidden-states do not go together");
    expect_failure(FROM("own", "--part", "model", "-o", run_file("run")), 2, "--part model trains all of it");
    expect_failure(FROM("own", "--hidden-states-layers", "3,", "-o", run_file("run")), 2,
                   "--hidden-states-layers is 3,, wanted numbers of layers");
    remove(run_file("own/0.jsonl"));
    expect_failure(FROM("own", "-o", run_file("run")), 1, "0.jsonl: No such file");
    assert_int_equal(access(run_file("run"), F_OK), -1); /* no folder is left */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(hidden_states_that_are_kept_change_no_bit),
        IN_DIR(a_run_that_is_resumed_reads_kept_hidden_states_unless_they_are_damaged),
        IN_DIR(hidden_states_of_dumps_have_the_bits_of_texts),
        IN_DIR(a_run_from_dumps_is_resumed_unless_a_file_has_changed),
        IN_DIR(a_new_head_refuses_a_bad_row_before_its_run_begins),
        IN_DIR(wrong_files_of_hidden_states_are_refused_in_one_sentence),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
