/* tests/engine/test_model.c -- every tensor is bound once or explained, and whatever is missing, misshapen or left over
 * is told by name. On the checkpoints of golden/tiny, on lists made from them, and on the list of DeepSeek-R1's 91,991
 * tensors: the one of golden/published, and where it is the published one itself, in ../shared/assets. Runs in the
 * repository's root. */
#include "engine/model/model.h"
#include "simd/decode.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/support/files.h"
#include "tests/support/lists.h"
#include "tests/support/tiny.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define TINY "golden/tiny/"

static const char *const checkpoints[] = {TINY_CHECKPOINTS(TINY_NAME)};

/* ---- what binds -------------------------------------------------------------------------------------------------- */

static void check_view(const struct vb_model *m, const struct weight_view *w, size_t rows, size_t cols,
                       const char *name)
{
    const struct tensor *t = checkpoint_find(m->checkpoint, name);
    char scale_name[256];
    assert_non_null(t);
    assert_int_equal(t->taken, 1);
    assert_ptr_equal(w->data, t->data); /* mapped, not copied */
    assert_true(w->rows == rows && w->cols == cols && w->stride == cols && w->scale_row == 0 && w->scale_col == 0);
    if (w->type != WEIGHT_F8_E4M3) {
        assert_null(w->scale);
        return;
    }
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    t = checkpoint_find(m->checkpoint, scale_name);
    assert_non_null(t);
    assert_true(w->block_rows == 128 && w->block_cols == 128 && w->scale_stride == (cols + 127) / 128);
    assert_int_equal((uintptr_t)w->scale % sizeof(float), 0);
    assert_memory_equal(w->scale, t->data, t->bytes);
}

TEST(the_tiny_checkpoints_bind_completely)
{
    static const int modules[] = {TINY_CHECKPOINTS(TINY_MODULES)};
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        char dir[64];
        struct vb_model *m;
        vb_error err;
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[i]);
        if (model_open(&m, dir, NULL, &err))
            fail_msg("%s", err.message);
        assert_int_equal(m->num_mtp, modules[i]);
        for (size_t t = 0; t < checkpoint_count(m->checkpoint); t++)
            assert_int_equal(checkpoint_at(m->checkpoint, t)->taken, 1);
        for (int k = 0; k < m->num_mtp; k++) {
            const struct weight_view *embed = &m->mtp[k].embed_tokens, *head = &m->mtp[k].head;
            assert_true((model_mtp_copy(m, k, 0) == MTP_COPY_ABSENT) == (embed->data == m->embed_tokens.data));
            assert_true((model_mtp_copy(m, k, 1) == MTP_COPY_ABSENT) == (head->data == m->lm_head.data));
            assert_true(embed->rows == (size_t)m->config.vocab_size && head->cols == (size_t)m->config.hidden_size);
        }
        check_parameters(m);
        assert_int_equal(model_check(m, NULL, NULL, &err), VB_OK);
        model_close(m);
    }
    model_close(NULL);
}

