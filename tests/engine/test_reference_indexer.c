/* tests/engine/test_reference_indexer.c -- sparse attention in the reference: logits, drafts and chosen positions are
 * those of NumPy, transformers and the official script of DeepSeek-V3.2-Exp, each with the conventions of that program.
 * Runs in the repository's root. */
#include "reference/layers.h"

#include <math.h>

#include "tests/support/files.h"
#include "tests/support/references.h"
#include "tests/support/tiny.h"

static const char *const checkpoints[] = {TINY_WITH_INDEXER(TINY_NAME) NULL};

#define K_MAX 6 /* drafts in golden/truth */
#define OK(call)                        \
    do {                                \
        vb_error err = {0};             \
        if (call)                       \
            fail_msg("%s", err.message); \
    } while (0)

static struct conventions conventions_of(const char *list)
{
    struct conventions c = {{0}};
    OK(conventions_parse(&c, list, &err));
    return c;
}

/* ---- chosen positions -------------------------------------------------------------------------------------------- */

/* compares each index_set with sets.L of a golden */
struct sets {
    const char *what;
    const struct golden *g;
    int rows, values;
};

static void check_set(void *context, const struct reference_value *v)
{
    struct sets *sets = context;
    char name[32];
    size_t count;
    if (strcmp(v->name, "index_set"))
        return;
    snprintf(name, sizeof name, "sets.%d", v->layer);
    if (!json_object_get(sets->g->header, name))
        return;
    const char *want = golden_data(sets->g, name, &count);
    int width = (int)(count / (size_t)v->rows);
    assert_true(width >= v->cols && count == (size_t)v->rows * (size_t)width);
    for (int i = 0; i < v->rows; i++)
        for (int j = 0; j < v->cols; j++) {
            int64_t place;
            memcpy(&place, want + sizeof place * (size_t)(i * width + j), sizeof place);
            if ((int64_t)v->data[i * v->cols + j] != place)
                fail_msg("%s: position %d that row %d of layer %d attends to is %g, the golden has %d", sets->what, j,
                         i, v->layer, v->data[i * v->cols + j], (int)place);
        }
    sets->values++;
    sets->rows += v->rows;
}

/* the sets of the target and of MTP module 0, which transformers' and the official files do not have */
static void check_sets(const char *name, const char *suffix, const char *list, int layers)
{
    char file[64];
    snprintf(file, sizeof file, "%s%s", name, suffix);
    struct golden g = golden_open(file);
    struct sets sets = {.what = file, .g = &g};
    struct reference *r = open_tiny_reference(name);
    struct reference_options options = {.conventions = conventions_of(list), .hook = check_set, .hook_context = &sets};
    json_t *told = golden_json(name);
    int32_t tokens[256];
    int S = read_tokens(json_object_get(told, "tokens"), tokens);
    OK(reference_modules(r, &options, tokens, S, 1, NULL, &err));
    assert_int_equal(sets.values, layers);
    assert_true(sets.rows > 2 * reference_config(r)->index_topk * layers); /* most rows have more positions than they
                                                                              keep */
    golden_close(&g);
    json_decref(told);
    reference_close(r);
}

static void check(const char *name, const char *suffix, const char *list, double bound, int layers)
{
    check_target(name, suffix, &(struct reference_options){.conventions = conventions_of(list)}, bound);
    check_sets(name, suffix, list, layers);
}

TEST(logits_hidden_rows_and_positions_are_those_of_numpy)
{
    check("v32", "", "", 1e-9, 4);
    check("glm5", "", "", 1e-9, 3);
}

TEST(logits_and_positions_are_those_of_transformers)
{
    check("v32", ".transformers", "rope-angle=f32,indexer-codes=none", 1e-5, 3);
    check("glm5", ".transformers", "rope-angle=f32,indexer-codes=none", 1e-5, 2);
}

TEST(logits_and_positions_are_those_of_both_official_scripts)
{
    check("v32", ".official-exp", "rope-angle=f32,indexer-rope=pairs", 1e-5, 3);
    check("v32", ".official", "rope-angle=f32,latent-cache=fp8", 1e-5, 3);
}

