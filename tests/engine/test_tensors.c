/* tests/engine/test_tensors.c -- vb_tensors: files of tensors as a client lists, reads and writes them. verbatim.h is
 * the only header of ours that it includes, as a client's would be. Runs in the repository's root. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/client.h"
#include "tests/support/files.h"

static vb_tensors *opened(const char *path)
{
    vb_tensors *t;
    ok(vb_tensors_open(&t, path, NULL, &err));
    return t;
}

static vb_tensor found(const vb_tensors *t, const char *name)
{
    vb_tensor tensor;
    if (!vb_tensors_find(t, name, &tensor))
        fail_msg("there is no %s", name);
    return tensor;
}

static size_t numbers_of(const vb_tensor *t)
{
    size_t n = 1;
    for (int32_t d = 0; d < t->ndim; d++)
        n *= (size_t)t->shape[d];
    return n;
}

static size_t count_of(const vb_tensors *t)
{
    vb_tensor tensor;
    size_t n = 0;
    while (vb_tensors_at(t, n, &tensor))
        n++;
    return n;
}

TEST(the_tensors_of_a_checkpoint_are_one_sorted_list)
{
    static const struct { const char *path; size_t count;
    } checkpoints[] = {
                       {"golden/tiny/v3", 311}, {"golden/tiny/v3-mtp3", 187},
                       {"golden/tiny/v3-mtp3/model-00001-of-000003.safetensors", 63}};
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        vb_tensors *t = opened(checkpoints[i].path);
        vb_tensor one, before = {0}, same;
        size_t n = 0;
        for (; vb_tensors_at(t, n, &one); n++, before = one) {
            assert_true(!n || strcmp(before.name, one.name) < 0);
            assert_true(vb_tensors_find(t, one.name, &same) && same.data == one.data && same.bytes == one.bytes);
            assert_non_null(strstr(one.file, ".safetensors"));
            assert_int_equal(one.quantized, 0);
        }
        assert_int_equal(n, checkpoints[i].count);
        assert_int_equal(vb_tensors_find(t, "nobody", &one), 0);
        vb_tensors_close(t);
    }
    vb_tensors *t = opened("golden/tiny/v3");
    vb_tensor norm = found(t, "model.norm.weight"), head = found(t, "lm_head.weight");
    assert_int_equal(norm.ndim, 1);
    assert_int_equal(head.ndim, 2);
    assert_int_equal(head.shape[1], norm.shape[0]);
    assert_string_equal(head.file, "model.safetensors");
    assert_string_equal(vb_tensors_metadata(t, "format"), "pt");
    assert_null(vb_tensors_metadata(t, "nothing"));
    vb_tensors_close(t);
    t = opened("golden/tiny/v3-mtp3"); /* three files */
    assert_null(vb_tensors_metadata(t, "format"));
    vb_tensors_close(t);
    vb_tensors_close(NULL);
}

TEST(a_gguf_file_has_the_names_of_the_hugging_face_layout)
{
    vb_tensors *t = opened("golden/gguf/tiny-quantized.gguf");
    vb_tensor one;
    size_t quantized = 0;
    assert_int_equal(found(t, "lm_head.weight").ndim, 2);
    for (size_t i = 0; vb_tensors_at(t, i, &one); i++) {
        float *x = malloc((numbers_of(&one) + 1) * sizeof *x);
        assert_int_equal(one.quantized, one.dtype[0] == 'Q');
        quantized += (size_t)one.quantized;
        ok(vb_tensor_f32(&one, 0, numbers_of(&one), x, &err));
        for (size_t k = 0; k < numbers_of(&one); k++)
            assert_true(isfinite(x[k]));
        free(x);
    }
    assert_true(quantized > 0);
    assert_null(vb_tensors_metadata(t, "format"));
    vb_tensors_close(t);
}

