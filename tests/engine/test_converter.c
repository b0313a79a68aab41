/* tests/engine/test_converter.c -- a GGUF file that `quantize` writes has the keys and tensors of the file that
 * llama.cpp's converter writes for the same directory. Truth: golden/gguf/converter.json
 * (golden/scripts/against_converter.py). Since such a file gives the bits of its directory (test_quantize.c), the
 * converter's files do, too. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <fcntl.h>
#include <sha2.h>

#include "engine/files/gguf.h"
#include "engine/export/gguf_write.h"

/* The file of golden/tiny/NAME in DIR, of which all matrices have one type. */
static struct gguf *quantized(const char *dir, const char *name, enum gguf_as as)
{
    char from[64], path[128];
    struct vb_quantize *p;
    struct gguf *g;
    snprintf(from, sizeof from, "golden/tiny/%s", name);
    snprintf(path, sizeof path, "%s/%s.gguf", dir, name);
    vb_model *m = open_model(from);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    OK(gguf_plan_open(&p, m, from, &(struct gguf_write_options){as, as, as}, &err));
    OK(gguf_plan_write(p, fd, path, 1, NULL, NULL, &err));
    close(fd);
    gguf_plan_close(p);
    vb_model_close(m);
    OK(gguf_open(&g, path, NULL, &err));
    return g;
}

/* Returns 1 if a key has a value of the truth. Numbers are compared as float32. */
static int has_value(const struct gguf_value *v, const json_t *wanted)
{
    struct gguf_text text;
    int64_t integer;
    int flag;
    float real;
    json_t *item;
    size_t i, same = 0;
    if (json_is_string(wanted))
        return gguf_string(v, &text) && text.size == json_string_length(wanted) &&
               !memcmp(text.s, json_string_value(wanted), text.size);
    if (json_is_boolean(wanted))
        return gguf_bool(v, &flag) && flag == json_is_true(wanted);
    if (json_is_integer(wanted))
        return gguf_integer(v, &integer) && integer == json_integer_value(wanted);
    if (json_is_array(wanted)) {
        json_array_foreach(wanted, i, item)
            same += v && v->is_array && v->type == GGUF_BOOL && i < v->count && gguf_item(v, i) == json_is_true(item);
        return same == json_array_size(wanted) && v->count == same;
    }
    if (!v || v->type != GGUF_F32)
        return 0;
    memcpy(&real, v->data, sizeof real);
    return real == (float)json_real_value(wanted);
}

static void check_tensor(const char *model, const struct gguf *g, const char *name, const json_t *wanted)
{
    const struct gguf_tensor *t = gguf_find_tensor(g, name);
    const json_t *shape = json_array_get(wanted, 1);
    char digest[SHA256_DIGEST_STRING_LENGTH];
    if (!t)
        fail_msg("%s: there is no %s", model, name);
    if (strcmp(t->type->name, json_string_value(json_array_get(wanted, 0))) ||
        (size_t)t->ndim != json_array_size(shape))
        fail_msg("%s: %s is %s with %d extents", model, name, t->type->name, t->ndim);
    for (int d = 0; d < t->ndim; d++)
        assert_int_equal(t->shape[d], json_integer_value(json_array_get(shape, (size_t)d)));
    SHA256Data(t->data, t->bytes, digest);
    if (strcmp(digest, json_string_value(json_array_get(wanted, 2))))
        fail_msg("%s: %s has other numbers", model, name);
}

TEST(the_files_are_those_of_llama_cpps_converter)
{
    json_t *root = json_load_file("golden/gguf/converter.json", 0, NULL), *model, *wanted;
    const char *name, *key;
    char dir[64];
    int models = 0;
    assert_non_null(root);
    make_dir(dir);
    json_object_foreach(root, name, model) {
        if (!json_is_object(model)) /* the commit */
            continue;
        json_t *keys = json_object_get(model, "keys"), *tensors = json_object_get(model, "tensors");
        struct gguf *g = quantized(dir, name,
                                   strcmp(json_string_value(json_object_get(model, "outtype")), "f32") ? GGUF_AS_BF16
                                                                                                       : GGUF_AS_F32);
        assert_true(has_value(gguf_find(g, "general.architecture"), json_object_get(model, "architecture")));
        json_object_foreach(keys, key, wanted)
            if (!has_value(gguf_find(g, key), wanted))
                fail_msg("%s: %s has another value", name, key);
        json_object_foreach(tensors, key, wanted)
            check_tensor(name, g, key, wanted);
        assert_int_equal(gguf_tensors(g), json_object_size(tensors));
        assert_true(json_object_size(keys) >= 18);
        gguf_close(g);
        models++;
    }
    assert_int_equal(models, 7);
    json_decref(root);
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_files_are_those_of_llama_cpps_converter)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