TEST(greedy_tokens_are_those_of_numpy)
{
    for (const char *const *name = checkpoints; *name; name++)
        check_greedy(*name);
}

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

static void check_drafts(const char *name, const char *suffix, const char *list, int drafts_too, double bound)
{
    static const char *const methods[] = {"mtp-vanilla", "mtp-eagle"};
    struct reference *r = open_tiny_reference(name);
    struct reference_options options = {.conventions = conventions_of(list)};
    json_t *told = golden_json(name), *entry;
    char file[64], of[32];
    snprintf(file, sizeof file, "%s%s", name, suffix);
    struct golden g = golden_open(file);
    int32_t tokens[256], drafts[K_MAX];
    int S = read_tokens(json_object_get(told, "tokens"), tokens);
    double *logits = doubles((size_t)K_MAX * r->config.dims.V);
    size_t at;
    json_array_foreach(json_object_get(told, "drafts"), at, entry)
        for (int m = 0; m < 2; m++) {
            int N = (int)json_integer_value(json_object_get(entry, "n"));
            if (!drafts_too && N != S)
                continue;
            int32_t next = (int32_t)json_integer_value(json_object_get(entry, "next"));
            OK(reference_draft(r, &options, tokens, N, next, (enum reference_draft_method)m, K_MAX, drafts, logits,
                               &err));
            if (drafts_too)
                check_tokens(name, drafts, json_object_get(json_object_get(entry, methods[m]), "drafts"));
            snprintf(of, sizeof of, "%s.logits", methods[m]);
            if (N == S)
                check_distance(file, of, &g, logits, bound);
        }
    free(logits);
    golden_close(&g);
    json_decref(told);
    reference_close(r);
}

/* GLM-5's draft steps share positions, but not in transformers. */
TEST(drafts_are_those_of_numpy_and_transformers)
{
    for (const char *const *name = checkpoints; *name; name++) {
        check_drafts(*name, "", "", 1, 1e-9);
        check_drafts(*name, ".transformers", "rope-angle=f32,indexer-codes=none,mtp-set=own", 0, 1e-5);
    }
}

static void draft(struct reference *r, const char *list, const int32_t *tokens, int N, double *logits)
{
    int32_t drafts[K_MAX];
    struct reference_options options = {.conventions = conventions_of(list)};
    OK(reference_draft(r, &options, tokens, N, 5, REFERENCE_MTP_EAGLE, K_MAX, drafts, logits, &err));
}

/* No golden has these: NumPy's drafts are those of the default. */
TEST(draft_conventions_change_drafts_only_beyond_index_topk)
{
    static const char *const lists[] = {"mtp-set=own", "mtp-indexer=none"};
    struct reference *r = open_tiny_reference("glm5");
    size_t V = r->config.dims.V, bytes = (size_t)K_MAX * V * sizeof(double);
    double *plain = doubles((size_t)K_MAX * V), *other = doubles((size_t)K_MAX * V);
    json_t *told = golden_json("glm5");
    int32_t tokens[256];
    read_tokens(json_object_get(told, "tokens"), tokens);
    for (int i = 0; i < 2; i++) {
        draft(r, "", tokens, 2, plain);
        draft(r, lists[i], tokens, 2, other);
        assert_memory_equal(plain, other, bytes); /* rows up to 7, and index_topk is 8 */
        draft(r, "", tokens, 40, plain);
        draft(r, lists[i], tokens, 40, other);
        assert_int_equal(!memcmp(plain, other, V * sizeof *plain), i == 0); /* the first step always chooses on its
                                                                               own */
        assert_memory_not_equal(plain, other, bytes);
    }
    draft(r, "mtp-set=first", tokens, 40, other);
    draft(r, "", tokens, 40, plain);
    assert_memory_equal(plain, other, bytes);
    free(plain);
    free(other);
    json_decref(told);
    reference_close(r);
}

/* ---- conventions and keys ---------------------------------------------------------------------------------------- */

