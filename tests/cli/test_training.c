/* tests/cli/test_training.c -- `verbatim train`: runs that are killed end with the same bits, the result opens as a model, texts
 * become the sequences that the header promises, and what is wrong is refused. Runs the program itself (argv[1], or ../verbatim
 * beside this one) in the repository's root. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <math.h>

#include "tests/support/cli.h"
#include "tools/training/order.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MTP3 TINY "v3-mtp3"
#define TALE "golden/tale"

static char dir[64];
static char *fail_io; /* the library that is preloaded */

static int begin(void **unused)
{
    (void)unused;
    make_dir(dir);
    return 0;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *place)
{
    (void)st, (void)kind, (void)place;
    return remove(path);
}

static void remove_tree(const char *path) { nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

static int end(void **unused)
{
    (void)unused;
    remove_tree(dir);
    return 0;
}

static const char *in(const char *name)
{
    static char path[8][400];
    static int i;
    snprintf(path[i = (i + 1) % 8], sizeof *path, "%s/%s", dir, name);
    return path[i];
}

/* Texts of random tokens of a tiny vocabulary, as JSON Lines. */
static void write_data(const char *name, int documents, uint32_t seed)
{
    char text[65536] = "";
    for (int i = 0; i < documents; i++) {
        int count = 16 + (int)((seed = seed * 1664525u + 1013904223u) >> 27);
        strcat(text, "{\"tokens\": [");
        for (int k = 0; k < count; k++) {
            seed = seed * 1664525u + 1013904223u;
            snprintf(text + strlen(text), 8, "%s%u", k ? "," : "", 3 + (seed >> 26));
        }
        strcat(text, "]}\n");
    }
    write_text(dir, name, text);
}

#define SMALL "--seq-length", "24", "--batch-tokens", "64", "--log-interval", "1", "--eval-prompts", "1"

static void expect_same_file(const char *a, const char *b)
{
    size_t n, m;
    char *x = bytes_of(a, &n), *y = bytes_of(b, &m);
    if (n != m || memcmp(x, y, n))
        fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

/* Two run folders must have the same state, curves and weights. */
static void expect_same_run(const char *a, const char *b, int same_options)
{
    static const char *const files[] = {"curves.csv", "curves.svg", "data.safetensors", "model/model-trained-00001.safetensors",
                                        "model/model.safetensors.index.json", "state.safetensors"};
    for (size_t i = 0; i < COUNT(files) - (size_t)!same_options; i++) {
        char x[400], y[400];
        snprintf(x, sizeof x, "%s/%s", a, files[i]);
        snprintf(y, sizeof y, "%s/%s", b, files[i]);
        expect_same_file(x, y);
    }
}

/* ---- interruption ------------------------------------------------------------------------------------------------------ */

/* Call number `at` of the command's calls on files of the folder run fails in this way (tests/support/fail_io.c). */
static void let_fail(const char *how, long at)
{
    char number[24];
    snprintf(number, sizeof number, "%ld", at);
    setenv("LD_PRELOAD", fail_io, 1);
    setenv("FAIL_UNDER", in("run"), 1);
    setenv("FAIL_LOG", in("log"), 1);
    setenv("FAIL_HOW", how, 1);
    setenv("FAIL_AT", number, 1);
}

/* Runs the command, which is killed at this call. Returns 1 if it was killed, 0 if it ended before, with exit code 0. */
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
    verbatim, "train", MTP3, "--data", data, "--train-iters", "4", "--save-interval", "1", "--eval-interval", "4", SMALL, "--log-interval", "3", "-o", folder, NULL

/* At many calls, from the first to the last; twice, because what is resumed is killed too. */
TEST(a_run_that_is_killed_ends_with_the_bits_of_one_that_is_not)
{
    char data[80], a[80], b[80];
    snprintf(data, sizeof data, "%s/data.jsonl", dir);
    snprintf(a, sizeof a, "%s/whole", dir);
    snprintf(b, sizeof b, "%s/run", dir);
    const char *whole[] = {RUN_OF(data, a)}, *run[] = {RUN_OF(data, b)}, *resume[] = {verbatim, "train", "--resume", b, NULL};
    int kills = 0, nothing = 0, in_the_middle = 0;
    write_data("data.jsonl", 12, 7);
    struct said s = run_to(PIPE, whole);
    expect_code(&s, 0);
    forget(&s);
    for (long at = 1; killed(run, at); at = at * 3 / 2 + 1, kills++) {
        if (access(in("run/state.safetensors"), F_OK)) {
            expect_failure(run_to(PIPE, resume), 1, "so there is no run to continue");
            nothing++;
        } else {
            in_the_middle += killed(resume, at + 1);
            s = run_to(PIPE, resume);
            expect_code(&s, 0);
            forget(&s);
            expect_same_run(in("whole"), in("run"), 1);
        }
        remove_tree(in("run"));
    }
    assert_true(nothing > 0 && kills - nothing >= 4 && in_the_middle > 0);
    expect_same_run(in("whole"), in("run"), 1);
}

TEST(a_run_on_a_full_disk_says_so_and_continues_later)
{
    char data[80], a[80], b[80];
    int failures = 0;
    snprintf(data, sizeof data, "%s/data.jsonl", dir);
    snprintf(a, sizeof a, "%s/whole", dir);
    snprintf(b, sizeof b, "%s/run", dir);
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
        if (failed && !access(in("run/state.safetensors"), F_OK)) {
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
        struct said s = RUN("train", cases[i].model, "--part", cases[i].part, "--data", in("data.jsonl"), "--train-iters", "4", SMALL, "-o", in("whole"),
                            "--threads", "3");
        expect_code(&s, 0);
        forget(&s);
        s = RUN("train", cases[i].model, "--part", cases[i].part, "--data", in("data.jsonl"), "--train-iters", "2", "--lr-decay-iters", "4", SMALL, "-o",
                in("run"), "--threads", "1", "--isa", "scalar", "--micro-tokens", "30", "--eval-interval", "7");
        expect_code(&s, 0);
        forget(&s);
        s = RUN("train", "--resume", in("run"), "--train-iters", "4", "--threads", "2", "--micro-tokens", "1000");
        expect_code(&s, 0);
        forget(&s);
        snprintf(a, sizeof a, "%s/whole/%s", dir, cases[i].file);
        snprintf(b, sizeof b, "%s/run/%s", dir, cases[i].file);
        expect_same_file(a, b);
        remove_tree(in("whole"));
        remove_tree(in("run"));
    }
}

TEST(ctrl_c_saves_the_newest_step)
{
    int out[2], err[2], status;
    struct said s = {.command = "train", .out = calloc(1, 1), .err = calloc(1, 1)};
    write_data("data.jsonl", 12, 7);
    const char *arguments[] = {verbatim, "train", MTP3, "--data", in("data.jsonl"), "--train-iters", "100000", SMALL, "-o", in("run"), NULL};
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
    assert_true(said && sscanf(said, "stopped after step %lld; verbatim train --resume ", &stopped) == 1 && stopped >= 3);
    forget(&s);
    char steps[24];
    snprintf(steps, sizeof steps, "%lld", stopped);
    s = RUN("train", "--resume", in("run"), "--train-iters", steps); /* it is there already */
    expect_code(&s, 0);
    assert_null(strstr(s.out, "lr"));
    forget(&s);
}

/* ---- what is refused on resumption ------------------------------------------------------------------------------------------ */

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
    snprintf(run, sizeof run, "%s/run", dir);
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "2", SMALL, "-o", run, "--lr", "1e-3");
    expect_code(&s, 0);
    forget(&s);
    expect_failure(RUN("train", "--resume", run, "--lr", "2e-3"), 2, "--lr is 0.002");
    expect_failure(RUN("train", "--resume", run, "--part", "model"), 2, "--part is \"model\"");
    expect_failure(RUN("train", "--resume", run, "--mtp-new"), 2, "--mtp-new is true");
    expect_failure(RUN("train", "--resume", run, "--data", "other.txt"), 2, "--data is \"other.txt\"");
    expect_failure(RUN("train", "--resume", run, "--convention", "concat=hidden-embedding"), 2, "--convention is");
    expect_failure(RUN("train", "--resume", run, "-o", in("other")), 2, "-o and --resume do not go together");
    expect_failure(RUN("train", V3, "--resume", run), 1, "is not the model with which the run in");
    expect_failure(RUN("train", "--resume", in("nowhere")), 1, "there is no data.safetensors");
    expect_failure(RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "2", "-o", run), 1, "it exists and is not an empty folder");
    /* damage: at the end, in the middle, and a file that is too short */
    size_t size;
    char *was = bytes_of(in("run/state.safetensors"), &size);
    for (int place = 0; place < 4; place++) {
        flip(in("run/state.safetensors"), place ? 65536 + ((long)size - 65536) * place / 4 : -1); /* behind the header */
        expect_failure(RUN("train", "--resume", run), 1, "state.safetensors: it is damaged");
        write_file(run, "state.safetensors", was, size);
    }
    write_file(run, "state.safetensors", was, size / 2);
    expect_failure(RUN("train", "--resume", run), 1, "state.safetensors");
    write_file(run, "state.safetensors", was, size);
    free(was);
    flip(in("run/data.safetensors"), -20);
    expect_failure(RUN("train", "--resume", run), 1, "data.safetensors: it is damaged");
    flip(in("run/data.safetensors"), -20);
    s = RUN("train", "--resume", run, "--lr", "1e-3");
    expect_code(&s, 0);
    forget(&s);
}