TEST(views_point_at_the_tensors_of_their_names)
{
    struct vb_model *m;
    vb_error err;
    assert_int_equal(model_open(&m, TINY "v3", NULL, &err), VB_OK);
    const struct mla *a = &m->layers[2].self_attn;
    const struct moe *moe = &m->mtp[0].layer.moe;
    check_view(m, &m->embed_tokens, 160, 64, "model.embed_tokens.weight");
    check_view(m, &m->lm_head, 160, 64, "lm_head.weight");
    check_view(m, &a->q_a_proj, 40, 64, "model.layers.2.self_attn.q_a_proj.weight");
    check_view(m, &a->q_b_proj, 144, 40, "model.layers.2.self_attn.q_b_proj.weight");
    check_view(m, &a->kv_a_proj_with_mqa, 64, 64, "model.layers.2.self_attn.kv_a_proj_with_mqa.weight");
    check_view(m, &a->w_uk, 168, 48, "model.layers.2.self_attn.kv_b_proj.weight");
    assert_true(a->uk_stride == 56 && a->uv_stride == 56 && !a->uk_transposed);
    assert_true(a->w_uv.rows == 168 - 32 && a->w_uv.scale_row == 32 && a->w_uv.scale == a->w_uk.scale);
    assert_ptr_equal(a->w_uv.data, (const char *)a->w_uk.data + 32 * 48); /* FP8 */
    check_view(m, &a->o_proj, 64, 72, "model.layers.2.self_attn.o_proj.weight");
    check_view(m, &m->layers[0].mlp.gate_proj, 192, 64, "model.layers.0.mlp.gate_proj.weight");
    check_view(m, &m->layers[0].mlp.down_proj, 64, 192, "model.layers.0.mlp.down_proj.weight");
    check_view(m, &moe->gate, 12, 64, "model.layers.3.mlp.gate.weight");
    check_view(m, &moe->experts[11].up_proj, 16, 64, "model.layers.3.mlp.experts.11.up_proj.weight");
    check_view(m, &moe->experts[3].down_proj, 64, 16, "model.layers.3.mlp.experts.3.down_proj.weight");
    check_view(m, &moe->shared_experts.gate_proj, 16, 64, "model.layers.3.mlp.shared_experts.gate_proj.weight");
    check_view(m, &m->mtp[0].eh_proj, 64, 128, "model.layers.3.eh_proj.weight");
    check_view(m, &m->mtp[0].embed_tokens, 160, 64, "model.layers.3.embed_tokens.weight");
    check_view(m, &m->mtp[0].head, 160, 64, "model.layers.3.shared_head.head.weight");
    assert_null(a->q_proj.data);
    assert_false(m->layers[0].is_moe);
    assert_true(m->layers[1].is_moe && m->mtp[0].layer.is_moe);
    model_close(m);
}

TEST(vectors_are_widened_to_f32)
{
    struct vb_model *m;
    vb_error err;
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        char dir[64];
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[i]);
        assert_int_equal(model_open(&m, dir, NULL, &err), VB_OK);
        const struct tensor *t = checkpoint_find(m->checkpoint, "model.layers.1.post_attention_layernorm.weight");
        for (int k = 0; k < m->config.hidden_size; k++) {
            uint16_t half;
            float value;
            memcpy(&half, (const char *)t->data + 2 * k, 2);
            if (t->dtype == DTYPE_F32)
                memcpy(&value, (const char *)t->data + 4 * k, 4);
            else
                value = t->dtype == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
            assert_memory_equal(&value, &m->layers[1].post_attention_layernorm[k], sizeof value);
        }
        assert_true((m->layers[1].moe.e_score_correction_bias != NULL) == (m->config.topk_method == TOPK_NOAUX_TC));
        model_close(m);
    }
}

/* ---- what does not bind ------------------------------------------------------------------------------------------ */

TEST(each_missing_tensor_is_told_by_name)
{
    for (size_t k = 0; k < COUNT(checkpoints); k++) {
        struct list l;
        char dir[64];
        snprintf(dir, sizeof dir, TINY "%s", checkpoints[k]);
        list_open(&l, dir);
        for (size_t i = 0; i < l.count; i++) {
            struct tensor whole = l.tensors[i], last = l.tensors[--l.count];
            l.tensors[i] = last;
            int copy = ends_with(whole.name, ".embed_tokens.weight") || ends_with(whole.name, ".head.weight");
            if (copy && strstr(whole.name, "layers."))
                model_close(bind_or_fail(&l)); /* the main model's is used */
            else
                expect_bind(&l, VB_BAD_CHECKPOINT, "the list: %s is missing", whole.name);
            l.tensors[l.count++] = last;
            l.tensors[i] = whole;
        }
        checkpoint_close(l.from);
    }
}

