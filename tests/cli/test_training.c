/* tests/cli/test_training.c -- `verbatim train`: runs that are killed end with the same bits, the result opens as a
 * model, and what is wrong is refused. Runs the program itself (argv[1], or ../verbatim beside this one) in the
 * repository's root. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/runs.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

static char *fail_io; /* the library that is preloaded */

/* Two run folders must have the same state, curves and weights. */
static void expect_same_run(const char *a, const char *b, int same_options)
{
    static const char *const files[] = {"curves.csv", "curves.svg", "data.safetensors",
                                        "model/model-trained-00001.safetensors", "model/model.safetensors.index.json",
                                        "state.safetensors"};
    for (size_t i = 0; i < COUNT(files) - (size_t)!same_options; i++) {
        char x[400], y[400];
        snprintf(x, sizeof x, "%s/%s", a, files[i]);
        snprintf(y, sizeof y, "%s/%s", b, files[i]);
        expect_same_file(x, y);
    }
}

/* ---- interruption ------------------------------------------------------------------------------------------------ */

/* Call number `at` of the command's calls on files of the folder run fails in this way (tests/support/fail_io.c). */
static void let_fail(const char *how, long at)
{
    char number[24];
    snprintf(number, sizeof number, "%ld", at);
    setenv("LD_PRELOAD", fail_io, 1);
    setenv("FAIL_UNDER", run_file("run"), 1);
    setenv("FAIL_LOG", run_file("log"), 1);
    setenv("FAIL_HOW", how, 1);
    setenv("FAIL_AT", number, 1);
}

/* Runs the command, which is killed at this call. Returns 1 if it was killed, 0 if it ended before, with exit code
 * 0. */
static int killed(const char *const *arguments, long at)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        int null = open("/dev/null", O_RDWR);
        let_fail("kill", at);
        become(arguments, PIPE, null, null);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return 1;
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("killed at call %ld: status %x", at, (unsigned)status);
    return 0;
}

#define RUN_OF(data, folder) \
    verbatim, "train", MTP3, "--data", data, "--train-iters", "4", "--save-interval", "1", "--eval-interval", "4", \
        SMALL, "--log-interval", "3", "-o", folder, NULL

/* At many calls, from the first to the last; twice, because what is resumed is killed too. */
TEST(a_run_that_is_killed_ends_with_the_bits_of_one_that_is_not)
{
    char data[80], a[80], b[80];
    snprintf(data, sizeof data, "%s/data.jsonl", runs_dir);
    snprintf(a, sizeof a, "%s/whole", runs_dir);
    snprintf(b, sizeof b, "%s/run", runs_dir);
    const char *whole[] = {RUN_OF(data, a)}, *run[] = {RUN_OF(data, b)},
               *resume[] = {verbatim, "train", "--resume", b, NULL};
    int kills = 0, nothing = 0, in_the_middle = 0;
    write_masked_data("data.jsonl", 12, 7);
    struct said s = run_to(PIPE, whole);
    expect_code(&s, 0);
    forget(&s);
    for (long at = 1; killed(run, at); at = at * 3 / 2 + 1, kills++) {
        if (access(run_file("run/state.safetensors"), F_OK)) {
            expect_failure(run_to(PIPE, resume), 1, "so there is no run to continue");
            nothing++;
        } else {
            in_the_middle += killed(resume, at + 1);
            s = run_to(PIPE, resume);
            expect_code(&s, 0);
            forget(&s);
            expect_same_run(run_file("whole"), run_file("run"), 1);
        }
        remove_tree(run_file("run"));
    }
    assert_true(nothing > 0 && kills - nothing >= 4 && in_the_middle > 0);
    expect_same_run(run_file("whole"), run_file("run"), 1);
}

