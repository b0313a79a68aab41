/* tests/cli/test_training_steps.c -- `verbatim train`: learning rates, losses, and what it prints. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "tests/support/runs.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- steps ------------------------------------------------------------------------------------------------------- */

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
        struct said s = RUN("train", TINY "gigachat", "--data", run_file("data.jsonl"), "--train-iters", "12", "--lr",
                            "0.01", "--min-lr", "0.001", "--lr-warmup-iters", "3", "--lr-decay-iters", "9",
                            "--lr-decay-style", styles[i], SMALL, "-o", run_file("run"));
        expect_code(&s, 0);
        forget(&s);
        assert_int_equal(column_of(run_file("run"), "lr", lr, 16), 13);
        assert_int_equal(column_of(run_file("run"), "step", step, 16), 13);
        for (int k = 1; k < 13; k++)
            if (step[k] != k || fabs(lr[k] - wanted_lr(styles[i], k)) > 1e-9 * 0.01)
                fail_msg("%s, step %d: %.10g, wanted %.10g", styles[i], k, lr[k], wanted_lr(styles[i], k));
        remove_tree(run_file("run"));
    }
}

/* The loss before the first step is that of `eval`, which computes the same formula from logits. */
TEST(the_first_held_out_loss_is_that_of_eval)
{
    double loss[2], depth[3];
    static const char *const names[] = {"held_out_mtp1", "held_out_mtp2", "held_out_mtp3"};
    write_data("data.jsonl", 4, 7);
    write_text(runs_dir, "held.jsonl", "{\"tokens\": [5,6,7,70,9,33,17,2,11,12,3,44,45,20]}\n");
    struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--eval-data", run_file("held.jsonl"),
                        "--train-iters", "0", SMALL, "-o", run_file("run"));
    expect_code(&s, 0);
    forget(&s);
    json_t *eval = JSON("eval", MTP3, "--tokens", "5,6,7,70,9,33,17,2,11,12,3,44,45,20", "--prefill", "expanded");
    for (size_t k = 0; k < 3; k++) {
        double wanted = json_real_value(json_array_get(json_object_get(eval, "mtp_loss_by_depth"), k));
        assert_int_equal(column_of(run_file("run"), names[k], &depth[k], 1), 1);
        if (fabs(depth[k] - wanted) > 1e-6 * wanted) /* curves.csv has nine digits, and eval's sums are in another
                                                        order */
            fail_msg("depth %zu: %.9g, eval says %.9g", k, depth[k], wanted);
    }
    assert_int_equal(column_of(run_file("run"), "held_out_loss", loss, 1), 1);
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
    } cases[] = {{"megatron", "0.3", {0.1, 0.1, 0.1}}, {"fastmtp", NULL, {1 / 1.96, 0.6 / 1.96, 0.36 / 1.96}},
                 {"fastmtp", "0.5", {4 / 7.0, 2 / 7.0, 1 / 7.0}}, {"sum", NULL, {1, 1, 1}}, {"eagle", NULL, {1, 1, 1}},
                 {"eagle3", NULL, {1, 0.8, 0.64}}, {"hass", NULL, {1, 1, 1}}};
    write_data("data.jsonl", 12, 7);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *arguments[] = {verbatim, "train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "0",
                                   SMALL, "-o", run_file("run"), "--loss", cases[i].name,
                                   cases[i].factor ? "--mtp-loss-scaling-factor" : NULL, cases[i].factor, NULL};
        struct said s = run_to(PIPE, arguments);
        expect_code(&s, 0);
        forget(&s);
        expect_total(run_file("run"), cases[i].weights);
        remove_tree(run_file("run"));
    }
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "0", "-o", run_file("run"), "--loss", "medusa"),
                   2, "--loss: ");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "0", "-o", run_file("run"), "--loss", "eagle",
                       "--soft-targets", "0.5"),
                   2, "--soft-targets does not go together with --loss eagle");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "0", "-o", run_file("run"), "--soft-targets",
                       "2"),
                   2, "--soft-targets is 2, wanted");
}

/* The losses of aligned depths run module 0 alone; a model without modules gets one. */
TEST(new_modules_are_as_many_as_the_loss_runs)
{
    static const struct {
        const char *model, *loss, *depths, *more;
        int modules;
    } cases[] = {{TINY "youtu", "eagle3", "3", "--bos", 1}, {TINY "youtu", "megatron", "2", "--bos", 2},
                 {MTP3, "megatron", "2", "--mtp-new", 2}, {MTP3, "megatron", "2", "--bos", 3}};
    write_data("data.jsonl", 12, 7);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct said s = RUN("train", cases[i].model, "--loss", cases[i].loss, "--mtp-num-layers", cases[i].depths,
                            cases[i].more, "--data", run_file("data.jsonl"), "--train-iters", "0", SMALL, "-o",
                            run_file("run"));
        expect_code(&s, 0);
        forget(&s);
        json_t *config = json_load_file(run_file("run/model/config.json"), 0, NULL);
        assert_int_equal(integer(config, "num_nextn_predict_layers"), cases[i].modules);
        json_decref(config);
        remove_tree(run_file("run"));
    }
}