/* Blocks and numbers of the gguf package; from any number on. */
TEST(quantized_numbers_are_those_of_the_gguf_package)
{
    static const struct {
        const char *name;
        int64_t numbers;
    } types[] = {{"Q8_0", 32}, {"Q4_0", 32}, {"Q5_0", 32}, {"Q5_1", 32}, {"Q4_K", 256}, {"Q5_K", 256}, {"Q6_K", 256},
                 {"MXFP4", 32}, {"IQ2_XXS", 256}, {"IQ2_XS", 256}, {"IQ2_S", 256}, {"IQ3_XXS", 256}, {"IQ3_S", 256},
                 {"IQ1_S", 256}, {"IQ1_M", 256}, {"TQ1_0", 256}, {"TQ2_0", 256}, {"Q4_1", 32}, {"IQ4_NL", 32},
                 {"IQ4_XS", 256}, {"Q3_K", 256}, {"Q2_K", 256}, {"NVFP4", 64}};
    vb_tensors *t = opened("golden/truth/blocks.safetensors");
    assert_string_equal(vb_tensors_metadata(t, "source"), "gguf 0.19.0");
    for (size_t i = 0; i < COUNT(types); i++) {
        char name[32];
        snprintf(name, sizeof name, "%s.blocks", types[i].name);
        vb_tensor want = found(t, types[i].name), blocks = found(t, name);
        size_t n = numbers_of(&want);
        vb_tensor quantized = {.name = name, .dtype = types[i].name, .ndim = 2,
                               .shape = {(int64_t)n / types[i].numbers, types[i].numbers}, .data = blocks.data,
                               .bytes = blocks.bytes};
        float *x = malloc(n * sizeof *x);
        for (size_t first = 0; first < 70; first += 23) {
            memset(x, 0xff, n * sizeof *x);
            ok(vb_tensor_f32(&quantized, first, n - first, x, &err));
            assert_memory_equal(x, (const char *)want.data + first * sizeof *x, (n - first) * sizeof *x);
        }
        free(x);
    }
    vb_tensors_close(t);
}

TEST(numbers_of_every_width_become_f32)
{
    const double f64[] = {0.1, -2.0, 1e300};
    const int64_t i64[] = {-3, 16777217, 5};
    const int32_t i32[] = {-3, 16777217, 5};
    const uint16_t f16[] = {0x3c00, 0xc000, 0x0001}, bf16[] = {0x3f80, 0xc000, 0x0001};
    const float f32[] = {1.5f, -0.0f, 0x1p-149f};
    const struct { const char *dtype; const void *data; float want[3];
    } known[] = {
                 {"F64", f64, {0.1f, -2.0f, INFINITY}}, {"I64", i64, {-3.0f, 16777216.0f, 5.0f}},
                 {"I32", i32, {-3.0f, 16777216.0f, 5.0f}},
                 {"F16", f16, {1.0f, -2.0f, 0x1p-24f}}, {"BF16", bf16, {1.0f, -2.0f, 0x1p-133f}},
                 {"F32", f32, {1.5f, -0.0f, 0x1p-149f}}};
    for (size_t i = 0; i < COUNT(known); i++) {
        char unaligned[32];
        vb_tensor t = {.name = "x", .dtype = known[i].dtype, .ndim = 1, .shape = {3}, .data = unaligned + 1};
        float x[3];
        memcpy(unaligned + 1, known[i].data, 3 * (known[i].dtype[1] == '6' ? 8 : known[i].dtype[1] == '3' ? 4 : 2));
        ok(vb_tensor_f32(&t, 0, 3, x, &err));
        assert_memory_equal(x, known[i].want, sizeof x);
        ok(vb_tensor_f32(&t, 2, 1, x, &err));
        assert_memory_equal(x, known[i].want + 2, sizeof *x);
        ok(vb_tensor_f32(&t, 3, 0, x, &err));
        refused(vb_tensor_f32(&t, 2, 2, x, &err), VB_BAD_ARGUMENT, "wanted 2 numbers from number 2 on");
        refused(vb_tensor_f32(&t, 4, 0, x, &err), VB_BAD_ARGUMENT, "wanted 0 numbers");
    }
    unsigned char codes[256];
    float x[256];
    for (int i = 0; i < 256; i++)
        codes[i] = (unsigned char)i;
    vb_tensor t = {.name = "codes", .dtype = "F8_E4M3", .ndim = 2, .shape = {16, 16}, .data = codes, .bytes = 256};
    ok(vb_tensor_f32(&t, 0, 256, x, &err));
    for (int i = 0; i < 256; i++) { /* S EEEE MMM, bias 7; all ones is NaN */
        int e = i >> 3 & 15, m = i & 7;
        double want = ldexp(e ? 8 + m : m, (e ? e : 1) - 10);
        if ((i & 127) == 127)
            assert_true(isnan(x[i]));
        else
            assert_true((double)x[i] == (i & 128 ? -want : want));
    }
    t.dtype = "U8";
    refused(vb_tensor_f32(&t, 0, 1, x, &err), VB_UNSUPPORTED, "codes is U8, which is not read as f32");
}