TEST(a_run_on_a_full_disk_says_so_and_continues_later)
{
    char data[80], a[80], b[80];
    int failures = 0;
    snprintf(data, sizeof data, "%s/data.jsonl", runs_dir);
    snprintf(a, sizeof a, "%s/whole", runs_dir);
    snprintf(b, sizeof b, "%s/run", runs_dir);
    const char *whole[] = {RUN_OF(data, a)}, *run[] = {RUN_OF(data, b)};
    write_data("data.jsonl", 12, 7);
    struct said s = run_to(PIPE, whole);
    expect_code(&s, 0);
    forget(&s);
    for (long at = 3;; at = at * 3 / 2 + 2) {
        let_fail("full", at);
        s = run_to(PIPE, run);
        unsetenv("LD_PRELOAD");
        int failed = s.exit_code;
        if (failed && (failed != 1 || !s.err_size || strchr(s.err, '\n') != s.err + s.err_size - 1))
            fail_msg("call %ld: exit code %d, %s", at, failed, s.err);
        forget(&s);
        if (failed && access(run_file("run/state.safetensors"), F_OK))
            assert_int_equal(access(run_file("run"), F_OK), -1); /* nobody can continue it: nothing is left */
        if (failed && !access(run_file("run/state.safetensors"), F_OK)) {
            s = RUN("train", "--resume", b);
            expect_code(&s, 0);
            forget(&s);
            expect_same_run(a, b, 1);
            failures++;
        }
        if (!failed)
            break;
        remove_tree(b);
    }
    assert_true(failures >= 3);
}

TEST(a_run_that_is_resumed_on_another_machine_keeps_its_bits)
{
    static const struct {
        const char *model, *part, *file;
    } cases[] = {{MTP3, "modules", "model/model-trained-00001.safetensors"}, {V3, "model", "model/model.safetensors"}};
    write_data("data.jsonl", 12, 7);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char a[400], b[400];
        struct said s = RUN("train", cases[i].model, "--part", cases[i].part, "--data", run_file("data.jsonl"),
                            "--train-iters", "4", SMALL, "-o", run_file("whole"), "--threads", "3");
        expect_code(&s, 0);
        forget(&s);
        s = RUN("train", cases[i].model, "--part", cases[i].part, "--data", run_file("data.jsonl"), "--train-iters",
                "2", "--lr-decay-iters", "4", SMALL, "-o", run_file("run"), "--threads", "1", "--isa", "scalar",
                "--micro-tokens", "30", "--eval-interval", "7");
        expect_code(&s, 0);
        forget(&s);
        s = RUN("train", "--resume", run_file("run"), "--train-iters", "4", "--threads", "2", "--micro-tokens", "1000");
        expect_code(&s, 0);
        forget(&s);
        snprintf(a, sizeof a, "%s/whole/%s", runs_dir, cases[i].file);
        snprintf(b, sizeof b, "%s/run/%s", runs_dir, cases[i].file);
        expect_same_file(a, b);
        remove_tree(run_file("whole"));
        remove_tree(run_file("run"));
    }
}

TEST(ctrl_c_saves_the_newest_step)
{
    int out[2], err[2], status;
    struct said s = {.command = "train", .out = calloc(1, 1), .err = calloc(1, 1)};
    write_data("data.jsonl", 12, 7);
    const char *arguments[] = {verbatim, "train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "100000",
                               SMALL, "-o", run_file("run"), NULL};
    assert_true(!pipe(out) && !pipe(err));
    pid_t child = fork();
    if (!child)
        become(arguments, PIPE, out[1], err[1]);
    close(out[1]);
    close(err[1]);
    while (!strstr(s.out, "step 3 of"))
        assert_true(take(out[0], &s.out, &s.out_size));
    kill(child, SIGINT);
    listen_to(child, (int[]){out[0], err[0]}, PIPE, &s);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    s.exit_code = WEXITSTATUS(status);
    expect_code(&s, 130);
    long long stopped = 0;
    const char *said = strstr(s.err, "stopped after step ");
    assert_true(said && sscanf(said, "stopped after step %lld; verbatim train --resume ", &stopped) == 1 &&
                stopped >= 3);
    forget(&s);
    char steps[24];
    snprintf(steps, sizeof steps, "%lld", stopped);
    s = RUN("train", "--resume", run_file("run"), "--train-iters", steps); /* it is there already */
    expect_code(&s, 0);
    assert_null(strstr(s.out, "lr"));
    forget(&s);
}

/* ---- what is refused on resumption ------------------------------------------------------------------------------- */

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    int ch = fgetc(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    fputc(ch ^ 4, f);
    fclose(f);
}