/* ---- the result ------------------------------------------------------------------------------------------------------------- */

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
        if (!vb_tensors_find(b, x.name, &y) || strcmp(x.dtype, y.dtype) || x.bytes != y.bytes || memcmp(x.data, y.data, x.bytes))
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
    } cases[] = {{MTP3, {NULL}, "model-00001-of-000003.safetensors", 3, 3, 1}, {MTP3, {"--copy-target"}, "model-00001-of-000003.safetensors", 3, 3, 0},
                 {V3, {NULL}, "model.safetensors", 3, 1, 0}, {TINY "youtu", {"--mtp-num-layers", "2"}, "model-target.safetensors", 3, 2, 1},
                 {TINY "gigachat", {"--type", "f32"}, "model.safetensors", 3, 1, 0}};
    write_data("data.jsonl", 12, 7);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *run = in("run");
        const char *arguments[] = {verbatim, "train", cases[i].model, "--data", in("data.jsonl"), "--train-iters", "2", SMALL, "-o", run, cases[i].more[0],
                                   cases[i].more[1], NULL};
        struct said s = run_to(PIPE, arguments);
        expect_code(&s, 0);
        forget(&s);
        char file[300];
        snprintf(file, sizeof file, "run/model/%s", cases[i].file);
        assert_int_equal(is_link(in(file)), cases[i].links);
        assert_true(unchanged(cases[i].model, in("run/model"), cases[i].layers) > 10);
        json_t *facts = JSON("inspect", in("run/model"));
        if (integer(facts, "mtp_modules") != cases[i].modules && json_array_size(json_object_get(facts, "mtp")) != (size_t)cases[i].modules)
            fail_msg("%s: %s", cases[i].model, json_dumps(facts, 0));
        json_decref(facts);
        remove_tree(run);
    }
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
        struct said s = RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "3", SMALL, "-o", in("run"), "--type", types[bf16]);
        expect_code(&s, 0);
        forget(&s);
        assert_int_equal(vb_tensors_open(&state, in("run/state.safetensors"), NULL, &err), 0);
        assert_int_equal(vb_tensors_open(&result, in("run/model"), NULL, &err), 0);
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
        remove_tree(in("run"));
    }
}

