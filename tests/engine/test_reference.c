/* tests/engine/test_reference.c -- the executable specification against NumPy and transformers (golden/truth), the
 * decoding of every code, and what must hold of any causal model. Runs in the repository's root. */
#include "reference/layers.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/files.h"
#include "tests/support/references.h"
#include "tests/support/tiny.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define K_MAX 6 /* drafts in golden/truth */
#define OK(call)                        \
    do {                                \
        vb_error err = {0};             \
        if (call)                       \
            fail_msg("%s", err.message); \
    } while (0)

static const char *const checkpoints[] = {TINY_CHECKPOINTS(TINY_NAME) NULL};

/* -- decoding ----------------------------------------------------------------------------------------------------- */

/* the value of a code by way of C's hexadecimal notation; all_ones_are_special: IEEE's infinities and NaN */
static double spelled(unsigned code, int fraction_bits, int exponent_bits, int bias, int all_ones_are_special)
{
    unsigned fraction = code & ((1u << fraction_bits) - 1), top = (1u << exponent_bits) - 1;
    unsigned exponent = code >> fraction_bits & top, sign = code >> (fraction_bits + exponent_bits);
    char text[64];
    if (exponent == top && all_ones_are_special)
        snprintf(text, sizeof text, "%s%s", sign ? "-" : "", fraction ? "nan" : "inf");
    else
        snprintf(text, sizeof text, "%s0x%d.%03xp%d", sign ? "-" : "", exponent ? 1 : 0,
                 fraction << (12 - fraction_bits), (int)(exponent ? exponent : 1) - bias);
    return strtod(text, NULL);
}

static void check_code(const char *format, unsigned code, double have, double want)
{
    if (isnan(want) ? !isnan(have) : memcmp(&have, &want, sizeof have))
        fail_msg("%s code %#x is %g, should be %g", format, code, have, want);
}

TEST(every_code_of_f16_bf16_and_e4m3_has_its_value)
{
    for (unsigned code = 0; code < 65536; code++) {
        check_code("F16", code, ref_f16((uint16_t)code), spelled(code, 10, 5, 15, 1));
        check_code("BF16", code, ref_bf16((uint16_t)code), spelled(code, 7, 8, 127, 1));
    }
    for (unsigned code = 0; code < 256; code++)
        check_code("E4M3", code, ref_e4m3((uint8_t)code), (code & 127) == 127 ? NAN : spelled(code, 3, 4, 7, 0));
    assert_true(ref_e4m3(0x7e) == 448 && ref_e4m3(0x01) == 1.0 / 512 && signbit(ref_e4m3(0x80)));
}

TEST(fp8_weights_take_the_scale_of_their_block_and_one_rounding)
{
    struct golden g = golden_open("fp8-blocks");
    size_t count;
    struct tensor codes = {.dtype = DTYPE_F8_E4M3, .data = golden_data(&g, "w", &count)};
    struct tensor scale = {.dtype = DTYPE_F32, .data = golden_data(&g, "w_scale_inv", &count)};
    struct matrix w = {.tensor = &codes, .scale = &scale, .rows = 136, .cols = 264, .block_rows = 128,
                       .block_cols = 128};
    double x[264], y[136], row[264];
    float corner[16 * 16];
    memcpy(x, golden_data(&g, "x", &count), sizeof x);
    memcpy(corner, golden_data(&g, "w_corner", &count), sizeof corner);
    for (int i = 0; i < w.rows; i++) {
        ref_row(&w, i, row);
        y[i] = 0;
        for (int j = 0; j < w.cols; j++) {
            y[i] += row[j] * x[j];
            assert_true(row[j] == (float)row[j]);
            if (i < 16 && j < 16 && row[j] != corner[i * 16 + j])
                fail_msg("weight (%d,%d) is %a, the golden has %a", i, j, row[j], (double)corner[i * 16 + j]);
        }
    }
    check_distance("FP8 product", "y", &g, y, 1e-14);
    golden_close(&g);
}

/* -- choosing ----------------------------------------------------------------------------------------------------- */