TEST(what_cannot_be_continued_is_refused_by_name)
{
    char run[80];
    snprintf(run, sizeof run, "%s/run", runs_dir);
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "2", SMALL, "-o", run, "--lr",
                        "1e-3");
    expect_code(&s, 0);
    forget(&s);
    expect_failure(RUN("train", "--resume", run, "--lr", "2e-3"), 2, "--lr is 0.002");
    expect_failure(RUN("train", "--resume", run, "--train-iters", "1"), 2, "--train-iters is 1, the run in");
    expect_failure(RUN("train", "--resume", run, "--part", "model"), 2, "--part is \"model\"");
    expect_failure(RUN("train", "--resume", run, "--mtp-new"), 2, "--mtp-new is true");
    expect_failure(RUN("train", "--resume", run, "--data", "other.txt"), 2, "--data is \"other.txt\"");
    expect_failure(RUN("train", "--resume", run, "--convention", "concat=hidden-embedding"), 2, "--convention is");
    expect_failure(RUN("train", "--resume", run, "-o", run_file("other")), 2, "-o and --resume do not go together");
    expect_failure(RUN("train", V3, "--resume", run), 1, "is not the model with which the run in");
    expect_failure(RUN("train", "--resume", run_file("nowhere")), 1, "there is no data.safetensors");
    expect_failure(RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "2", "-o", run), 1,
                   "it exists and is not an empty folder");
    assert_int_equal(rename(run_file("run/state.safetensors"), run_file("kept")), 0);
    expect_failure(RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "2", "-o", run), 1,
                   "a run was ended there before its first state; remove the folder");
    expect_failure(RUN("train", "--resume", run), 1,
                   "there is no state.safetensors, so there is no run to continue: it was ended before its first "
                   "state");
    assert_int_equal(rename(run_file("kept"), run_file("run/state.safetensors")), 0);
    /* damage: at the end, in the middle, and a file that is too short */
    size_t size;
    char *was = bytes_of(run_file("run/state.safetensors"), &size);
    for (int place = 0; place < 4; place++) {
        /* behind the header */
        flip(run_file("run/state.safetensors"), place ? 65536 + ((long)size - 65536) * place / 4 : -1);
        expect_failure(RUN("train", "--resume", run), 1, "state.safetensors: it is damaged");
        write_file(run, "state.safetensors", was, size);
    }
    write_file(run, "state.safetensors", was, size / 2);
    expect_failure(RUN("train", "--resume", run), 1, "state.safetensors");
    write_file(run, "state.safetensors", was, size);
    free(was);
    flip(run_file("run/data.safetensors"), -20);
    expect_failure(RUN("train", "--resume", run), 1, "data.safetensors: it is damaged");
    flip(run_file("run/data.safetensors"), -20);
    s = RUN("train", "--resume", run, "--lr", "1e-3");
    expect_code(&s, 0);
    forget(&s);
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

/* Every tensor of the model that is not trained must be in the result, with the same bytes. Returns how many are. */
static size_t unchanged(const char *model, const char *result, int layers)
{
    vb_tensors *a, *b;
    vb_tensor x, y;
    size_t count = 0;
    vb_error err;
    assert_int_equal(vb_tensors_open(&a, model, NULL, &err), 0);
    assert_int_equal(vb_tensors_open(&b, result, NULL, &err), 0);
    for (size_t i = 0; vb_tensors_at(a, i, &x); i++) {
        int layer = -1;
        if (sscanf(x.name, "model.layers.%d.", &layer) == 1 && layer >= layers)
            continue;
        if (!vb_tensors_find(b, x.name, &y) || strcmp(x.dtype, y.dtype) || x.bytes != y.bytes ||
            memcmp(x.data, y.data, x.bytes))
            fail_msg("%s changed", x.name);
        count++;
    }
    vb_tensors_close(a);
    vb_tensors_close(b);
    return count;
}

static int is_link(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return S_ISLNK(st.st_mode);
}

TEST(the_result_has_the_frozen_tensors_and_the_trained_ones)
{
    static const struct {
        const char *model, *more[2], *file;
        int layers, modules, links;
    } cases[] = {{MTP3, {NULL}, "model-00001-of-000003.safetensors", 3, 3, 1},
                 {MTP3, {"--copy-target"}, "model-00001-of-000003.safetensors", 3, 3, 0},
                 {V3, {NULL}, "model.safetensors", 3, 1, 0},
                 {TINY "youtu", {"--mtp-num-layers", "2"}, "model-target.safetensors", 3, 2, 1},
                 {TINY "gigachat", {"--type", "f32"}, "model.safetensors", 3, 1, 0}};
    write_data("data.jsonl", 12, 7);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *run = run_file("run");
        const char *arguments[] = {verbatim, "train", cases[i].model, "--data", run_file("data.jsonl"), "--train-iters",
                                   "2", SMALL, "-o", run, cases[i].more[0], cases[i].more[1], NULL};
        struct said s = run_to(PIPE, arguments);
        expect_code(&s, 0);
        forget(&s);
        char file[300];
        snprintf(file, sizeof file, "run/model/%s", cases[i].file);
        assert_int_equal(is_link(run_file(file)), cases[i].links);
        assert_true(unchanged(cases[i].model, run_file("run/model"), cases[i].layers) > 10);
        json_t *facts = JSON("inspect", run_file("run/model"));
        if (integer(facts, "mtp_modules") != cases[i].modules &&
            json_array_size(json_object_get(facts, "mtp")) != (size_t)cases[i].modules)
            fail_msg("%s: %s", cases[i].model, json_dumps(facts, 0));
        json_decref(facts);
        remove_tree(run);
    }
}