/* Megatron's names of the tensors of module 1 of a model with experts, and of its matrices the rows: as its own conversion has them. */
TEST(modules_go_to_megatrons_names_and_back)
{
    static const struct {
        const char *name, *parts[2];
    } theirs[] = {
        {"enorm.weight", {"enorm.weight"}}, {"eh_proj.weight", {"eh_proj.weight"}}, {"final_layernorm.weight", {"shared_head.norm.weight"}},
        {"mtp_model_layer.pre_mlp_layernorm.weight", {"post_attention_layernorm.weight"}},
        {"mtp_model_layer.self_attention.linear_q_up_proj.layer_norm_weight", {"self_attn.q_a_layernorm.weight"}},
        {"mtp_model_layer.self_attention.linear_kv_down_proj.weight", {"self_attn.kv_a_proj_with_mqa.weight"}},
        {"mtp_model_layer.self_attention.linear_proj.weight", {"self_attn.o_proj.weight"}},
        {"mtp_model_layer.mlp.router.expert_bias", {"mlp.gate.e_score_correction_bias"}},
        {"mtp_model_layer.mlp.shared_experts.linear_fc1.weight", {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"}},
        {"mtp_model_layer.mlp.experts.linear_fc1.weight5", {"mlp.experts.5.gate_proj.weight", "mlp.experts.5.up_proj.weight"}},
        {"mtp_model_layer.mlp.experts.linear_fc2.weight5", {"mlp.experts.5.down_proj.weight"}}};
    vb_tensors *a, *b;
    vb_tensor x, y;
    vb_error err;
    char name[256];
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "0", SMALL, "-o", in("a"), "--type", "f32", "--save-megatron");
    expect_code(&s, 0);
    forget(&s);
    s = RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "0", SMALL, "-o", in("b"), "--type", "f32", "--mtp-new", "--mtp-weights",
            in("a/megatron.safetensors"));
    expect_code(&s, 0);
    forget(&s);
    expect_same_file(in("a/model/model-trained-00001.safetensors"), in("b/model/model-trained-00001.safetensors"));
    assert_int_equal(vb_tensors_open(&a, in("a/model"), NULL, &err), 0);
    assert_int_equal(vb_tensors_open(&b, in("a/megatron.safetensors"), NULL, &err), 0);
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
    expect_failure(RUN("train", TINY "gigachat", "--data", in("data.jsonl"), "--train-iters", "0", SMALL, "-o", in("c"), "--mtp-weights",
                       in("a/megatron.safetensors")), 1, "megatron.safetensors: mtp.layers.0.eh_proj.weight is [64,128], wanted [72,144]");
}

