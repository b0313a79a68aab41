/* tests/engine/test_checkpoint.c -- safetensors headers, right and hostile, and the opening of whole checkpoints. Every
 * complaint is compared word for word. Runs in the repository's root. */
#include "engine/files/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "tests/support/files.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define LONG_NAME \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" \
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static const float numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* one tensor in JSON */
#define T(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

/* ---- the header -------------------------------------------------------------------------------------------------- */

struct seen {
    struct safetensors_entry entries[16];
    char names[16][32];
    int count;
};

static int see(void *context, const struct safetensors_entry *e, vb_error *err)
{
    struct seen *s = context;
    if (s->count == 16)
        return vb_fail(err, VB_STOPPED, "enough");
    snprintf(s->names[s->count], sizeof s->names[0], "%s", e->tensor.name);
    s->entries[s->count++] = *e;
    return VB_OK;
}

/* the result for a file of this header and so many bytes of data */
static int parse(struct seen *s, const char *header, size_t data, vb_error *err)
{
    size_t total;
    char *bytes = safetensors_bytes(header, numbers, data, &total);
    s->count = 0;
    err->code = VB_OK;
    err->message[0] = 0;
    int rc = safetensors_parse(bytes, total, total, "f", see, s, NULL, err);
    assert_int_equal(rc, err->code);
    free(bytes);
    return rc;
}

TEST(a_header_is_read_whatever_its_order_and_padding)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," T("b", "BF16", "[3,2]", 8, 20) "," T("a", "F32", "[2]", 0, 8) ","
        T("scalar", "I64", "[]", 20, 28) "," T("empty", "F16", "[0,7]", 20, 20) "," T("e", "F8_E4M3", "[2]", 28, 30) ","
        T("strange", "F4_X2", "[9]", 30, 31) "}  ";
    static const struct {
        const char *name, *dtype_name;
        enum dtype dtype;
        int ndim;
        size_t begin, end;
    } wants[] = {
        {"a", "F32", DTYPE_F32, 1, 0, 8},          {"b", "BF16", DTYPE_BF16, 2, 8, 20},
        {"empty", "F16", DTYPE_F16, 2, 20, 20},    {"scalar", "I64", DTYPE_OTHER, 0, 20, 28},
        {"e", "F8_E4M3", DTYPE_F8_E4M3, 1, 28, 30}, {"strange", "F4_X2", DTYPE_OTHER, 1, 30, 31},
    };
    struct seen s;
    vb_error err;
    if (parse(&s, header, 31, &err))
        fail_msg("%s", err.message);
    assert_int_equal(s.count, COUNT(wants));
    for (size_t i = 0; i < COUNT(wants); i++) {
        const struct tensor *t = &s.entries[i].tensor;
        assert_string_equal(s.names[i], wants[i].name);
        assert_string_equal(t->dtype_name, wants[i].dtype_name);
        assert_int_equal(t->dtype, wants[i].dtype);
        assert_int_equal(t->ndim, wants[i].ndim);
        assert_int_equal(s.entries[i].begin, wants[i].begin + 8 + sizeof header - 1);
        assert_int_equal(s.entries[i].end, wants[i].end + 8 + sizeof header - 1);
        assert_int_equal(t->bytes, wants[i].end - wants[i].begin);
        assert_string_equal(t->file, "f");
    }
    assert_true(s.entries[1].tensor.shape[0] == 3 && s.entries[1].tensor.shape[1] == 2);
    assert_int_equal(parse(&s, "{}", 0, &err), VB_OK);
}