TEST(each_wrong_shape_is_told_with_both_shapes)
{
    struct list l;
    list_open(&l, TINY "v3");
    for (size_t i = 0; i < l.count; i++) {
        struct tensor *t = &l.tensors[i];
        struct vb_model *m;
        vb_error err;
        char wants[256];
        long long rows = t->shape[0], cols = t->shape[1];
        t->shape[0]++;
        if (t->ndim == 1)
            snprintf(wants, sizeof wants, "%s: %s is [%lld], config.json says [%lld]", t->file, t->name, rows + 1,
                     rows);
        else
            snprintf(wants, sizeof wants, "%s: %s is [%lld,%lld], config.json says [%lld,%lld]", t->file, t->name,
                     rows + 1, cols, rows, cols);
        assert_int_equal(list_bind(&l, &m, &err), VB_BAD_CHECKPOINT);
        assert_string_equal(err.message, wants);
        t->shape[0]--;
    }
    struct tensor *t = list_find(&l, "model.layers.1.self_attn.o_proj.weight");
    t->ndim = 3;
    t->shape[2] = 1;
    expect_bind(&l, VB_BAD_CHECKPOINT, "model.safetensors: %s is [64,72,1], config.json says [64,72]", t->name);
    t->ndim = 0;
    expect_bind(&l, VB_BAD_CHECKPOINT, "model.safetensors: %s is [], config.json says [64,72]", t->name);
    checkpoint_close(l.from);
}

TEST(each_wrong_dtype_is_told)
{
    struct list l;
    list_open(&l, TINY "v3");
    for (size_t i = 0; i < l.count; i++) {
        struct tensor *t = &l.tensors[i], whole = *t;
        struct vb_model *m;
        vb_error err;
        t->dtype = DTYPE_OTHER;
        strcpy(t->dtype_name, "I64");
        int rc = list_bind(&l, &m, &err), scale = ends_with(t->name, "_scale_inv");
        assert_int_equal(rc, scale ? VB_BAD_CHECKPOINT : VB_UNSUPPORTED);
        assert_non_null(strstr(err.message, t->name));
        const char *wanted = scale ? "F32 or BF16"
                             : t->ndim == 2 ? "F32, F16, BF16, F8_E4M3 or I8"
                             : "F32, F16 or BF16";
        assert_true(ends_with(err.message, wanted) && strstr(err.message, " is I64, wanted F32"));
        *t = whole;
    }
    struct tensor *norm = list_find(&l, "model.norm.weight");
    norm->dtype = DTYPE_F8_E4M3;
    strcpy(norm->dtype_name, "F8_E4M3");
    expect_bind(&l, VB_UNSUPPORTED, "model.safetensors: model.norm.weight is F8_E4M3, wanted F32, F16 or BF16");
    norm->dtype = DTYPE_BF16;
    l.config.fp8 = 0;
    expect_bind(&l, VB_BAD_CHECKPOINT,
                "model.safetensors: model.layers.0.self_attn.q_a_proj.weight is F8_E4M3, config.json has no "
                "quantization_config for FP8 weights");
    checkpoint_close(l.from);
}

TEST(what_is_left_over_is_told_unless_it_is_explained)
{
    struct list l;
    list_open(&l, TINY "v3");
    struct tensor extra = *list_find(&l, "model.norm.weight");
    extra.name = "model.layers.1.self_attn.q_proj.weight";
    l.tensors[l.count++] = extra;
    expect_bind(&l, VB_BAD_CHECKPOINT,
                "model.safetensors: %s has no place in the model of config.json (tensors left over: 1)", extra.name);
    extra.name = "zzz";
    l.tensors[l.count++] = extra;
    expect_bind(&l, VB_BAD_CHECKPOINT,
                "model.safetensors: model.layers.1.self_attn.q_proj.weight has no place in the model of config.json "
                "(tensors left over: 2)");
    l.count -= 2;

    extra.name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    extra.dtype = DTYPE_OTHER;
    l.tensors[l.count++] = extra;
    struct vb_model *m = bind_or_fail(&l);
    assert_string_equal(checkpoint_find(m->checkpoint, extra.name)->ignored, "computed from config.json");
    model_close(m);
    l.count--;

    l.config.tie_word_embeddings = 1;
    m = bind_or_fail(&l);
    assert_string_equal(checkpoint_find(m->checkpoint, "lm_head.weight")->ignored,
                        "tie_word_embeddings is true: embed_tokens is the head");
    assert_int_equal(m->lm_head.rows, 160);
    assert_int_equal(checkpoint_find(m->checkpoint, "model.embed_tokens.weight")->taken, 1);
    check_parameters(m);
    model_close(m);
    checkpoint_close(l.from);
}