/* ---- steps -------------------------------------------------------------------------------------------------------------------- */

/* The column of curves.csv, for each row; NAN: empty. Returns how many rows there are. */
static int column_of(const char *run, const char *name, double *values, int most)
{
    char path[400], line[1024];
    int column = 0, rows = 0;
    snprintf(path, sizeof path, "%s/curves.csv", run);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    line[strcspn(line, "\n")] = '\0';
    char *p = line, *field;
    while ((field = strsep(&p, ",")) && strcmp(field, name))
        column++;
    assert_non_null(field);
    for (; rows < most && fgets(line, sizeof line, f); rows++) {
        p = line;
        for (int i = 0; i <= column; i++)
            field = strsep(&p, ",\n");
        values[rows] = *field ? strtod(field, NULL) : NAN;
    }
    fclose(f);
    return rows;
}

/* As the documents say, in the words of the schedule's definition. */
static double wanted_lr(const char *style, int step)
{
    double done = step - 1, max = 0.01, min = 0.001, warm = 3, all = 9;
    if (done <= warm)
        return max * done / warm;
    if (!strcmp(style, "constant"))
        return max;
    if (done > all)
        return min;
    if (!strcmp(style, "inverse-square-root"))
        return fmax(min, max * sqrt(warm / done));
    double x = (done - warm) / (all - warm);
    return min + (max - min) * (!strcmp(style, "linear") ? 1 - x : (1 + cos(3.14159265358979324 * x)) / 2);
}

TEST(the_learning_rate_follows_its_schedule)
{
    static const char *const styles[] = {"constant", "linear", "cosine", "inverse-square-root"};
    write_data("data.jsonl", 6, 7);
    for (size_t i = 0; i < COUNT(styles); i++) {
        double lr[16], step[16];
        struct said s = RUN("train", TINY "gigachat", "--data", in("data.jsonl"), "--train-iters", "12", "--lr", "0.01", "--min-lr", "0.001",
                            "--lr-warmup-iters", "3", "--lr-decay-iters", "9", "--lr-decay-style", styles[i], SMALL, "-o", in("run"));
        expect_code(&s, 0);
        forget(&s);
        assert_int_equal(column_of(in("run"), "lr", lr, 16), 13);
        assert_int_equal(column_of(in("run"), "step", step, 16), 13);
        for (int k = 1; k < 13; k++)
            if (step[k] != k || fabs(lr[k] - wanted_lr(styles[i], k)) > 1e-9 * 0.01)
                fail_msg("%s, step %d: %.10g, wanted %.10g", styles[i], k, lr[k], wanted_lr(styles[i], k));
        remove_tree(in("run"));
    }
}

/* The loss before the first step is that of `eval`, which computes the same formula from logits. */
TEST(the_first_held_out_loss_is_that_of_eval)
{
    double loss[2], depth[3];
    static const char *const names[] = {"held_out_mtp1", "held_out_mtp2", "held_out_mtp3"};
    write_data("data.jsonl", 4, 7);
    write_text(dir, "held.jsonl", "{\"tokens\": [5,6,7,70,9,33,17,2,11,12,3,44,45,20]}\n");
    struct said s = RUN("train", MTP3, "--data", in("data.jsonl"), "--eval-data", in("held.jsonl"), "--train-iters", "0", SMALL, "-o", in("run"));
    expect_code(&s, 0);
    forget(&s);
    json_t *eval = JSON("eval", MTP3, "--tokens", "5,6,7,70,9,33,17,2,11,12,3,44,45,20", "--prefill", "expanded");
    for (size_t k = 0; k < 3; k++) {
        double wanted = json_real_value(json_array_get(json_object_get(eval, "mtp_loss_by_depth"), k));
        assert_int_equal(column_of(in("run"), names[k], &depth[k], 1), 1);
        if (fabs(depth[k] - wanted) > 1e-6 * wanted) /* curves.csv has nine digits, and eval's sums are in another order */
            fail_msg("depth %zu: %.9g, eval says %.9g", k, depth[k], wanted);
    }
    assert_int_equal(column_of(in("run"), "held_out_loss", loss, 1), 1);
    assert_true(fabs(loss[0] - 0.1 * (depth[0] + depth[1] + depth[2]) / 3) < 1e-6 * loss[0]);
    json_decref(eval);
}