static void check_choice(const double *x, int n, int k, const char *want)
{
    char chosen[16], have[17] = {0};
    ref_choose(chosen, x, n, k);
    for (int i = 0; i < n; i++)
        have[i] = chosen[i] ? '1' : '0';
    assert_string_equal(have, want);
}

TEST(ties_elect_the_lower_index_and_nan_ranks_lowest)
{
    check_choice((double[]){1, 2, 2, 2, 0}, 5, 2, "01100");
    check_choice((double[]){0.0, -0.0, 0.0}, 3, 1, "100");
    check_choice((double[]){-0.0, 0.0}, 2, 1, "10");
    check_choice((double[]){NAN, -1, NAN, -2}, 4, 2, "0101");
    check_choice((double[]){NAN, -1, NAN, -2}, 4, 3, "1101");
    check_choice((double[]){-INFINITY, -5, -INFINITY}, 3, 2, "110");
}

/* -- the model against NumPy --------------------------------------------------------------------------------------- */

TEST(logits_and_hidden_rows_are_those_of_numpy)
{
    for (const char *const *name = checkpoints; *name; name++)
        check_target(*name, "", NULL, 1e-9);
}

TEST(logits_are_those_of_transformers)
{
    for (const char *const *name = checkpoints; *name; name++)
        check_target(*name, ".transformers", &(struct reference_options){.conventions.value[ROPE_ANGLE] = 1}, 1e-5);
}

TEST(greedy_tokens_are_those_of_numpy)
{
    for (const char *const *name = checkpoints; *name; name++)
        check_greedy(*name);
}

/* the last row of a named value, each time it passes */
struct last_rows {
    const char *name;
    double *rows;
    int cols;
};

static void keep_last_row(void *context, const struct reference_value *v)
{
    struct last_rows *keep = context;
    if (strcmp(v->name, keep->name))
        return;
    assert_int_equal(v->cols, keep->cols);
    memcpy(keep->rows, v->data + (size_t)(v->rows - 1) * v->cols, sizeof(double) * v->cols);
    keep->rows += v->cols;
}

TEST(drafts_are_those_of_numpy_and_transformers)
{
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle"};
    for (const char *const *name = checkpoints; *name; name++) {
        struct reference *r = open_tiny_reference(*name);
        const struct config *c = reference_config(r);
        json_t *told = golden_json(*name), *entry;
        int32_t tokens[256], drafts[K_MAX];
        int S = read_tokens(json_object_get(told, "tokens"), tokens);
        size_t at;
        assert_int_equal(c->num_nextn_predict_layers > 0, json_object_get(told, "drafts") != NULL);
        json_array_foreach(json_object_get(told, "drafts"), at, entry)
            for (int m = 0; m < 2; m++) {
                int N = (int)json_integer_value(json_object_get(entry, "n"));
                int32_t next = (int32_t)json_integer_value(json_object_get(entry, "next"));
                enum reference_draft_method method = (enum reference_draft_method)m;
                char what[64], logits_name[32], hidden_name[32];
                double *logits = doubles((size_t)K_MAX * c->vocab_size);
                double *rows = doubles((size_t)K_MAX * c->hidden_size);
                struct last_rows keep = {"shared_head_norm", rows, c->hidden_size};
                struct reference_options options = {.hook = keep_last_row, .hook_context = &keep};
                OK(reference_draft(r, &options, tokens, N, next, method, K_MAX, drafts, logits, &err));
                snprintf(what, sizeof what, "%s, %s after %d tokens", *name, methods[m], N);
                check_tokens(what, drafts, json_object_get(json_object_get(entry, methods[m]), "drafts"));
                if (N == S) {
                    char file[64];
                    struct golden g = golden_open(*name);
                    snprintf(logits_name, sizeof logits_name, "%s.logits", methods[m]);
                    snprintf(hidden_name, sizeof hidden_name, "%s.hidden", methods[m]);
                    check_distance(what, logits_name, &g, logits, 1e-9);
                    check_distance(what, hidden_name, &g, rows, 1e-9);
                    golden_close(&g);
                    snprintf(file, sizeof file, "%s.transformers", *name);
                    g = golden_open(file);
                    check_distance(file, logits_name, &g, logits, 1e-5);
                    golden_close(&g);
                }
                free(logits);
                free(rows);
            }
        json_decref(told);
        reference_close(r);
    }
}