TEST(mtp_layers_may_be_absent_but_not_in_part)
{
    struct list l;
    list_open(&l, TINY "v3-mtp3");
    list_remove_prefix(&l, "model.layers.5.");
    struct vb_model *m = bind_or_fail(&l);
    assert_int_equal(m->num_mtp, 2);
    check_parameters(m);
    model_close(m);
    list_remove_prefix(&l, "model.layers.3.");
    expect_bind(&l, VB_BAD_CHECKPOINT, "the list: model.layers.3.input_layernorm.weight is missing");
    list_remove_prefix(&l, "model.layers.4.");
    m = bind_or_fail(&l);
    assert_int_equal(m->num_mtp, 0);
    assert_int_equal(m->config.num_nextn_predict_layers, 3);
    model_close(m);
    checkpoint_close(l.from);

    list_open(&l, TINY "v3-mtp3");
    l.config.num_nextn_predict_layers = 1;
    m = bind_or_fail(&l);
    assert_int_equal(m->num_mtp, 1);
    assert_string_equal(checkpoint_find(m->checkpoint, "model.layers.4.enorm.weight")->ignored,
                        "an MTP layer beyond num_nextn_predict_layers");
    assert_string_equal(checkpoint_find(m->checkpoint, "model.layers.5.mlp.experts.5.up_proj.weight")->ignored,
                        "an MTP layer beyond num_nextn_predict_layers");
    model_close(m);

    l.config.num_hidden_layers = 2; /* a main layer is no MTP layer: nothing may hide it */
    expect_bind(&l, VB_BAD_CHECKPOINT, "the list: model.layers.2.enorm.weight is missing");
    l.config.num_nextn_predict_layers = 0;
    struct vb_model *none;
    vb_error err;
    assert_int_equal(list_bind(&l, &none, &err), VB_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message,
                           ": model.layers.2.input_layernorm.weight has no place in the model of config.json"));
    checkpoint_close(l.from);
}

TEST(opening_fails_cleanly_at_every_allocation)
{
    static const char *const some[] = {TINY "v3", TINY "v3-mtp3"};
    for (size_t i = 0; i < COUNT(some); i++) {
        long fail = 0;
        for (;; fail++) {
            struct counted counted = {.fail = fail};
            vb_allocator a = {counted_alloc, counted_free, &counted};
            struct vb_model *m;
            vb_error err = {0};
            int rc = model_open(&m, some[i], &a, &err);
            if (!rc)
                model_close(m);
            assert_int_equal(counted.alive, 0);
            if (!rc)
                break;
            assert_int_equal(rc, VB_NO_MEMORY);
            assert_non_null(strstr(err.message, "no memory"));
        }
        assert_true(fail > 40);
    }
}