/* The total of the first row, from the losses by depth. */
static void expect_total(const char *run, const double weights[3])
{
    static const char *const names[] = {"held_out_mtp1", "held_out_mtp2", "held_out_mtp3"};
    double loss, depth[3], sum = 0;
    for (int k = 0; k < 3; k++) {
        assert_int_equal(column_of(run, names[k], &depth[k], 1), 1);
        sum += weights[k] * depth[k];
    }
    assert_int_equal(column_of(run, "held_out_loss", &loss, 1), 1);
    if (fabs(loss - sum) > 1e-7 * sum) /* nine digits */
        fail_msg("%s: the loss is %.9g, wanted %.9g", run, loss, sum);
}

TEST(losses_have_their_published_weights)
{
    static const struct {
        const char *name, *factor;
        double weights[3];
    } cases[] = {{"megatron", "0.3", {0.1, 0.1, 0.1}}, {"fastmtp", NULL, {1 / 1.96, 0.6 / 1.96, 0.36 / 1.96}}, {"fastmtp", "0.5", {4 / 7.0, 2 / 7.0, 1 / 7.0}},
                 {"sum", NULL, {1, 1, 1}}, {"eagle", NULL, {1, 1, 1}}};
    write_data("data.jsonl", 12, 7);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *arguments[] = {verbatim, "train", MTP3, "--data", in("data.jsonl"), "--train-iters", "0", SMALL, "-o", in("run"), "--loss", cases[i].name,
                                   cases[i].factor ? "--mtp-loss-scaling-factor" : NULL, cases[i].factor, NULL};
        struct said s = run_to(PIPE, arguments);
        expect_code(&s, 0);
        forget(&s);
        expect_total(in("run"), cases[i].weights);
        remove_tree(in("run"));
    }
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "0", "-o", in("run"), "--loss", "hass"), 1, "aligned depths, which are not trained");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "0", "-o", in("run"), "--loss", "medusa"), 2, "--loss: ");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "0", "-o", in("run"), "--loss", "eagle", "--soft-targets", "0.5"), 2,
                   "--soft-targets does not go together with --loss eagle");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "0", "-o", in("run"), "--soft-targets", "2"), 2, "--soft-targets is 2, wanted");
}

TEST(soft_targets_mix_the_text_and_the_model)
{
    double loss[3];
    static const char *const shares[] = {"0", "1", "0.25"};
    write_data("data.jsonl", 12, 7);
    for (int i = 0; i < 3; i++) {
        struct said s = RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "0", SMALL, "-o", in("run"), "--soft-targets", shares[i]);
        expect_code(&s, 0);
        forget(&s);
        assert_int_equal(column_of(in("run"), "held_out_mtp1", &loss[i], 1), 1);
        remove_tree(in("run"));
    }
    assert_true(loss[0] != loss[1]);
    assert_true(fabs(loss[2] - (0.75 * loss[0] + 0.25 * loss[1])) < 1e-6 * loss[2]);
}

TEST(a_run_that_made_drafting_worse_says_so_first)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "3", "--lr", "0.05", "--log-interval", "100", "--eval-interval", "100",
                        "--seq-length", "24", "--batch-tokens", "64", "-o", in("run"));
    expect_code(&s, 0);
    char *report = strstr(s.out, "step 3 of 3"); /* the last row; the report begins on the next line */
    assert_non_null(report);
    report = strchr(report, '\n') + 1;
    if (strncmp(report, "WORSE: ", 7))
        fail_msg("the report begins with %.60s", report);
    forget(&s);
    size_t size;
    char *text = bytes_of(in("run/result.json"), &size);
    json_t *result = json_loads(text, 0, NULL);
    expect_keys(result, "step:i prompts:i held_out_loss_before:r held_out_loss_after:r worse:b without_drafts:o before:o after:o");
    assert_true(json_is_true(json_object_get(result, "worse")));
    assert_true(real(json_object_get(result, "after"), "tokens_per_forward") < real(json_object_get(result, "before"), "tokens_per_forward"));
    json_decref(result);
    free(text);
    remove_tree(in("run"));
    /* a whole model: its loss counts */
    s = RUN("train", MTP3, "--part", "model", "--data", in("data.jsonl"), "--train-iters", "3", "--lr", "0.5", SMALL, "-o", in("run"));
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "\nWORSE: the held-out loss is "));
    forget(&s);
}