/* Files between two file systems are copied in another way. */
TEST(the_model_may_be_on_another_file_system_than_the_run)
{
    static const char *const files[] = {"config.json", "model-00001-of-000003.safetensors"};
    char path[300];
    write_data("data.jsonl", 12, 7);
    setenv("LD_PRELOAD", fail_io, 1);
    setenv("FAIL_COPY", "1", 1);
    struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "0", SMALL, "--copy-target",
                        "-o", run_file("run"));
    unsetenv("FAIL_COPY");
    unsetenv("LD_PRELOAD");
    expect_code(&s, 0);
    forget(&s);
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(path, sizeof path, MTP3 "/%s", files[i]);
        char copy[300];
        snprintf(copy, sizeof copy, "run/model/%s", files[i]);
        expect_same_file(path, run_file(copy));
    }
}

/* Of a checkpoint in FP8: everything else is BF16 then, and config.json has no quantization_config. */
TEST(modules_that_are_not_trained_do_not_stay_quantized_alone)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", V3, "--part", "model", "--mtp-num-layers", "0", "--data", run_file("data.jsonl"),
                        "--train-iters", "1", SMALL, "-o", run_file("run"));
    expect_code(&s, 0);
    assert_non_null(strstr(s.err, "the MTP modules are left out: they were not trained, and stay quantized\n"));
    forget(&s);
    json_t *facts = JSON("inspect", run_file("run/model"));
    assert_int_equal(integer(facts, "mtp_modules"), 0);
    json_decref(facts);
    s = RUN("generate", run_file("run/model"), "--tokens", "5,6,7", "-n", "2", "--ignore-eos");
    expect_code(&s, 0);
    forget(&s);
}

/* F32 numbers of the state, as F32 or rounded to BF16. */
TEST(the_result_has_the_weights_of_the_newest_state)
{
    static const char *const types[] = {"f32", "bf16"};
    write_data("data.jsonl", 12, 7);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        vb_tensors *state, *result;
        vb_tensor w, t;
        vb_error err;
        size_t count = 0;
        struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "3", SMALL, "-o",
                            run_file("run"), "--type", types[bf16]);
        expect_code(&s, 0);
        forget(&s);
        assert_int_equal(vb_tensors_open(&state, run_file("run/state.safetensors"), NULL, &err), 0);
        assert_int_equal(vb_tensors_open(&result, run_file("run/model"), NULL, &err), 0);
        for (size_t i = 0; vb_tensors_at(state, i, &w); i++) {
            if (strncmp(w.name, "w.", 2))
                continue;
            assert_true(vb_tensors_find(result, w.name + 2, &t));
            int is_f32 = !bf16 || strstr(w.name, "e_score_correction_bias");
            assert_string_equal(t.dtype, is_f32 ? "F32" : "BF16");
            for (size_t k = 0; k < w.bytes / 4; k++) {
                float x, y;
                memcpy(&x, (const char *)w.data + 4 * k, 4);
                assert_int_equal(vb_tensor_f32(&t, k, 1, &y, &err), 0);
                if (is_f32 ? memcmp(&x, &y, 4) != 0 : fabsf(x - y) > fabsf(x) * 0x1p-8f)
                    fail_msg("%s[%zu] is %g, the state has %g", t.name, k, (double)y, (double)x);
            }
            count++;
        }
        assert_true(count > 30);
        vb_tensors_close(state);
        vb_tensors_close(result);
        remove_tree(run_file("run"));
    }
}

/* Megatron's names of the tensors of module 1 of a model with experts, and of its matrices the rows: as its own
 * conversion has them. */