/* YaRN's corner cases, halves, normalisation. Conventions that are not offered are left out. */
TEST(variants_of_a_config_are_those_of_numpy)
{
    json_t *variants = golden_json("variants"), *v, *convention;
    struct golden g = golden_open("variants");
    const char *label;
    int checked = 0;
    json_object_foreach(variants, label, v) {
        const char *name = json_string_value(json_object_get(v, "checkpoint"));
        struct reference_options options = {0};
        json_t *conventions = json_object_get(v, "conventions");
        convention = json_object_get(conventions, "rope-angle");
        options.conventions.value[ROPE_ANGLE] = convention && !strcmp(json_string_value(convention), "f32");
        if ((int)json_object_size(conventions) != options.conventions.value[ROPE_ANGLE])
            continue;

        char dir[64];
        variant_make(dir, name, json_object_get(v, "config"));
        struct reference *r = open_reference(dir);
        size_t V = (size_t)reference_config(r)->vocab_size;
        json_t *told = golden_json(name);
        int32_t tokens[256];
        int S = read_tokens(json_object_get(told, "tokens"), tokens);
        double *logits = doubles((size_t)S * V);
        OK(reference_forward(r, &options, tokens, S, NULL, logits, &err));
        check_distance("variant", label, &g, logits + (size_t)(S - 1) * V, 1e-9);
        checked++;
        free(logits);
        json_decref(told);
        reference_close(r);
        remove_dir(dir);
    }
    assert_true(checked >= 8);
    golden_close(&g);
    json_decref(variants);
}

/* -- properties --------------------------------------------------------------------------------------------------- */

TEST(appended_tokens_change_no_earlier_row)
{
    for (const char *const *name = checkpoints; *name; name++) {
        struct reference *r = open_tiny_reference(*name);
        size_t V = (size_t)reference_config(r)->vocab_size, D = (size_t)reference_config(r)->hidden_size;
        int32_t tokens[24];
        double *logits = doubles(24 * V), *hidden = doubles(24 * D);
        double *shorter = doubles(24 * V), *first = doubles(24 * D);
        for (int i = 0; i < 24; i++)
            tokens[i] = (i * 37 + 11) % (int)V;
        OK(reference_forward(r, NULL, tokens, 24, hidden, logits, &err));
        for (int S = 1; S < 24; S += 5) {
            OK(reference_forward(r, NULL, tokens, S, first, shorter, &err));
            if (memcmp(shorter, logits, (size_t)S * V * sizeof *logits) ||
                memcmp(first, hidden, (size_t)S * D * sizeof *hidden))
                fail_msg("%s: the rows of %d tokens are others when more tokens follow", *name, S);
        }
        free(logits);
        free(hidden);
        free(shorter);
        free(first);
        reference_close(r);
    }
}

TEST(a_shorter_draft_is_the_beginning_of_a_longer_one)
{
    static const int32_t prompt[] = {5, 9, 77, 30, 12, 101, 8};
    struct reference *r = open_tiny_reference("v3-mtp3");
    for (int m = 0; m < 2; m++) {
        int32_t longest[VB_MAX_DRAFT], drafts[VB_MAX_DRAFT];
        OK(reference_draft(r, NULL, prompt, 7, 42, (enum reference_draft_method)m, VB_MAX_DRAFT, longest, NULL, &err));
        for (int K = 0; K < VB_MAX_DRAFT; K++) {
            OK(reference_draft(r, NULL, prompt, 7, 42, (enum reference_draft_method)m, K, drafts, NULL, &err));
            assert_memory_equal(drafts, longest, sizeof *drafts * (size_t)K);
        }
    }
    reference_close(r);
}