TEST(json_lines_have_the_losses_of_the_steps)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "2", SMALL, "-o", in("run"), "--json");
    json_t *lines = json_lines(s);
    assert_int_equal(json_array_size(lines), 4); /* before the first step, two steps, the result */
    expect_keys(json_array_get(lines, 0), "step:i tokens:i held_out:o");
    expect_keys(json_array_get(lines, 1), "step:i tokens:i loss:r main_loss:n mtp_loss_by_depth:a lr:r gradient_norm:r tokens_per_second:r");
    expect_keys(json_array_get(lines, 3), "step:i prompts:i held_out_loss_before:r held_out_loss_after:r worse:b without_drafts:o before:o after:o");
    json_decref(lines);
}

TEST(losses_that_are_not_finite_are_refused_with_the_step_and_the_layer)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", in("data.jsonl"), "--train-iters", "9", "--lr", "1e30", "--clip-grad", "0", "--lr-decay-style", "constant",
                        SMALL, "-o", in("run"));
    expect_code(&s, 1);
    if (!strstr(s.err, "step 2: ") || !strstr(s.err, "MTP layer 3"))
        fail_msg("%s", s.err);
    forget(&s);
}

/* ---- texts -------------------------------------------------------------------------------------------------------------------- */

/* Documents of data.safetensors, as lists of ids in text: "5,6|7,8|". */
static void documents_of(const char *run, char *list, size_t room)
{
    vb_tensors *file;
    vb_tensor ids, ends;
    vb_error err;
    char path[400];
    int64_t at = 0;
    snprintf(path, sizeof path, "%s/data.safetensors", run);
    assert_int_equal(vb_tensors_open(&file, path, NULL, &err), 0);
    assert_true(vb_tensors_find(file, "tokens", &ids) && vb_tensors_find(file, "ends", &ends));
    *list = '\0';
    for (size_t i = 0; i < ends.bytes / 8; i++) {
        int64_t last;
        memcpy(&last, (const char *)ends.data + 8 * i, 8);
        for (; at < last; at++) {
            int32_t id;
            memcpy(&id, (const char *)ids.data + 4 * at, 4);
            snprintf(list + strlen(list), room - strlen(list), "%d ", id);
        }
        strncat(list, "|", room - strlen(list) - 1);
    }
    vb_tensors_close(file);
}

/* What `tokenize` makes of a text, then the end token. */
static void add_wanted(char *list, size_t room, const char *text)
{
    json_t *ids = JSON("tokenize", TALE, text, "--bos");
    for (size_t i = 0; i < json_array_size(ids); i++)
        snprintf(list + strlen(list), room - strlen(list), "%d ", token_at(ids, i));
    snprintf(list + strlen(list), room - strlen(list), "1 |");
    json_decref(ids);
}

TEST(texts_become_documents)
{
    char found[4096], wanted[4096] = "";
    write_text(dir, "a.txt", "\n\nOnce upon a time\nthere was a king.\n\n<|endoftext|>\n\nA fox <|endoftext|> sat.\r\n<|endoftext|>\r\n\n<|endoftext|>\n");
    write_text(dir, "b.jsonl", "{\"text\": \"The end.\", \"source\": 3}\n\n{\"tokens\": [9, 8, 7, 6]}\n{\"messages\": [{\"role\": \"user\", \"content\": \"Hi.\"}]}\n");
    char both[900];
    snprintf(both, sizeof both, "%s,%s", in("a.txt"), in("b.jsonl"));
    struct said s = RUN("train", TALE, "--data", both, "--eval-share", "0", "--train-iters", "0", "-o", in("run"), "--bos");
    expect_code(&s, 0);
    forget(&s);
    add_wanted(wanted, sizeof wanted, "Once upon a time\nthere was a king.");
    add_wanted(wanted, sizeof wanted, "A fox <|endoftext|> sat.");
    add_wanted(wanted, sizeof wanted, "The end.");
    strcat(wanted, "9 8 7 6 |");
    documents_of(in("run"), found, sizeof found);
    if (strncmp(found, wanted, strlen(wanted)))
        fail_msg("found %s, wanted %s", found, wanted);
    int documents = 0;
    for (const char *p = found; *p; p++)
        documents += *p == '|';
    assert_int_equal(documents, 5); /* the fifth is the conversation */
}