TEST(a_model_without_weights_or_with_a_bad_config_is_told)
{
    char dir[64], wants[256];
    struct vb_model *m;
    vb_error err;
    make_dir(dir);
    write_text(dir, "config.json", "{\"architectures\":[\"DeepseekV4ForCausalLM\"]}");
    assert_int_equal(model_open(&m, dir, NULL, &err), VB_UNSUPPORTED); /* before any weight is looked for */
    write_text(dir, "config.json", "{\"architectures\":[\"DeepseekV3ForCausalLM\"]}");
    assert_int_equal(model_open(&m, dir, NULL, &err), VB_IO);
    snprintf(wants, sizeof wants, "%s: there is neither model.safetensors nor model.safetensors.index.json", dir);
    assert_string_equal(err.message, wants);
    write_safetensors(dir, "model.safetensors", "{}", "", 0);
    assert_int_equal(model_open(&m, dir, NULL, &err), VB_BAD_CHECKPOINT);
    snprintf(wants, sizeof wants, "%s: model.embed_tokens.weight is missing", dir);
    assert_string_equal(err.message, wants);
    remove_dir(dir);
}

/* ---- DeepSeek-R1 ------------------------------------------------------------------------------------------------- */

#define R1_TENSORS 91991

/* Where a line of the list goes: its tensor, and the memory that names are written to. */
struct rows {
    struct tensor *list;
    size_t count, used, room;
    char *names;
};

static void add_tensor(struct rows *r, const char *name, const char *dtype, const char *shape)
{
    static const char *const types[] = {"F32", "F16", "BF16", "F8_E4M3"};
    struct tensor *t = &r->list[r->count];
    char *end;
    assert_true(++r->count <= R1_TENSORS && r->used + strlen(name) + 1 <= r->room);
    t->name = strcpy(r->names + r->used, name);
    r->used += strlen(name) + 1;
    t->file = "the list";
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", dtype);
    t->dtype = DTYPE_OTHER;
    for (int d = 0; d < 4; d++)
        if (!strcmp(dtype, types[d]))
            t->dtype = (enum dtype)d;
    for (; *shape; shape = end + (*end == 'x'))
        t->shape[t->ndim++] = strtoll(shape, &end, 10);
}

/* layers.{0-2}.x stands for layers.0.x, layers.1.x and layers.2.x */
static void expand(struct rows *r, const char *name, const char *dtype, const char *shape)
{
    int first, last, size = 0;
    const char *open = strchr(name, '{');
    if (!open) {
        add_tensor(r, name, dtype, shape);
        return;
    }
    assert_true(sscanf(open, "{%d-%d}%n", &first, &last, &size) == 2 && size);
    for (; first <= last; first++) {
        char one[128];
        snprintf(one, sizeof one, "%.*s%d%s", (int)(open - name), name, first, open + size);
        expand(r, one, dtype, shape);
    }
}

/* name TAB dtype TAB 12x56, and in the published list TAB shard */
static struct rows read_tsv(char *text)
{
    struct rows r = {calloc(R1_TENSORS, sizeof *r.list), 0, 0, (size_t)R1_TENSORS * 96,
                     malloc((size_t)R1_TENSORS * 96)};
    assert_true(r.list && r.names);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char name[128], dtype[16], shape[32];
        if (line[0] == '#')
            continue;
        assert_int_equal(sscanf(line, "%127s %15s %31s", name, dtype, shape), 3);
        expand(&r, name, dtype, shape);
    }
    return r;
}

/* config.json of golden/published, or the published file */
static void read_r1_config(struct config *config, const char *path)
{
    vb_error err;
    json_error_t why;
    json_t *root = json_load_file(path, 0, &why), *standing = json_object_get(root, "DeepSeek-R1");
    if (!root)
        fail_msg("%s: %s", path, why.text);
    char *json = json_dumps(standing ? standing : root, 0);
    if (config_parse(config, json, strlen(json), NULL, 0, "config.json", &err))
        fail_msg("%s", err.message);
    free(json);
    json_decref(root);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* of this process: the test may share its machine */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The tensors that follow from config.json alone are those of the published list. */
static void check_shapes(struct config *config, const struct checkpoint *listed)
{
    struct checkpoint *made;
    vb_error err;
    if (model_list_shapes(&made, config, NULL, NULL, &err))
        fail_msg("%s", err.message);
    assert_int_equal(checkpoint_count(made), checkpoint_count(listed));
    for (size_t i = 0; i < checkpoint_count(listed); i++) {
        const struct tensor *a = checkpoint_at(made, i), *b = checkpoint_at(listed, i);
        if (strcmp(a->name, b->name) || strcmp(a->dtype_name, b->dtype_name) || a->ndim != b->ndim ||
            memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape))
            fail_msg("%s %s was made, wanted %s %s", a->name, a->dtype_name, b->name, b->dtype_name);
    }
    checkpoint_close(made);
}