TEST(variants_of_keys_and_conventions_are_those_of_numpy)
{
    json_t *variants = golden_json("indexer-variants"), *v, *value;
    struct golden g = golden_open("indexer-variants");
    const char *label, *convention;
    int checked = 0;
    json_object_foreach(variants, label, v) {
        const char *name = json_string_value(json_object_get(v, "checkpoint"));
        char dir[64], list[64] = "";
        json_object_foreach(json_object_get(v, "conventions"), convention, value)
            snprintf(list, sizeof list, "%s=%s", convention, json_string_value(value));
        assert_true(json_number_value(json_object_get(v, "differs_by")) > 0.1);
        variant_make(dir, name, json_object_get(v, "config"));
        struct reference *r = open_reference(dir);
        json_t *told = golden_json(name);
        int32_t tokens[256];
        int S = read_tokens(json_object_get(told, "tokens"), tokens);
        size_t V = r->config.dims.V, row = (size_t)json_integer_value(json_object_get(v, "row"));
        double *logits = doubles((size_t)S * V);
        OK(reference_forward(r, &(struct reference_options){.conventions = conventions_of(list)}, tokens, S, NULL,
                             logits, &err));
        check_distance("variant", label, &g, logits + row * V, 1e-9);
        checked++;
        free(logits);
        json_decref(told);
        reference_close(r);
        remove_dir(dir);
    }
    assert_true(checked >= 19);
    golden_close(&g);
    json_decref(variants);
}

/* With all positions kept, an indexer changes no bit: these are the same weights as a DeepSeek-V3. */
TEST(while_all_positions_are_kept_the_logits_are_those_without_an_indexer)
{
    json_t *keys = json_pack("{s:[s],s:s,s:n}", "architectures", "DeepseekV3ForCausalLM", "model_type", "deepseek_v3",
                             "index_topk");
    char dir[64];
    variant_make(dir, "v32", keys);
    struct reference *plain = open_reference(dir), *sparse = open_tiny_reference("v32");
    enum { S = 17 };
    size_t V = plain->config.dims.V;
    double *a = doubles(S * V), *b = doubles(S * V);
    int32_t tokens[S];
    for (int i = 0; i < S; i++)
        tokens[i] = 3 + 7 * i;
    OK(reference_forward(plain, NULL, tokens, S, NULL, a, &err));
    OK(reference_forward(sparse, NULL, tokens, S, NULL, b, &err));
    assert_int_equal(sparse->config.index_topk, S - 1);
    assert_memory_equal(a, b, (S - 1) * V * sizeof *a);
    assert_memory_not_equal(a + (S - 1) * V, b + (S - 1) * V, V * sizeof *a);
    free(a);
    free(b);
    reference_close(plain);
    reference_close(sparse);
    remove_dir(dir);
    json_decref(keys);
}

/* ---- the norm of keys -------------------------------------------------------------------------------------------- */

struct norm {
    const struct reference_indexer *w;
    double in[128], far;
};

static void check_norm(void *context, const struct reference_value *v)
{
    struct norm *n = context;
    double weight[128], bias[128], mean = 0, variance = 0;
    if (v->layer == 0 && !strcmp(v->name, "index_wk"))
        memcpy(n->in, v->data, sizeof n->in);
    if (v->layer != 0 || strcmp(v->name, "index_k_norm"))
        return;
    ref_row(&n->w->k_norm, 0, weight);
    ref_row(&n->w->k_norm_bias, 0, bias);
    for (int i = 0; i < 128; i++)
        mean += n->in[i] / 128;
    for (int i = 0; i < 128; i++)
        variance += (n->in[i] - mean) * (n->in[i] - mean) / 128;
    for (int i = 0; i < 128; i++)
        n->far = fmax(n->far, fabs((n->in[i] - mean) / sqrt(variance + 1e-6) * weight[i] + bias[i] - v->data[i]));
}

/* Keys are so large here that no chosen position depends on the eps. */
TEST(the_norm_of_keys_has_eps_1e_6_and_a_bias)
{
    static const int32_t tokens[] = {5, 9};
    struct reference *r = open_tiny_reference("glm5");
    struct norm n = {.w = &r->layers[0].attention.indexer, .far = -1};
    struct reference_options o = {.hook = check_norm, .hook_context = &n};
    OK(reference_forward(r, &o, tokens, 2, NULL, NULL, &err));
    assert_true(n.far >= 0 && n.far < 1e-13);
    reference_close(r);
}