static void perturbed_logits(struct reference *r, uint64_t seed, double *logits)
{
    static const int32_t prompt[] = {5, 9, 77, 30, 12, 101, 8, 64, 33, 2, 90, 17};
    OK(reference_forward(r, &(struct reference_options){.perturb = seed}, prompt, 12, NULL, logits, &err));
}

TEST(a_perturbation_is_small_and_belongs_to_its_seed)
{
    for (const char *const *name = checkpoints; *name; name++) {
        struct reference *r = open_tiny_reference(*name);
        size_t count = 12 * (size_t)reference_config(r)->vocab_size, bytes = count * sizeof(double);
        double *plain = doubles(count), *a = doubles(count), *b = doubles(count), most = 0;
        perturbed_logits(r, 0, plain);
        perturbed_logits(r, 0, a);
        assert_memory_equal(a, plain, bytes);
        for (uint64_t seed = 1; seed <= 20; seed++) {
            perturbed_logits(r, seed, a);
            perturbed_logits(r, seed, b);
            assert_memory_equal(a, b, bytes);
            perturbed_logits(r, seed + 1, b);
            assert_memory_not_equal(a, b, bytes);
            most = fmax(most, distance(a, plain, count));
        }
        if (getenv("VERBOSE"))
            print_message("%s, 20 perturbed runs: at most %.3g\n", *name, most);
        if (!(most > 1e-9 && most < 1e-5))
            fail_msg("%s: perturbed runs are %.3g away", *name, most);
        free(plain);
        free(a);
        free(b);
        reference_close(r);
    }
}

/* -- the hook ----------------------------------------------------------------------------------------------------- */

/* routing seen from outside: experts ascending, scores and weights that fit the formulas, values finite */
struct routing {
    const struct config *c;
    double scores[1024], weights[256], sum;
    int values, experts_seen, layers_seen;
};

static void check_routing(void *context, const struct reference_value *v)
{
    struct routing *seen = context;
    const struct config *c = seen->c;
    seen->values++;
    if (!strcmp(v->name, "router_scores"))
        memcpy(seen->scores, v->data, sizeof(double) * v->cols * v->rows);
    if (!strcmp(v->name, "router_experts")) {
        assert_int_equal(v->cols, c->num_experts_per_tok);
        for (int s = 0; s < v->rows; s++) {
            seen->sum = 0;
            for (int j = 0; j < v->cols; j++) {
                double e = v->data[s * v->cols + j];
                assert_true(e >= 0 && e < c->n_routed_experts && (!j || e > v->data[s * v->cols + j - 1]));
                seen->weights[s * v->cols + j] = seen->scores[s * c->n_routed_experts + (int)e];
                seen->sum += seen->weights[s * v->cols + j];
            }
            for (int j = 0; j < v->cols && c->norm_topk_prob; j++)
                seen->weights[s * v->cols + j] /= seen->sum;
        }
        seen->experts_seen++;
    }
    if (!strcmp(v->name, "router_weights"))
        for (int i = 0; i < v->rows * v->cols; i++)
            assert_float_equal(v->data[i], seen->weights[i] * c->routed_scaling_factor, 1e-6);
    if (!strcmp(v->name, "post_attention_layernorm"))
        seen->layers_seen++;
    for (size_t i = 0; i < (size_t)v->rows * v->cols && strcmp(v->name, "scores"); i++)
        assert_true(isfinite(v->data[i]));
}

TEST(the_hook_sees_every_layer_and_a_routing_that_fits_the_formulas)
{
    static const int32_t prompt[] = {5, 9, 77, 30, 12, 101, 8};
    for (const char *const *name = checkpoints; *name; name++) {
        struct reference *r = open_tiny_reference(*name);
        struct routing seen = {.c = reference_config(r)};
        struct reference_options options = {.hook = check_routing, .hook_context = &seen};
        OK(reference_forward(r, &options, prompt, 7, NULL, NULL, &err));
        assert_int_equal(seen.layers_seen, seen.c->num_hidden_layers);
        assert_int_equal(seen.experts_seen, seen.c->num_hidden_layers - seen.c->first_k_dense_replace);
        reference_close(r);
    }
}