TEST(modules_go_to_megatrons_names_and_back)
{
    static const struct {
        const char *name, *parts[2];
    } theirs[] = {
        {"enorm.weight", {"enorm.weight"}},
        {"eh_proj.weight", {"eh_proj.weight"}},
        {"final_layernorm.weight", {"shared_head.norm.weight"}},
        {"mtp_model_layer.pre_mlp_layernorm.weight", {"post_attention_layernorm.weight"}},
        {"mtp_model_layer.self_attention.linear_q_up_proj.layer_norm_weight", {"self_attn.q_a_layernorm.weight"}},
        {"mtp_model_layer.self_attention.linear_kv_down_proj.weight", {"self_attn.kv_a_proj_with_mqa.weight"}},
        {"mtp_model_layer.self_attention.linear_proj.weight", {"self_attn.o_proj.weight"}},
        {"mtp_model_layer.mlp.router.expert_bias", {"mlp.gate.e_score_correction_bias"}},
        {"mtp_model_layer.mlp.shared_experts.linear_fc1.weight",
         {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"}},
        {"mtp_model_layer.mlp.experts.linear_fc1.weight5",
         {"mlp.experts.5.gate_proj.weight", "mlp.experts.5.up_proj.weight"}},
        {"mtp_model_layer.mlp.experts.linear_fc2.weight5", {"mlp.experts.5.down_proj.weight"}}};
    vb_tensors *a, *b;
    vb_tensor x, y;
    vb_error err;
    char name[256];
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "0", SMALL, "-o",
                        run_file("a"), "--type", "f32", "--save-megatron");
    expect_code(&s, 0);
    forget(&s);
    s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "0", SMALL, "-o", run_file("b"), "--type",
            "f32", "--mtp-new", "--mtp-weights", run_file("a/megatron.safetensors"));
    expect_code(&s, 0);
    forget(&s);
    expect_same_file(run_file("a/model/model-trained-00001.safetensors"),
                     run_file("b/model/model-trained-00001.safetensors"));
    assert_int_equal(vb_tensors_open(&a, run_file("a/model"), NULL, &err), 0);
    assert_int_equal(vb_tensors_open(&b, run_file("a/megatron.safetensors"), NULL, &err), 0);
    for (size_t i = 0; i < COUNT(theirs); i++) {
        size_t done = 0;
        snprintf(name, sizeof name, "mtp.layers.1.%s", theirs[i].name);
        if (!vb_tensors_find(b, name, &y))
            fail_msg("there is no %s", name);
        for (int part = 0; part < 2 && theirs[i].parts[part]; part++) {
            snprintf(name, sizeof name, "model.layers.4.%s", theirs[i].parts[part]);
            assert_true(vb_tensors_find(a, name, &x));
            assert_true(done + x.bytes <= y.bytes && x.shape[x.ndim - 1] == y.shape[y.ndim - 1]);
            if (memcmp(x.data, (const char *)y.data + done, x.bytes))
                fail_msg("%s differs", name);
            done += x.bytes;
        }
        assert_int_equal(done, y.bytes);
    }
    vb_tensors_close(a);
    vb_tensors_close(b);
    expect_failure(RUN("train", TINY "gigachat", "--data", run_file("data.jsonl"), "--train-iters", "0", SMALL, "-o",
                       run_file("c"), "--mtp-weights", run_file("a/megatron.safetensors")),
                   1, "megatron.safetensors: mtp.layers.0.eh_proj.weight is [64,128], wanted [72,144]");
}

int main(int argc, char **argv)
{
    static char path[4096];
    const struct CMUnitTest tests[] = {
        IN_DIR(a_run_that_is_killed_ends_with_the_bits_of_one_that_is_not),
        IN_DIR(a_run_on_a_full_disk_says_so_and_continues_later),
        IN_DIR(a_run_that_is_resumed_on_another_machine_keeps_its_bits),
        IN_DIR(ctrl_c_saves_the_newest_step),
        IN_DIR(what_cannot_be_continued_is_refused_by_name),
        IN_DIR(the_result_has_the_frozen_tensors_and_the_trained_ones),
        IN_DIR(the_model_may_be_on_another_file_system_than_the_run),
        IN_DIR(modules_that_are_not_trained_do_not_stay_quantized_alone),
        IN_DIR(the_result_has_the_weights_of_the_newest_state),
        IN_DIR(modules_go_to_megatrons_names_and_back),
    };
    find_verbatim(argc, argv);
    snprintf(path, sizeof path, "%.*sfail_io.so", (int)(strrchr(argv[0], '/') + 1 - argv[0]), argv[0]);
    fail_io = realpath(path, NULL);
    if (!fail_io) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