/* ---- forced positions -------------------------------------------------------------------------------------------- */

TEST(forced_positions_replace_the_chosen_ones)
{
    struct reference *r = open_tiny_reference("glm5");
    json_t *told = golden_json("glm5");
    int32_t tokens[256];
    int S = read_tokens(json_object_get(told, "tokens"), tokens), topk = r->config.index_topk,
        layers = r->config.num_hidden_layers;
    size_t V = r->config.dims.V, bytes = (size_t)S * V * sizeof(double);
    double *plain = doubles((size_t)S * V), *other = doubles((size_t)S * V);
    int32_t *sets = reference_sets(r, NULL, tokens, S), *last = sets + ((S - 1) * layers + 1) * topk;
    struct reference_options force = {.sets = sets, .set_tokens = S, .set_layers = layers};
    OK(reference_forward(r, NULL, tokens, S, NULL, plain, &err));
    force.conventions = conventions_of("indexer-ties=highest");
    OK(reference_forward(r, &force, tokens, S, NULL, other, &err));
    assert_memory_equal(plain, other, bytes); /* what would have been chosen does not matter */
    last[topk - 1] = -1; /* the last row of layer 1, and of the layers that share its positions */
    OK(reference_forward(r, &force, tokens, S, NULL, other, &err));
    assert_memory_equal(plain, other, bytes - V * sizeof *plain);
    assert_memory_not_equal(plain, other, bytes);
    free(sets);
    free(plain);
    free(other);
    json_decref(told);
    reference_close(r);
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

TEST(numbers_are_rounded_to_the_nearest_code)
{
    for (int code = 0; code < 0x7e; code++) {
        double low = ref_e4m3((uint8_t)code), high = ref_e4m3((uint8_t)(code + 1)), middle = (low + high) / 2;
        assert_true(ref_to_e4m3(low) == low && ref_to_e4m3(-high) == -high);
        assert_true(ref_to_e4m3(nextafter(middle, 0)) == low && ref_to_e4m3(nextafter(middle, 500)) == high);
        assert_true(ref_to_e4m3(middle) == (code % 2 ? high : low)); /* the even code */
    }
    assert_true(ref_to_e4m3(460) == 448 && ref_to_e4m3(-1e9) == -448 && signbit(ref_to_e4m3(-0.0)));
}

static double scale_of(double largest)
{
    struct reference_run run = {0};
    double x[128] = {[5] = -largest, [77] = largest / 3};
    return ref_round_codes(&run, x, 128);
}

/* fl32(448 fl32(1/448)) is 1, so that a largest number of 448 has scale 1; 1e-4 is the least. */
TEST(scales_are_powers_of_two_from_f32_products)
{
    assert_true(scale_of(448) == 1 && scale_of(224) == 0.5 && scale_of(nextafterf(448, 500)) == 2 &&
                scale_of(225) == 1);
    assert_true(scale_of(0) == 0x1p-22 && scale_of(1e-4) == 0x1p-22 && scale_of(0x1p-22 * 448 * 1.01) == 0x1p-21);
    assert_true(isnan(scale_of(NAN)) && isnan(scale_of(INFINITY)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_hidden_rows_and_positions_are_those_of_numpy),
        cmocka_unit_test(logits_and_positions_are_those_of_transformers),
        cmocka_unit_test(logits_and_positions_are_those_of_both_official_scripts),
        cmocka_unit_test(greedy_tokens_are_those_of_numpy),
        cmocka_unit_test(drafts_are_those_of_numpy_and_transformers),
        cmocka_unit_test(draft_conventions_change_drafts_only_beyond_index_topk),
        cmocka_unit_test(variants_of_keys_and_conventions_are_those_of_numpy),
        cmocka_unit_test(while_all_positions_are_kept_the_logits_are_those_without_an_indexer),
        cmocka_unit_test(the_norm_of_keys_has_eps_1e_6_and_a_bias),
        cmocka_unit_test(forced_positions_replace_the_chosen_ones),
        cmocka_unit_test(numbers_are_rounded_to_the_nearest_code),
        cmocka_unit_test(scales_are_powers_of_two_from_f32_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