/* -- what is wrong ------------------------------------------------------------------------------------------------ */

TEST(wrong_arguments_are_told)
{
    struct reference *r = open_tiny_reference("v3"), *without = open_tiny_reference("v2");
    vb_error err;
    int32_t out[VB_MAX_DRAFT + 1], token = 3, outside = reference_config(r)->vocab_size, negative = -1;
    assert_int_equal(reference_forward(r, NULL, &outside, 1, NULL, NULL, &err), VB_BAD_ARGUMENT);
    assert_string_equal(err.message, "token 0 is 160, the vocabulary has 160");
    assert_int_equal(reference_forward(r, NULL, &negative, 1, NULL, NULL, &err), VB_BAD_ARGUMENT);
    assert_int_equal(reference_forward(r, NULL, &token, 0, NULL, NULL, &err), VB_BAD_ARGUMENT);
    assert_int_equal(reference_generate(r, NULL, &token, 1, -1, out, &err), VB_BAD_ARGUMENT);
    assert_int_equal(reference_generate(r, NULL, &token, 1, 0, out, &err), VB_OK);
    for (int m = 0; m < 2; m++) {
        enum reference_draft_method method = (enum reference_draft_method)m;
        assert_int_equal(reference_draft(r, NULL, &token, 1, outside, method, 1, out, NULL, &err), VB_BAD_ARGUMENT);
        assert_int_equal(reference_draft(r, NULL, &token, 1, 4, method, -1, out, NULL, &err), VB_BAD_ARGUMENT);
        assert_int_equal(reference_draft(r, NULL, &token, 1, 4, method, 16, out, NULL, &err), VB_BAD_ARGUMENT);
        assert_int_equal(reference_draft(r, NULL, &token, 1, 4, method, 15, out, NULL, &err), VB_OK);
        assert_int_equal(reference_draft(without, NULL, &token, 1, 4, method, 1, out, NULL, &err), VB_BAD_ARGUMENT);
        assert_string_equal(err.message, "golden/tiny/v2 has no MTP modules");
    }
    reference_close(r);
    reference_close(without);
}

static void check_refused(json_t *keys, const char *part_of_the_message)
{
    char dir[64];
    struct reference *r;
    vb_error err = {0};
    variant_make(dir, "v3", keys);
    assert_int_equal(reference_open(&r, dir, NULL, &err), VB_BAD_CHECKPOINT);
    assert_null(r);
    if (!strstr(err.message, part_of_the_message))
        fail_msg("the error is '%s', it should say '%s'", err.message, part_of_the_message);
    remove_dir(dir);
    json_decref(keys);
}

TEST(a_checkpoint_that_is_not_its_config_is_refused)
{
    check_refused(json_pack("{si}", "num_hidden_layers", 5), ": model.layers.4.input_layernorm.weight is missing");
    check_refused(json_pack("{si}", "vocab_size", 161), "embed_tokens.weight is [160,64], config.json says [161,64]");
    check_refused(json_pack("{sn}", "quantization_config"), "is F8_E4M3");
}