TEST(wrong_texts_are_refused_with_their_place)
{
    static const struct {
        const char *name, *text, *said;
    } cases[] = {{"a.jsonl", "{\"tokens\": [5, 6, 7, 8]}\n{\"tokens\": [5, 300]}\n", "a.jsonl: line 2: token 1 is 300, the vocabulary of golden/tiny/v3-mtp3 has 128"},
                 {"a.jsonl", "\n{\"tokens\": 5}\n", "a.jsonl: line 2: tokens is 5, wanted an array"},
                 {"a.jsonl", "{\"tokens\": [5], \"text\": \"x\"}\n", "line 1: wanted one of the keys text, messages and tokens, found 2"},
                 {"a.jsonl", "{\"tokens\": [5]\n", "line 1: column"},
                 {"a.jsonl", "[5]\n", "line 1: wanted one of the keys text, messages and tokens, found 0"},
                 {"a.jsonl", "{\"tokens\": [5, 6.5]}\n", "line 1: token 1 is 6.5, wanted a token id"},
                 {"a.txt", "some text\n", "tokenizer"},
                 {"a.jsonl", "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [5, 6, 7]}\n", "--data has no sequence of 5 tokens or more to train on"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_text(dir, cases[i].name, cases[i].text);
        expect_failure(RUN("train", MTP3, "--data", in(cases[i].name), "--train-iters", "1", "-o", in("run")), 1, cases[i].said);
        remove_tree(in("run"));
    }
    write_data("one.jsonl", 1, 3);
    expect_failure(RUN("train", MTP3, "--data", in("one.jsonl"), "--train-iters", "1", "-o", in("run")), 2, "--data has 1 document, of which none can be held out");
    assert_int_equal(access(in("run"), F_OK), -1);
    expect_failure(RUN("train", MTP3, "--data", in("nothing.txt"), "--train-iters", "1", "-o", in("run")), 1, "nothing.txt: No such file");
    assert_int_equal(access(in("run"), F_OK), -1); /* no folder is left */
    expect_failure(RUN("train", MTP3, "--train-iters", "1", "-o", in("run")), 2, "--data is missing");
    expect_failure(RUN("train", MTP3, "--data", "x", "-o", in("run")), 2, "--train-iters is missing");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1"), 2, "-o is missing");
    expect_failure(RUN("train", "--data", "x", "--train-iters", "1"), 2, "MODEL is missing");
    expect_failure(RUN("train", "golden/gguf/tiny.gguf", "--data", "x", "--train-iters", "1", "-o", in("run")), 1, "is a file: what is trained is a directory");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1", "-o", in("run"), "--lr-decay-style", "WSD"), 2, "--lr-decay-style is WSD, wanted constant, linear");
    expect_failure(RUN("train", TINY "v32", "--data", "x", "--train-iters", "1", "-o", in("run")), 1, "sparse attention");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1", "-o", in("run"), "--seq-length", "3"), 2, "--seq-length is 3; 3 depths want sequences of 5");
}

/* ---- the order of sequences --------------------------------------------------------------------------------------------------- */

TEST(an_epoch_reads_each_piece_once_and_no_two_epochs_are_alike)
{
    static const size_t end[] = {10, 11, 25, 25, 60};
    static const struct order_piece pieces[] = {{0, 7}, {7, 3}, {11, 7}, {18, 7}, {25, 7}, {32, 7}, {39, 7}, {46, 7}, {53, 7}};
    struct order o, other;
    struct order_place place = {0};
    size_t numbers[9], before[9] = {0}, same = 0;
    assert_true(order_open(&o, end, COUNT(end), 7, 3, 42));
    assert_int_equal(o.pieces, COUNT(pieces));
    assert_int_equal(o.left_out, 1);
    assert_memory_equal(o.piece, pieces, sizeof pieces);
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        size_t seen[9] = {0}, order[9], n = 0;
        for (size_t batch = 0; batch < 3; batch++) { /* 21 tokens: three or four pieces */
            size_t sum = 0, count = order_next(&o, &place, 24, numbers);
            for (size_t i = 0; i < count; i++) {
                sum += o.piece[numbers[i]].count;
                seen[numbers[i]]++;
                order[n++] = numbers[i];
            }
            assert_true(sum <= 24 && place.epoch == epoch);
            if (place.next == o.pieces)
                break;
        }
        for (size_t i = 0; i < 9; i++)
            assert_int_equal(seen[i], 1);
        same += epoch && !memcmp(order, before, sizeof order);
        memcpy(before, order, sizeof order);
    }
    assert_true(same == 0);
    /* where a run was is enough to go on; another seed gives another order */
    assert_true(order_open(&other, end, COUNT(end), 7, 3, 42));
    struct order_place again = {19, 0};
    assert_int_equal(order_next(&other, &again, SIZE_MAX, numbers), 9);
    assert_memory_equal(numbers, before, sizeof before);
    order_close(&other);
    assert_true(order_open(&other, end, COUNT(end), 7, 3, 43));
    again = (struct order_place){19, 0};
    order_next(&other, &again, SIZE_MAX, numbers);
    assert_memory_not_equal(numbers, before, sizeof before);
    order_close(&other);
    order_close(&o);
}

