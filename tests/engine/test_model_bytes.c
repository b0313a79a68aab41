/* tests/engine/test_model_bytes.c -- what depends on the bytes of a checkpoint and not on its names: `inspect --check`,
 * MTP copies compared with the main tables, and scales at addresses that C cannot read. Runs in the repository's
 * root. */
#include "engine/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/files.h"
#include "tests/support/lists.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define TINY "golden/tiny/"

struct stored_at {
    const char *name;
    size_t begin;
};

static int find_place(void *context, const struct safetensors_entry *e, vb_error *err)
{
    struct stored_at *p = context;
    (void)err;
    if (!strcmp(e->tensor.name, p->name))
        p->begin = e->begin;
    return VB_OK;
}

/* A copy of golden/tiny/v3 with `count` bytes of tensor `name`, from `at` on, replaced; the directory is the
 * caller's. */
static void patched_v3(char dir[64], const char *name, size_t at, const void *bytes, size_t count)
{
    char *config, *weights;
    size_t config_size, size;
    struct stored_at p = {name, 0};
    vb_error err;
    make_dir(dir);
    assert_int_equal(vb_read_file(NULL, TINY "v3/config.json", &config, &config_size, &err), VB_OK);
    assert_int_equal(vb_read_file(NULL, TINY "v3/model.safetensors", &weights, &size, &err), VB_OK);
    assert_int_equal(safetensors_parse(weights, size, size, "f", find_place, &p, NULL, &err), VB_OK);
    assert_true(p.begin > 0);
    memcpy(weights + p.begin + at, bytes, count);
    write_file(dir, "config.json", config, config_size);
    write_file(dir, "model.safetensors", weights, size);
    vb_free(NULL, weights);
    vb_free(NULL, config);
}

static void told(void *context, size_t done, size_t total)
{
    size_t *last = context;
    assert_true(done > last[0] && done <= total);
    last[0] = done;
    last[1] = total;
}

TEST(a_weight_that_is_no_number_is_told_with_its_place)
{
    static const struct {
        const char *name;
        size_t at;
        unsigned char bytes[4];
        size_t count;
        const char *message;
    } cases[] = {
        {"model.layers.1.mlp.experts.7.up_proj.weight", 3 * 64 + 5, {0xff}, 1,
         "model.safetensors: model.layers.1.mlp.experts.7.up_proj.weight [3,5] is not a number"},
        {"model.layers.2.self_attn.kv_b_proj.weight", 0, {0x7f}, 1,
         "model.safetensors: model.layers.2.self_attn.kv_b_proj.weight [0,0] is not a number"},
        {"model.embed_tokens.weight", 2 * (159 * 64 + 63), {0x80, 0x7f}, 2,
         "model.safetensors: model.embed_tokens.weight [159,63] is not finite"},
        {"model.layers.0.self_attn.o_proj.weight_scale_inv", 0, {0, 0, 0xc0, 0xff}, 4,
         "model.safetensors: model.layers.0.self_attn.o_proj.weight_scale_inv [0,0] is not finite"},
        {"model.layers.3.mlp.gate.e_score_correction_bias", 4 * 11, {0, 0, 0x80, 0x7f}, 4,
         "model.safetensors: model.layers.3.mlp.gate.e_score_correction_bias [11] is not finite"},
    };
    char dir[64];
    struct vb_model *m;
    vb_error err;
    for (size_t i = 0; i < COUNT(cases); i++) {
        patched_v3(dir, cases[i].name, cases[i].at, cases[i].bytes, cases[i].count);
        assert_int_equal(model_open(&m, dir, NULL, &err), VB_OK);
        assert_int_equal(model_check(m, NULL, NULL, &err), VB_BAD_CHECKPOINT);
        assert_string_equal(err.message, cases[i].message);
        model_close(m);
        remove_dir(dir);
    }
    size_t last[2] = {0, 0};
    assert_int_equal(model_open(&m, TINY "v3", NULL, &err), VB_OK);
    assert_int_equal(model_check(m, told, last, &err), VB_OK);
    assert_true(last[0] == last[1] && last[0] > 300000); /* the last call says that all is done */
    model_close(m);
}

TEST(mtp_copies_are_compared_and_a_changed_one_counts)
{
    static const unsigned char three[2] = {0x40, 0x40};
    char dir[64];
    struct vb_model *m;
    vb_error err;
    assert_int_equal(model_open(&m, TINY "v3", NULL, &err), VB_OK);
    assert_int_equal(model_mtp_copy(m, 0, 0), MTP_COPY_EQUAL);
    assert_int_equal(model_mtp_copy(m, 0, 1), MTP_COPY_EQUAL);
    int64_t parameters = model_parameters(m);
    model_close(m);
    patched_v3(dir, "model.layers.3.shared_head.head.weight", 2 * 1000, three, 2);
    assert_int_equal(model_open(&m, dir, NULL, &err), VB_OK);
    assert_int_equal(model_mtp_copy(m, 0, 0), MTP_COPY_EQUAL);
    assert_int_equal(model_mtp_copy(m, 0, 1), MTP_COPY_DIFFERENT);
    assert_int_equal(model_parameters(m), parameters + 160 * 64);
    check_parameters(m);
    model_close(m);
    remove_dir(dir);

    struct list l;
    list_open(&l, TINY "v3");
    list_remove_prefix(&l, "model.layers.3.embed_tokens.");
    m = bind_or_fail(&l);
    assert_int_equal(model_mtp_copy(m, 0, 0), MTP_COPY_ABSENT);
    assert_int_equal(m->mtp[0].embed_tokens.rows, 160);
    assert_int_equal(model_parameters(m), parameters);
    model_close(m);
    checkpoint_close(l.from);
}

TEST(scales_at_odd_addresses_are_copied)
{
    struct vb_model *m;
    vb_error err;
    size_t odd = 0, vectors = 0;
    assert_int_equal(model_open(&m, TINY "v3", NULL, &err), VB_OK); /* its header is not padded */
    for (size_t i = 0; i < checkpoint_count(m->checkpoint); i++) {
        const struct tensor *t = checkpoint_at(m->checkpoint, i);
        if (ends_with(t->name, "_scale_inv"))
            odd += (uintptr_t)t->data % 4 ? t->bytes : 0;
        else if (t->ndim == 1)
            vectors += (size_t)t->shape[0] * sizeof(float);
    }
    assert_true(odd > 0);
    assert_int_equal(m->widened_bytes, odd + vectors);
    const struct weight_view *w = &m->layers[1].moe.experts[0].gate_proj;
    const struct tensor *t = checkpoint_find(m->checkpoint, "model.layers.1.mlp.experts.0.gate_proj.weight_scale_inv");
    assert_int_equal((uintptr_t)w->scale % sizeof(float), 0);
    assert_memory_equal(w->scale, t->data, t->bytes);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_weight_that_is_no_number_is_told_with_its_place),
        cmocka_unit_test(mtp_copies_are_compared_and_a_changed_one_counts),
        cmocka_unit_test(scales_at_odd_addresses_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