/* golden/tiny/v3 with a NaN in row 100 of an embedding or a head [160,64], the target's copy or the MTP module's */
static struct reference *open_with_nan(char dir[64], const char *tensor)
{
    static const uint8_t nan_bf16[2] = {0xc0, 0x7f};
    struct golden file = golden_read("golden/tiny/v3/model.safetensors");
    char path[128];
    size_t count;
    uint8_t *embed = golden_data(&file, tensor, &count);
    memcpy(embed + 100 * count / 160 * 2, nan_bf16, 2);
    variant_make(dir, "v3", NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(unlink(path), 0);
    write_file(dir, "model.safetensors", file.bytes, file.size);
    golden_close(&file);
    return open_reference(dir);
}

TEST(a_logit_that_is_not_finite_chooses_no_token)
{
    static const int32_t prompt[] = {5, 9, 100, 30};
    char dir[64];
    int32_t out[2];
    vb_error err;
    struct reference *r = open_with_nan(dir, "model.embed_tokens.weight");
    assert_int_equal(reference_generate(r, NULL, prompt, 4, 2, out, &err), VB_NOT_FINITE);
    assert_string_equal(err.message, "the logits that choose token 4 have a value that is not finite");
    assert_int_equal(reference_generate(r, NULL, prompt, 2, 2, out, &err), VB_OK);
    reference_close(r);
    remove_dir(dir);

    r = open_with_nan(dir, "model.layers.3.embed_tokens.weight"); /* the module's own copy: the target never reads it */
    assert_int_equal(reference_generate(r, NULL, prompt, 4, 2, out, &err), VB_OK);
    assert_int_equal(reference_draft(r, NULL, prompt, 2, 100, REFERENCE_MTP_VANILLA, 2, out, NULL, &err),
                     VB_NOT_FINITE);
    assert_string_equal(err.message, "the logits of draft 1 have a value that is not finite");
    assert_int_equal(reference_draft(r, NULL, prompt, 2, 100, REFERENCE_MTP_EAGLE, 2, out, NULL, &err), VB_NOT_FINITE);
    assert_int_equal(reference_draft(r, NULL, prompt, 2, 30, REFERENCE_MTP_EAGLE, 2, out, NULL, &err), VB_OK);
    reference_close(r);
    remove_dir(dir);

    r = open_with_nan(dir, "model.layers.3.shared_head.head.weight");
    assert_int_equal(reference_generate(r, NULL, prompt, 4, 2, out, &err), VB_OK);
    assert_int_equal(reference_draft(r, NULL, prompt, 2, 30, REFERENCE_MTP_EAGLE, 2, out, NULL, &err), VB_NOT_FINITE);
    reference_close(r);
    remove_dir(dir);
}

TEST(every_refused_allocation_is_an_error_and_leaks_nothing)
{
    static const int32_t prompt[] = {5, 9, 77};
    int done = 0;
    for (long i = 0; !done; i++) {
        struct counted counted = {.fail = i};
        vb_allocator allocator = {counted_alloc, counted_free, &counted};
        struct reference *r;
        vb_error err = {0};
        int32_t out[2];
        int rc = reference_open(&r, "golden/tiny/v3-mtp3", &allocator, &err);
        if (!rc) {
            rc = reference_forward(r, NULL, prompt, 3, NULL, NULL, &err);
            rc = rc ? rc : reference_draft(r, NULL, prompt, 3, 4, REFERENCE_MTP_EAGLE, 2, out, NULL, &err);
            rc = rc ? rc : reference_generate(r, NULL, prompt, 3, 2, out, &err);
            reference_close(r);
        }
        done = counted.requests <= i;
        if (rc != (done ? VB_OK : VB_NO_MEMORY))
            fail_msg("allocation %ld refused: %d, %s", i, rc, err.message);
        assert_int_equal(counted.alive, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_of_f16_bf16_and_e4m3_has_its_value),
        cmocka_unit_test(fp8_weights_take_the_scale_of_their_block_and_one_rounding),
        cmocka_unit_test(ties_elect_the_lower_index_and_nan_ranks_lowest),
        cmocka_unit_test(logits_and_hidden_rows_are_those_of_numpy),
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(greedy_tokens_are_those_of_numpy),
        cmocka_unit_test(drafts_are_those_of_numpy_and_transformers),
        cmocka_unit_test(variants_of_a_config_are_those_of_numpy),
        cmocka_unit_test(appended_tokens_change_no_earlier_row),
        cmocka_unit_test(a_shorter_draft_is_the_beginning_of_a_longer_one),
        cmocka_unit_test(a_perturbation_is_small_and_belongs_to_its_seed),
        cmocka_unit_test(the_hook_sees_every_layer_and_a_routing_that_fits_the_formulas),
        cmocka_unit_test(wrong_arguments_are_told),
        cmocka_unit_test(a_checkpoint_that_is_not_its_config_is_refused),
        cmocka_unit_test(a_logit_that_is_not_finite_chooses_no_token),
        cmocka_unit_test(every_refused_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