/* All 24 orders of four pieces occur, and about equally often: of 2400 epochs 100 each. With p < 1e-9 one of them is outside of 45..165. */
TEST(all_orders_are_equally_likely)
{
    static const size_t end[] = {2, 4, 6, 8};
    int count[256] = {0}, orders = 0;
    struct order o;
    size_t numbers[4];
    assert_true(order_open(&o, end, 4, 2, 2, 1));
    for (uint64_t epoch = 0; epoch < 2400; epoch++) {
        struct order_place place = {epoch, 0};
        assert_int_equal(order_next(&o, &place, SIZE_MAX, numbers), 4);
        count[numbers[0] * 64 + numbers[1] * 16 + numbers[2] * 4 + numbers[3]]++;
    }
    for (int i = 0; i < 256; i++) {
        orders += count[i] > 0;
        assert_true(!count[i] || (count[i] > 45 && count[i] < 165));
    }
    assert_int_equal(orders, 24);
    order_close(&o);
}

TEST(a_share_of_the_documents_is_held_out)
{
    static const struct {
        size_t documents;
        double share;
        size_t wanted;
    } cases[] = {{100, 0.05, 5}, {100, 0.001, 1}, {2, 0.9, 1}, {1, 0.5, 0}, {0, 0.5, 0}};
    unsigned char held[100], again[100];
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t sum = 0, count = order_hold_out(held, cases[i].documents, cases[i].share, 5);
        for (size_t k = 0; k < cases[i].documents; k++)
            sum += held[k];
        assert_int_equal(count, cases[i].wanted);
        assert_int_equal(sum, cases[i].wanted);
    }
    order_hold_out(held, 100, 0.3, 5);
    order_hold_out(again, 100, 0.3, 6);
    assert_memory_not_equal(held, again, 100);
}

int main(int argc, char **argv)
{
    static char path[4096];
#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, begin, end)
    const struct CMUnitTest tests[] = {
        IN_DIR(a_run_that_is_killed_ends_with_the_bits_of_one_that_is_not),
        IN_DIR(a_run_on_a_full_disk_says_so_and_continues_later),
        IN_DIR(a_run_that_is_resumed_on_another_machine_keeps_its_bits),
        IN_DIR(ctrl_c_saves_the_newest_step),
        IN_DIR(what_cannot_be_continued_is_refused_by_name),
        IN_DIR(the_result_has_the_frozen_tensors_and_the_trained_ones),
        IN_DIR(the_result_has_the_weights_of_the_newest_state),
        IN_DIR(modules_go_to_megatrons_names_and_back),
        IN_DIR(the_learning_rate_follows_its_schedule),
        IN_DIR(the_first_held_out_loss_is_that_of_eval),
        IN_DIR(losses_have_their_published_weights),
        IN_DIR(soft_targets_mix_the_text_and_the_model),
        IN_DIR(a_run_that_made_drafting_worse_says_so_first),
        IN_DIR(json_lines_have_the_losses_of_the_steps),
        IN_DIR(losses_that_are_not_finite_are_refused_with_the_step_and_the_layer),
        IN_DIR(texts_become_documents),
        IN_DIR(wrong_texts_are_refused_with_their_place),
        cmocka_unit_test(an_epoch_reads_each_piece_once_and_no_two_epochs_are_alike),
        cmocka_unit_test(all_orders_are_equally_likely),
        cmocka_unit_test(a_share_of_the_documents_is_held_out),
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