TEST(a_hostile_header_is_told_and_does_no_harm)
{
    static const struct {
        const char *header;
        size_t data;
        int code;
        const char *message;
    } cases[] = {
        {"", 0, VB_BAD_CHECKPOINT, "f: it ends too early"},
        {"[]", 0, VB_BAD_CHECKPOINT, "f: its header is not an object"},
        {"{" T("a", "F32", "[1]", 0, 4) "} x", 4, VB_BAD_CHECKPOINT, "f: it is not JSON"},
        {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, VB_BAD_CHECKPOINT,
         "f: a key is there twice"},
        {"{\"\":{}}", 0, VB_BAD_CHECKPOINT, "f: a tensor's name is empty, longer than 255 bytes or not printable"},
        {"{\"a\\nb\":{}}", 0, VB_BAD_CHECKPOINT, "f: a tensor's name is empty, longer than 255 bytes or not printable"},
        {"{\"" LONG_NAME "\":{}}", 0, VB_BAD_CHECKPOINT,
         "f: a tensor's name is empty, longer than 255 bytes or not printable"},
        {"{\"a\\u0000b\":{}}", 0, VB_BAD_CHECKPOINT, "f: a string holds a zero character"},
        {"{\"a\xff\":{}}", 0, VB_BAD_CHECKPOINT, "f: it is not UTF-8"},
        {"{\"a\":7}", 0, VB_BAD_CHECKPOINT, "f: a: its entry is 7, wanted an object"},
        {"{\"a\":{}}", 0, VB_BAD_CHECKPOINT, "f: a: dtype is missing, wanted a name such as BF16"},
        {"{" T("a", "f32\\n", "[1]", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: dtype is \"f32\\n\", wanted a name such as BF16"},
        {"{" T("a", "F\x7f", "[1]", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: dtype is \"F?\", wanted a name such as BF16"},
        {"{" T("a", "ABCDEFGHIJKLMNOP", "[1]", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: dtype is \"ABCDEFGHIJKLMNOP\", wanted a name such as BF16"},
        {"{" T("a", "F32", "4", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: shape is 4, wanted a list of up to four numbers"},
        {"{" T("a", "F32", "[1,1,1,1,1]", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: shape is [1,1,1,1,1], wanted a list of up to four numbers"},
        {"{" T("a", "F32", "[-1]", 0, 4) "}", 4, VB_BAD_CHECKPOINT, "f: a: shape is [-1], wanted whole numbers from 0"},
        {"{" T("a", "F32", "[1.0]", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: shape is [1.0], wanted whole numbers from 0"},
        {"{" T("a", "F32", "[4294967296,4294967296]", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: shape is [4294967296,4294967296], wanted a product that 64 bits hold"},
        {"{" T("a", "F32", "[9223372036854775807]", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: shape is [9223372036854775807], wanted a size in bytes that 64 bits hold"},
        {"{" T("a", "F32", "[99999999999999999999]", 0, 4) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: shape is [9.9999999999999984e19], wanted whole numbers from 0"},
        {"{" T("a", "F32", "[1]", 4, 0) "}", 4, VB_BAD_CHECKPOINT, "f: a: data_offsets is [4,0], wanted [begin, end]"},
        {"{" T("a", "F32", "[1]", -4, 0) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: data_offsets is [-4,0], wanted [begin, end]"},
        {"{" T("a", "F32", "[1]", 0, 4.0) "}", 4, VB_BAD_CHECKPOINT,
         "f: a: data_offsets is [0,4.0], wanted [begin, end]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, VB_BAD_CHECKPOINT,
         "f: a: data_offsets is missing, wanted [begin, end]"},
        {"{" T("a", "F32", "[2]", 0, 8) "}", 4, VB_BAD_CHECKPOINT,
         "f: a ends at byte 8 of the data, the file holds 4: it was cut short"},
        {"{" T("a", "F32", "[2]", 0, 4) "}", 4, VB_BAD_CHECKPOINT, "f: a has 4 bytes, its shape and dtype F32 make 8"},
        {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 2, 6) "}", 6, VB_BAD_CHECKPOINT, "f: b overlaps a"},
        {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 6, 10) "}", 10, VB_BAD_CHECKPOINT,
         "f: there is a hole of 2 bytes before b"},
        {"{" T("a", "F32", "[1]", 4, 8) "}", 8, VB_BAD_CHECKPOINT, "f: there is a hole of 4 bytes before a"},
        {"{" T("a", "F32", "[1]", 0, 4) "}", 7, VB_BAD_CHECKPOINT,
         "f: its tensors end at byte 4 of the data, the file holds 7"},
        {"{}", 1, VB_BAD_CHECKPOINT, "f: its tensors end at byte 0 of the data, the file holds 1"},
    };
    struct seen s;
    vb_error err;
    for (size_t i = 0; i < COUNT(cases); i++) {
        int rc = parse(&s, cases[i].header, cases[i].data, &err);
        forget_place(err.message);
        if (rc != cases[i].code || strcmp(err.message, cases[i].message))
            fail_msg("case %zu: code %d \"%s\", wanted %d \"%s\"", i, rc, err.message, cases[i].code, cases[i].message);
        assert_int_equal(s.count, 0); /* nobody hears of a tensor before all are checked */
    }
}

TEST(a_length_that_does_not_fit_the_file_is_told)
{
    static const unsigned char lengths[][8] = {{3}, {255, 255, 255, 255, 255, 255, 255, 255},
                                               {0, 0, 0, 0, 0, 0, 0, 128}};
    unsigned char bytes[10] = {0};
    struct seen s = {.count = 0};
    vb_error err;
    for (size_t i = 0; i < COUNT(lengths); i++) {
        memcpy(bytes, lengths[i], 8);
        memcpy(bytes + 8, "{}", 2);
        assert_int_equal(safetensors_parse((char *)bytes, 10, 10, "f", see, &s, NULL, &err), VB_BAD_CHECKPOINT);
        assert_non_null(strstr(err.message, " does not fit a file of 10: it was cut short, or is no safetensors file"));
    }
    assert_int_equal(safetensors_parse("1234567", 7, 7, "f", see, &s, NULL, &err), VB_BAD_CHECKPOINT);
    assert_string_equal(err.message, "f: 7 bytes are no safetensors file");

    /* deep nesting ends in the parser, not on the stack */
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = 0;
    assert_int_equal(parse(&s, deep, 0, &err), VB_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message, "it is nested too deeply"));
    free(deep);
}

/* ---- whole checkpoints ------------------------------------------------------------------------------------------- */

static const char header_ab[] = "{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[1,2]", 8, 16) "}";
static const char header_c[] = "{" T("c", "F32", "[3]", 0, 12) "}";
static const char index_abc[] = "{\"metadata\":{\"total_size\":28},\"weight_map\":{\"a\":\"x-1.safetensors\","
                                "\"b\":\"x-1.safetensors\",\"c\":\"x-2.safetensors\"}}";

static void write_shards(const char *dir)
{
    write_safetensors(dir, "x-1.safetensors", header_ab, numbers, 16);
    write_safetensors(dir, "x-2.safetensors", header_c, numbers + 4, 12);
    write_text(dir, INDEX, index_abc);
}

static void expect(const char *dir, int code, const char *format, ...)
{
    char wants[600];
    struct checkpoint *c;
    vb_error err;
    va_list args;
    va_start(args, format);
    vsnprintf(wants, sizeof wants, format, args);
    va_end(args);
    int rc = checkpoint_open(&c, dir, NULL, &err);
    if (rc)
        forget_place(err.message);
    if (rc != code || strcmp(err.message, wants))
        fail_msg("code %d \"%s\", wanted %d \"%s\"", rc, rc ? err.message : "", code, wants);
}

TEST(shards_are_opened_as_one)
{
    char dir[64];
    struct checkpoint *c;
    vb_error err;
    size_t first;
    make_dir(dir);
    write_shards(dir);
    if (checkpoint_open(&c, dir, NULL, &err))
        fail_msg("%s", err.message);
    assert_int_equal(checkpoint_count(c), 3);
    assert_string_equal(checkpoint_dir(c), dir);
    assert_string_equal(checkpoint_at(c, 1)->name, "b");
    assert_null(checkpoint_find(c, "d"));
    assert_null(checkpoint_take(c, ""));
    const struct tensor *t = checkpoint_take(c, "c");
    assert_string_equal(t->file, "x-2.safetensors");
    assert_int_equal(t->taken, 1);
    float third;
    memcpy(&third, (const char *)t->data + 8, sizeof third);
    assert_true(third == numbers[6]);
    checkpoint_ignore(c, checkpoint_find(c, "a"), "a test");
    assert_string_equal(checkpoint_at(c, 0)->ignored, "a test");
    assert_int_equal(checkpoint_with_prefix(c, "", &first), 3);
    assert_int_equal(checkpoint_with_prefix(c, "b", &first), 1);
    assert_int_equal(first, 1);
    assert_int_equal(checkpoint_with_prefix(c, "d", &first), 0);
    checkpoint_close(c);

    /* a single file beside an index comes first, as in Hugging Face */
    write_safetensors(dir, SINGLE, header_c, numbers, 12);
    assert_int_equal(checkpoint_open(&c, dir, NULL, &err), VB_OK);
    assert_int_equal(checkpoint_count(c), 1);
    checkpoint_close(c);
    checkpoint_close(NULL);
    remove_dir(dir);
}

TEST(an_index_and_its_shards_must_agree)
{
    static const struct {
        const char *index, *message;
    } cases[] = {
        {"[]", INDEX ": weight_map is missing, wanted an object of tensor and file names"},
        {"{\"weight_map\":{}}", INDEX ": weight_map is {}, wanted an object of tensor and file names"},
        {"{\"weight_map\":{\"a\":1}}", INDEX ": weight_map has 1 as a file, wanted the plain name of a shard"},
        {"{\"weight_map\":{\"a\":\"../x\"}}",
         INDEX ": weight_map has \"../x\" as a file, wanted the plain name of a shard"},
        {"{\"weight_map\":{\"a\":\"/x\"}}",
         INDEX ": weight_map has \"/x\" as a file, wanted the plain name of a shard"},
        {"{\"weight_map\":{\"a\":\"..\"}}",
         INDEX ": weight_map has \"..\" as a file, wanted the plain name of a shard"},
        {"{\"weight_map\":{\"a\":\"\"}}", INDEX ": weight_map has \"\" as a file, wanted the plain name of a shard"},
        {"{\"weight_map\":{\"a\":\"x\\ty\"}}",
         INDEX ": weight_map has \"x\\ty\" as a file, wanted the plain name of a shard"},
        {"{\"weight_map\":{\"a\":\"x-1.safetensors\"}}", "x-1.safetensors: b is not listed in " INDEX},
        {"{\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-2.safetensors\",\"c\":\"x-2.safetensors\"}}",
         "x-1.safetensors: b is here, " INDEX " says it is in x-2.safetensors"},
        {"{\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-1.safetensors\",\"d\":\"x-1.safetensors\"}}",
         "%s: \"d\" is not in x-1.safetensors, where " INDEX " says it is"},
        {"{\"weight_map\":{\"a\":1,\"a\":2}}", INDEX ": a key is there twice"},
    };
    char dir[64];
    make_dir(dir);
    write_shards(dir);
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_text(dir, INDEX, cases[i].index);
        expect(dir, VB_BAD_CHECKPOINT, cases[i].message, dir);
    }
    remove_dir(dir);
}

TEST(what_is_missing_or_cut_short_is_told)
{
    char dir[64], path[128];
    make_dir(dir);
    expect(dir, VB_IO, "%s: there is neither " SINGLE " nor " INDEX, dir);
    write_shards(dir);
    snprintf(path, sizeof path, "%s/x-2.safetensors", dir);
    assert_int_equal(unlink(path), 0);
    expect(dir, VB_IO, "%s: No such file or directory", path);
    write_safetensors(dir, "x-2.safetensors", header_c, numbers, 11);
    expect(dir, VB_BAD_CHECKPOINT,
           "x-2.safetensors: c ends at byte 12 of the data, the file holds 11: it was cut short");
    write_text(dir, "x-2.safetensors", "1234567");
    expect(dir, VB_BAD_CHECKPOINT, "x-2.safetensors: 7 bytes are no safetensors file");
    write_text(dir, "x-2.safetensors", "");
    expect(dir, VB_BAD_CHECKPOINT, "x-2.safetensors: 0 bytes are no safetensors file");
    write_text(dir, "x-2.safetensors", "<html>Not found</html>");
    expect(dir, VB_BAD_CHECKPOINT,
           "x-2.safetensors: its header of 8020416621807167548 bytes does not fit a file of 22: it was "
           "cut short, or is no safetensors file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    expect(dir, VB_IO, "%s: not a regular file", path);
    assert_int_equal(rmdir(path), 0);
    write_safetensors(dir, "x-2.safetensors", header_ab, numbers, 16);
    write_text(dir, INDEX,
               "{\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-1.safetensors\",\"z\":\"x-2.safetensors\"}}");
    expect(dir, VB_BAD_CHECKPOINT, "x-2.safetensors: a is here, " INDEX " says it is in x-1.safetensors");
    remove_dir(dir);
    expect(dir, VB_IO, "%s: No such file or directory", dir);
}

TEST(every_allocation_may_fail)
{
    char dir[64];
    make_dir(dir);
    write_shards(dir);
    long fail = 0;
    for (;; fail++) {
        struct counted counted = {.fail = fail};
        vb_allocator a = {counted_alloc, counted_free, &counted};
        struct checkpoint *c;
        vb_error err;
        int rc = checkpoint_open(&c, dir, &a, &err);
        if (!rc) {
            assert_true(counted.requests <= fail);
            checkpoint_close(c);
        }
        assert_int_equal(counted.alive, 0);
        if (!rc)
            break;
        assert_int_equal(rc, VB_NO_MEMORY);
    }
    assert_true(fail > 10);
    remove_dir(dir);
}

TEST(a_list_is_a_checkpoint_without_bytes)
{
    char name[] = "x";
    struct tensor list[3] = {
        {.name = name, .dtype = DTYPE_BF16, .dtype_name = "BF16", .ndim = 1, .shape = {7}, .file = "1", .data = name,
         .taken = 5},
        {.name = "a", .dtype = DTYPE_F32, .dtype_name = "F32", .ndim = 2, .shape = {2, 3}},
        {.name = "x", .file = "2"},
    };
    struct checkpoint *c;
    vb_error err;
    assert_int_equal(checkpoint_from_list(&c, list, 2, NULL, &err), VB_OK);
    name[0] = 'y'; /* names are copied */
    const struct tensor *t = checkpoint_find(c, "x");
    assert_non_null(t);
    assert_null(t->data);
    assert_int_equal(t->taken, 0);
    assert_string_equal(t->file, "1");
    assert_int_equal(checkpoint_find(c, "a")->shape[1], 3);
    checkpoint_close(c);
    name[0] = 'x';
    assert_int_equal(checkpoint_from_list(&c, list, 3, NULL, &err), VB_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message, ": x is there twice, also in "));
    assert_int_equal(checkpoint_from_list(&c, list, 0, NULL, &err), VB_OK);
    assert_null(checkpoint_find(c, "a"));
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_is_read_whatever_its_order_and_padding),
        cmocka_unit_test(a_hostile_header_is_told_and_does_no_harm),
        cmocka_unit_test(a_length_that_does_not_fit_the_file_is_told),
        cmocka_unit_test(shards_are_opened_as_one),
        cmocka_unit_test(an_index_and_its_shards_must_agree),
        cmocka_unit_test(what_is_missing_or_cut_short_is_told),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_list_is_a_checkpoint_without_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