TEST(soft_targets_mix_the_text_and_the_model)
{
    double loss[3];
    static const char *const shares[] = {"0", "1", "0.25"};
    write_data("data.jsonl", 12, 7);
    for (int i = 0; i < 3; i++) {
        struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "0", SMALL, "-o",
                            run_file("run"), "--soft-targets", shares[i]);
        expect_code(&s, 0);
        forget(&s);
        assert_int_equal(column_of(run_file("run"), "held_out_mtp1", &loss[i], 1), 1);
        remove_tree(run_file("run"));
    }
    assert_true(loss[0] != loss[1]);
    assert_true(fabs(loss[2] - (0.75 * loss[0] + 0.25 * loss[1])) < 1e-6 * loss[2]);
}

TEST(a_run_that_made_drafting_worse_says_so_first)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "3", "--lr", "0.05",
                        "--log-interval", "100", "--eval-interval", "100", "--seq-length", "24", "--batch-tokens", "64",
                        "-o", run_file("run"));
    expect_code(&s, 0);
    char *report = strstr(s.out, "step 3 of 3"); /* the last row; the report begins on the next line */
    assert_non_null(report);
    report = strchr(report, '\n') + 1;
    if (strncmp(report, "WORSE: ", 7))
        fail_msg("the report begins with %.60s", report);
    forget(&s);
    size_t size;
    char *text = bytes_of(run_file("run/result.json"), &size);
    json_t *result = json_loads(text, 0, NULL);
    expect_keys(result, "step:i prompts:i held_out_loss_before:r held_out_loss_after:r worse:b without_drafts:o "
                        "before:o after:o");
    assert_true(json_is_true(json_object_get(result, "worse")));
    assert_true(real(json_object_get(result, "after"), "tokens_per_forward") <
                real(json_object_get(result, "before"), "tokens_per_forward"));
    json_decref(result);
    free(text);
    remove_tree(run_file("run"));
    /* a whole model: its loss counts */
    s = RUN("train", MTP3, "--part", "model", "--data", run_file("data.jsonl"), "--train-iters", "3", "--lr", "0.5",
            SMALL, "-o", run_file("run"));
    expect_code(&s, 0);
    assert_non_null(strstr(s.out, "\nWORSE: the held-out loss is "));
    forget(&s);
}

TEST(json_lines_have_the_losses_of_the_steps)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "2", SMALL, "-o",
                        run_file("run"), "--json");
    json_t *lines = json_lines(s);
    assert_int_equal(json_array_size(lines), 4); /* before the first step, two steps, the result */
    expect_keys(json_array_get(lines, 0), "step:i tokens:i held_out:o");
    expect_keys(json_array_get(lines, 1),
                "step:i tokens:i loss:r main_loss:n mtp_loss_by_depth:a lr:r gradient_norm:r tokens_per_second:r");
    expect_keys(json_array_get(lines, 3), "step:i prompts:i held_out_loss_before:r held_out_loss_after:r worse:b "
                                          "without_drafts:o before:o after:o");
    json_decref(lines);
    remove_tree(run_file("run"));
    s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "1", SMALL, "--eval-prompts", "0", "-o",
            run_file("run"), "--json");
    lines = json_lines(s);
    /* nothing was drafted */
    expect_keys(json_array_get(lines, 2), "step:i prompts:i held_out_loss_before:r held_out_loss_after:r worse:n");
    json_decref(lines);
}

TEST(losses_that_are_not_finite_are_refused_with_the_step_and_the_layer)
{
    write_data("data.jsonl", 12, 7);
    struct said s = RUN("train", MTP3, "--data", run_file("data.jsonl"), "--train-iters", "9", "--lr", "1e30",
                        "--clip-grad", "0", "--lr-decay-style", "constant", SMALL, "-o", run_file("run"));
    expect_code(&s, 1);
    if (!strstr(s.err, "step 2: ") || !strstr(s.err, "MTP layer 3"))
        fail_msg("%s", s.err);
    forget(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(the_learning_rate_follows_its_schedule),
        IN_DIR(the_first_held_out_loss_is_that_of_eval),
        IN_DIR(losses_have_their_published_weights),
        IN_DIR(new_modules_are_as_many_as_the_loss_runs),
        IN_DIR(soft_targets_mix_the_text_and_the_model),
        IN_DIR(a_run_that_made_drafting_worse_says_so_first),
        IN_DIR(json_lines_have_the_losses_of_the_steps),
        IN_DIR(losses_that_are_not_finite_are_refused_with_the_step_and_the_layer),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