static void check_r1(const char *list_path, const char *config_path)
{
    char *text;
    size_t size;
    struct config config;
    struct checkpoint *c;
    struct vb_model *m;
    vb_error err;
    if (vb_read_file(NULL, list_path, &text, &size, &err))
        fail_msg("%s", err.message);
    read_r1_config(&config, config_path);
    struct rows r = read_tsv(text);
    struct tensor *list = r.list;
    size_t count = r.count;
    assert_int_equal(count, R1_TENSORS);

    double start = seconds();
    if (checkpoint_from_list(&c, list, count, NULL, &err))
        fail_msg("%s", err.message);
    double listed = seconds();
    if (model_bind(&m, &config, c, NULL, &err))
        fail_msg("%s", err.message);
    print_message("91,991 names: sorted and hashed in %.0f ms, bound in %.0f ms\n", 1e3 * (listed - start),
                  1e3 * (seconds() - listed));
    for (size_t i = 0; i < count; i++)
        assert_int_equal(checkpoint_at(m->checkpoint, i)->taken, 1);
    check_shapes(&config, m->checkpoint);
    assert_int_equal(m->num_mtp, 1);
    check_parameters(m);

    /* DeepSeek's own figures: 671.0 B in the main model, 11.5 B in the MTP layer (beside its copies of embedding and
     * head; eh_proj is another 0.1 B), 36.7 B activated without embedding */
    int64_t eh_proj = 2 * 7168 * 7168, module = layer_parameters(&config, 61, &(int64_t){0}) + 3 * 7168 + eh_proj;
    print_message("parameters %lld, of them MTP %lld; active %lld\n", (long long)model_parameters(m), (long long)module,
                  (long long)model_active_parameters(m));
    assert_int_equal((model_parameters(m) - module + 50000000) / 100000000, 6710);
    assert_int_equal((module - eh_proj + 50000000) / 100000000, 115);
    assert_true(model_active_parameters(m) > 36000000000 && model_active_parameters(m) < 37000000000);
    model_close(m);
    free(r.list);
    free(r.names);
    vb_free(NULL, text);
}

TEST(every_tensor_of_deepseek_r1_has_its_place)
{
    static const char published[] = "../shared/assets/index/DeepSeek-R1.tensors.tsv";
    check_r1("golden/published/tensors.tsv", "golden/published/configs.json");
    if (vb_file_exists(published))
        check_r1(published, "../shared/assets/configs/deepseek-ai--DeepSeek-R1.hub.config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tiny_checkpoints_bind_completely),
        cmocka_unit_test(views_point_at_the_tensors_of_their_names),
        cmocka_unit_test(vectors_are_widened_to_f32),
        cmocka_unit_test(each_missing_tensor_is_told_by_name),
        cmocka_unit_test(each_wrong_shape_is_told_with_both_shapes),
        cmocka_unit_test(each_wrong_dtype_is_told),
        cmocka_unit_test(what_is_left_over_is_told_unless_it_is_explained),
        cmocka_unit_test(mtp_layers_may_be_absent_but_not_in_part),
        cmocka_unit_test(opening_fails_cleanly_at_every_allocation),
        cmocka_unit_test(a_model_without_weights_or_with_a_bad_config_is_told),
        cmocka_unit_test(every_tensor_of_deepseek_r1_has_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