struct progress {
    size_t calls, done, total, stop_at;
};

static int see_progress(void *context, size_t done, size_t total)
{
    struct progress *p = context;
    assert_true(done > p->done && done <= total);
    p->calls++;
    p->done = done;
    p->total = total;
    return p->calls == p->stop_at;
}

static int write_to(const char *path, const vb_tensor *list, size_t count, struct progress *p)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    int code = vb_tensors_write(fd, "out", list, count, p ? see_progress : NULL, p, &err);
    assert_int_equal(close(fd), 0);
    return code;
}

TEST(what_was_written_is_read_back)
{
    char dir[64], path[80];
    static char large[(1 << 21) + 5];
    const float x[] = {1, 2, 3, 4, 5, 6};
    const int64_t id = 7;
    const vb_tensor list[] = {{.name = "z", .dtype = "F32", .ndim = 2, .shape = {2, 3}, .data = x, .bytes = sizeof x},
                              {.name = "a \"quoted\" \xc3\xa9", .dtype = "I64", .data = &id, .bytes = sizeof id},
                              {.name = "empty", .dtype = "BF16", .ndim = 1},
                              {.name = "large", .dtype = "U8", .ndim = 1, .shape = {sizeof large}, .data = large,
                               .bytes = sizeof large}};
    struct progress p = {0};
    make_dir(dir);
    snprintf(path, sizeof path, "%s/out", dir);
    large[sizeof large - 1] = 9;
    ok(write_to(path, list, COUNT(list), &p));
    assert_true(p.calls > 3 && p.done == p.total && p.total == sizeof x + sizeof id + sizeof large);
    vb_tensors *t = opened(path);
    assert_int_equal(count_of(t), COUNT(list));
    for (size_t i = 0; i < COUNT(list); i++) {
        vb_tensor back = found(t, list[i].name);
        assert_string_equal(back.dtype, list[i].dtype);
        assert_int_equal(back.ndim, list[i].ndim);
        assert_memory_equal(back.shape, list[i].shape, sizeof back.shape);
        assert_int_equal(back.bytes, list[i].bytes);
        if (back.bytes)
            assert_memory_equal(back.data, list[i].data, back.bytes);
    }
    assert_true((uintptr_t)found(t, "z").data % 8 == 0);
    assert_null(vb_tensors_metadata(t, "format"));
    vb_tensors_close(t);
    p = (struct progress){.stop_at = 1};
    refused(write_to(path, list, COUNT(list), &p), VB_STOPPED, "out: stopped");
    ok(write_to(path, NULL, 0, NULL));
    t = opened(path);
    assert_int_equal(count_of(t), 0);
    vb_tensors_close(t);
    remove_dir(dir);
}

TEST(what_no_file_can_hold_is_refused)
{
    char dir[64], path[80];
    const float x[6] = {0};
    const vb_tensor good = {.name = "x", .dtype = "F32", .ndim = 2, .shape = {2, 3}, .data = x, .bytes = sizeof x};
    const vb_tensor twice[] = {good, good};
    make_dir(dir);
    snprintf(path, sizeof path, "%s/out", dir);
    refused(write_to(path, twice, 2, NULL), VB_BAD_ARGUMENT, "out: x is there twice");
    struct {
        const char *name, *dtype;
        int32_t ndim;
        int64_t extent;
        size_t bytes;
        int code;
        const char *part;
    } bad[] = {
        {"", "F32", 2, 2, 24, VB_BAD_ARGUMENT, "out: a tensor's name is empty"},
        {NULL, "F32", 2, 2, 24, VB_BAD_ARGUMENT, "out: a tensor's name is empty"},
        {"a\n", "F32", 2, 2, 24, VB_BAD_ARGUMENT, "not printable"},
        {"\xff", "F32", 2, 2, 24, VB_BAD_ARGUMENT, "not printable"},
        {"__metadata__", "F32", 2, 2, 24, VB_BAD_ARGUMENT, "or __metadata__"},
        {"x", "Q8_0", 2, 2, 24, VB_UNSUPPORTED, "out: x is Q8_0, which safetensors files do not have"},
        {"x", NULL, 2, 2, 24, VB_UNSUPPORTED, "out: x is of no type"},
        {"x", "F32", 2, 2, 23, VB_BAD_ARGUMENT, "out: x has 23 bytes"},
        {"x", "F64", 2, 2, 24, VB_BAD_ARGUMENT, "out: x has 24 bytes"},
        {"x", "F32", 2, -2, 24, VB_BAD_ARGUMENT, "out: x has 24 bytes"},
        {"x", "F32", 5, 2, 24, VB_BAD_ARGUMENT, "out: x has 24 bytes"},
        {"x", "F32", 2, INT64_MAX, 24, VB_BAD_ARGUMENT, "out: x has 24 bytes"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        vb_tensor t = good;
        t.name = bad[i].name;
        t.dtype = bad[i].dtype;
        t.ndim = bad[i].ndim;
        t.shape[0] = bad[i].extent;
        t.bytes = bad[i].bytes;
        refused(write_to(path, &t, 1, NULL), bad[i].code, bad[i].part);
    }
    refused(vb_tensors_write(-1, "out", &good, 1, NULL, NULL, &err), VB_IO, "out: Bad file descriptor");
    remove_dir(dir);
}

TEST(files_that_are_wrong_are_refused)
{
    char dir[64], path[80];
    vb_tensors *t;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/none", dir);
    refused(vb_tensors_open(&t, path, NULL, &err), VB_IO, path);
    assert_null(t);
    refused(vb_tensors_open(&t, dir, NULL, &err), VB_IO, "there is neither model.safetensors nor");
    snprintf(path, sizeof path, "%s/short", dir);
    write_file(dir, "short", "1234567", 7);
    refused(vb_tensors_open(&t, path, NULL, &err), VB_BAD_CHECKPOINT, "7 bytes are no safetensors file");
    write_file(dir, "short", "\4\0\0\0\0\0\0\0{}  x", 13);
    refused(vb_tensors_open(&t, path, NULL, &err), VB_BAD_CHECKPOINT,
            "its tensors end at byte 0 of the data, the file holds 1");
    write_file(dir, "short", "GGUF\3\0\0\0", 8);
    refused(vb_tensors_open(&t, path, NULL, &err), VB_BAD_CHECKPOINT, "short");
    assert_null(t);
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tensors_of_a_checkpoint_are_one_sorted_list),
        cmocka_unit_test(a_gguf_file_has_the_names_of_the_hugging_face_layout),
        cmocka_unit_test(quantized_numbers_are_those_of_the_gguf_package),
        cmocka_unit_test(numbers_of_every_width_become_f32),
        cmocka_unit_test(what_was_written_is_read_back),
        cmocka_unit_test(what_no_file_can_hold_is_refused),
        cmocka_unit_test(files_that_are_wrong_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
