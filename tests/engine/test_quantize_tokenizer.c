/* tests/engine/test_quantize_tokenizer.c -- what `quantize` makes of a tokenizer: a file that has one gives the ids of
 * the directory, and one that GGUF cannot say is left out and noted. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <fcntl.h>

#include "engine/files/gguf.h"
#include "engine/export/gguf_write.h"
#include "tests/support/same_model.h"

static const struct gguf_write_options as_bf16 = {GGUF_AS_BF16, GGUF_AS_STORED, GGUF_AS_BF16};

/* A copy of golden/tale; with the tokenizer of golden/tokenizer when `other`. */
static void tale_with(char dir[64], int other)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
    copy_checkpoint(dir, "golden/tale");
    for (size_t i = 0; other && i < COUNT(names); i++) {
        char path[64], *data;
        size_t size;
        snprintf(path, sizeof path, "golden/tokenizer/%s", names[i]);
        OK(vb_read_file(NULL, path, &data, &size, &err));
        write_file(dir, names[i], data, size);
        vb_free(NULL, data);
    }
}

/* Changes DIR/NAME: `key` of the object at `in` ("" the top) becomes `value`; NULL: it goes. */
static void change(const char *dir, const char *name, const char *in, const char *key, json_t *value)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    json_t *root = json_load_file(path, 0, NULL), *object = *in ? json_object_get(root, in) : root;
    assert_true(object && !(value ? json_object_set_new(object, key, value) : json_object_del(object, key)));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

struct result {
    vb_model *model;
    struct vb_quantize *plan;
    char path[128];
};

/* DIR, with `end_tokens` ids that end a text when not 0, as DIR/q.gguf. */
static struct result quantize(const char *dir, int end_tokens)
{
    struct result r = {.model = open_model(dir)};
    struct config *c = &r.model->config;
    for (int i = 0; i < end_tokens; i++)
        c->eos_token_ids[i] = 2 + i;
    c->num_eos = end_tokens ? end_tokens : c->num_eos;
    OK(gguf_plan_open(&r.plan, r.model, dir, &as_bf16, &err));
    snprintf(r.path, sizeof r.path, "%s/q.gguf", dir);
    int fd = open(r.path, O_WRONLY | O_CREAT, 0600);
    OK(gguf_plan_write(r.plan, fd, r.path, 2, NULL, NULL, &err));
    close(fd);
    return r;
}

static int noted(const struct result *r, const char *part)
{
    for (int i = 0; i < r->plan->num_notes; i++)
        if (strstr(r->plan->notes[i], part))
            return 1;
    return 0;
}

static void done(struct result *r)
{
    gguf_plan_close(r->plan);
    vb_model_close(r->model);
}

static void check_tokenizer(const char *dir, const char *path)
{
    struct vb_tokenizer *a, *b;
    OK(tokenizer_open(&a, dir, NULL, &err));
    OK(tokenizer_open(&b, path, NULL, &err));
    assert_int_equal(tokenizer_size(a), tokenizer_size(b));
    check_same_tokenizer(a, b, tokenizer_size(a));
    tokenizer_close(a);
    tokenizer_close(b);
}

TEST(the_file_has_the_ids_of_the_directory)
{
    if (!have_tale())
        return;
    for (int other = 0; other < 2; other++) {
        char dir[64];
        tale_with(dir, other);
        struct result r = quantize(dir, 0);
        assert_string_equal(r.plan->pre, "deepseek-v3");
        assert_int_equal(noted(&r, "strip blanks"), other); /* golden/tokenizer has such tokens */
        check_tokenizer(dir, r.path);
        done(&r);
        remove_dir(dir);
    }
}

static json_t *pre_tokenizer(const char *pattern)
{
    return json_pack("{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b}]}", "type", "Sequence", "pretokenizers", "type",
                     "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
                     "add_prefix_space", 0, "use_regex", 0);
}

/* The words of a name, said with other patterns, are found; words that no name has are not. */
TEST(how_words_are_cut_is_found_by_trial)
{
    static const char gpt2[] = "(?:'(?:s|t|re|ve|m|ll|d))| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    static const char
        glm[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char kimi[] = "\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{"
                               "Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+"
                               "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n"
                               "\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'"
                               "ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char
        tekken[] = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
                   "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+|\\p{N}| "
                   "?[^\\s\\p{L}\\p{N}]+[/\\n\\r]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const struct {
        const char *pattern, *name;
        int ignore_merges;
    } cases[] = {
        {tekken, "tekken", 1},
        {gpt2, "gpt-2", 0},
        {gpt2, NULL, 1},
        {glm, "glm4", 1},
        {kimi, "kimi-k2", 1},
        {kimi, NULL, 0},
        {glm, NULL, 0},
        {"'s|'t|'re|'ve|'m|'ll| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", NULL, 0}, /* no 'd */
        {"'s|'t|'re|'ve|'m|'ll|'d| ?[\\p{L}\\x{200d}]+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}\\x{200d}]+|\\s+(?!\\S)|\\s+", NULL,
         0},
        {"'s|'t|'re|'ve|'m|'ll|'d| ?[\\p{L}\\x{2e3b}]+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}\\x{2e3b}]+|\\s+(?!\\S)|\\s+", NULL,
         0},
        {"\\p{N}{1,2}", NULL, 0},
    };
    if (!have_tale())
        return;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char dir[64];
        struct vb_tokenizer *t;
        tale_with(dir, 0);
        change(dir, "tokenizer.json", "", "pre_tokenizer", pre_tokenizer(cases[i].pattern));
        change(dir, "tokenizer.json", "model", "ignore_merges", json_boolean(cases[i].ignore_merges));
        struct result r = quantize(dir, 0);
        if (!r.plan->pre != !cases[i].name || (cases[i].name && strcmp(r.plan->pre, cases[i].name)))
            fail_msg("%s is taken for %s", cases[i].pattern, r.plan->pre ? r.plan->pre : "nothing");
        if (cases[i].name) {
            check_tokenizer(dir, r.path);
        } else {
            assert_true(noted(&r, "no tokenizer: GGUF has no name, that is known here, for how text is cut"));
            REFUSED(tokenizer_open(&t, r.path, NULL, &err), VB_IO, "q.gguf: it has no tokenizer");
            vb_model_close(open_model(r.path)); /* --tokens works */
        }
        done(&r);
        remove_dir(dir);
    }
}

static void no_tokenizer(const char *dir, const char *why)
{
    struct result r = quantize(dir, 0);
    assert_null(r.plan->pre);
    if (!noted(&r, why))
        fail_msg("noted: %s; wanted %s", r.plan->num_notes ? r.plan->notes[0] : "nothing", why);
    assert_int_equal(r.plan->num_notes, 1);
    vb_model *g = open_model(r.path);
    assert_int_equal(g->config.eos_token_ids[0], r.model->config.eos_token_ids[0]);
    assert_int_equal(g->config.bos_token_id, r.model->config.bos_token_id);
    vb_model_close(g);
    done(&r);
}

/* tiktoken's format; two reserved tokens and some more are beyond the model's 1024 rows. */
TEST(the_file_has_the_ids_of_tiktoken_model)
{
    static const char *const names[] = {"tiktoken.model", "tokenizer_config.json"};
    char dir[64], path[128], *data;
    size_t size;
    if (!have_tale())
        return;
    tale_with(dir, 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(unlink(path), 0);
    for (size_t i = 0; i < COUNT(names); i++) {
        snprintf(path, sizeof path, "golden/tiktoken/%s", names[i]);
        OK(vb_read_file(NULL, path, &data, &size, &err));
        write_file(dir, names[i], data, size);
        vb_free(NULL, data);
    }
    change(dir, "tokenizer_config.json", "added_tokens_decoder", "1094", NULL); /* [UNK] and [PAD], the last two with a
                                                                                   name */
    change(dir, "tokenizer_config.json", "added_tokens_decoder", "1095", NULL);
    struct result r = quantize(dir, 0);
    if (!r.plan->pre)
        fail_msg("%s", r.plan->notes[0]);
    assert_string_equal(r.plan->pre, "kimi-k2");
    struct vb_tokenizer *a, *b;
    OK(tokenizer_open(&a, dir, NULL, &err));
    OK(tokenizer_open(&b, r.path, NULL, &err));
    assert_int_equal(tokenizer_size(a), 840 + 258);
    assert_int_equal(tokenizer_size(b), 1024);
    assert_int_equal(tokenizer_bos(b), tokenizer_bos(a));
    check_same_texts(a, b);
    json_t *vectors = json_load_file("golden/tiktoken/vectors.json", 0, NULL), *c;
    const json_t *cases = json_object_get(json_array_get(json_object_get(vectors, "variants"), 0), "cases");
    size_t n;
    json_array_foreach(cases, n, c)
    {
        const char *text = json_string_value(json_array_get(c, 0));
        if (!strstr(text, "[UNK]") && !strstr(text, "[PAD]") && !strstr(text, "reserved_token_1097"))
            check_same_ids(a, b, text, 1);
    }
    assert_true(n > 100);
    json_decref(vectors);
    memset(data = malloc(60001), ' ', 60000);
    data[60000] = 0;
    check_same_ids(a, b, data, 1); /* in slices */
    free(data);
    tokenizer_close(a);
    tokenizer_close(b);
    done(&r);
    change(dir, "tokenizer_config.json", "added_tokens_decoder", "1095", json_pack("{s:s}", "content", "[PAD]"));
    no_tokenizer(dir, "no tokenizer: the tokenizer has tokens beyond the vocabulary of the model");
    remove_dir(dir);
}

TEST(the_file_has_the_ids_of_tekken_json)
{
    static const char *const texts[] = {"Hi, camelCase HTTPServer 2024\n\n  \u00c9T\u00c9 the river was low",
                                        "<s>[INST]Hi[/INST]</s><SPECIAL_20>"};
    char dir[64], path[128], *data;
    size_t size;
    if (!have_tale())
        return;
    tale_with(dir, 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i ? "tokenizer.json" : "tokenizer_config.json");
        assert_int_equal(unlink(path), 0);
    }
    OK(vb_read_file(NULL, "golden/tekken/tekken.json", &data, &size, &err));
    write_file(dir, "tekken.json", data, size);
    vb_free(NULL, data);
    struct result r = quantize(dir, 0);
    if (!r.plan->pre)
        fail_msg("%s", r.plan->notes[0]);
    assert_string_equal(r.plan->pre, "tekken");
    struct vb_tokenizer *a, *b;
    OK(tokenizer_open(&a, dir, NULL, &err));
    OK(tokenizer_open(&b, r.path, NULL, &err));
    for (size_t i = 0; i < COUNT(texts); i++)
        for (int special = 0; special < 2; special++)
            check_same_ids(a, b, texts[i], special);
    assert_true(tokenizer_bos(b) == 1 && tokenizer_add_bos(b));
    tokenizer_close(a);
    tokenizer_close(b);
    done(&r);
    remove_dir(dir);
}

TEST(what_gguf_cannot_say_is_left_out_and_noted)
{
    char dir[64], path[128];
    struct vb_quantize *p;
    if (!have_tale())
        return;
    tale_with(dir, 0);
    change(dir, "tokenizer.json", "", "added_tokens",
           json_pack("[{s:i,s:s,s:b,s:b}]", "id", 1024, "content", "<|more|>", "special", 1, "normalized", 0));
    change(dir, "tokenizer_config.json", "", "bos_token", json_null());
    change(dir, "tokenizer_config.json", "", "eos_token", json_null());
    change(dir, "tokenizer_config.json", "", "add_bos_token", json_false());
    no_tokenizer(dir, "no tokenizer: the tokenizer has tokens beyond the vocabulary of the model");
    change(dir, "tokenizer.json", "", "added_tokens", json_array());
    change(dir, "tokenizer.json", "", "normalizer", json_pack("{s:s}", "type", "NFC"));
    no_tokenizer(dir, "tokenizer.json: the normalizer NFC is not implemented");
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    write_text(dir, "tokenizer.json", "{");
    vb_model *m = open_model(dir);
    REFUSED(gguf_plan_open(&p, m, dir, &as_bf16, &err), VB_BAD_CHECKPOINT, "tokenizer.json: ");
    vb_model_close(m);
    assert_int_equal(unlink(path), 0);
    no_tokenizer(dir, "tokenizer.json: No such file or directory");
    write_text(dir, "tiktoken.model", "");
    no_tokenizer(dir, "tokenizer_config.json: the tokenizer's class");
    remove_dir(dir);
}

static void check_key(const char *path, const char *key, const char *text, int64_t number)
{
    struct gguf *g;
    OK(gguf_open(&g, path, NULL, &err));
    const struct gguf_value *v = gguf_find(g, key);
    struct gguf_text s;
    int64_t n = -1;
    if (text && !(gguf_string(v, &s) && s.size == strlen(text) && !memcmp(s.s, text, s.size)))
        fail_msg("%s is not %s", key, text);
    if (!text && (v ? !gguf_integer(v, &n) : 0))
        fail_msg("%s is no number", key);
    if (!text && n != number)
        fail_msg("%s is %lld, wanted %lld", key, (long long)n, (long long)number);
    gguf_close(g);
}

TEST(special_ids_and_the_template_are_there)
{
    char dir[64];
    if (!have_tale())
        return;
    tale_with(dir, 0);
    struct result r = quantize(dir, 0);
    check_key(r.path, "tokenizer.ggml.bos_token_id", NULL, 0);
    check_key(r.path, "tokenizer.ggml.eos_token_id", NULL, 1);
    check_key(r.path, "tokenizer.ggml.eot_token_id", NULL, -1);
    check_key(r.path, "tokenizer.ggml.padding_token_id", NULL, 1);
    check_key(r.path, "tokenizer.ggml.unknown_token_id", NULL, -1);
    done(&r);
    write_text(dir, "chat_template.jinja", "{{ of a file }}");
    r = quantize(dir, 3); /* 2, 3, 4: the tokenizer's own end is not among them */
    check_key(r.path, "tokenizer.chat_template", "{{ of a file }}", 0);
    check_key(r.path, "tokenizer.ggml.eos_token_id", NULL, 2);
    check_key(r.path, "tokenizer.ggml.eot_token_id", NULL, 3);
    check_key(r.path, "tokenizer.ggml.eom_token_id", NULL, 4);
    assert_int_equal(r.plan->num_notes, 0);
    done(&r);
    change(dir, "tokenizer_config.json", "", "chat_template",
           json_pack("[{s:s,s:s},{s:s,s:s}]", "name", "tool_use", "template", "no", "name", "default", "template",
                     "{{ yes }}"));
    r = quantize(dir, 4);
    check_key(r.path, "tokenizer.chat_template", "{{ yes }}", 0);
    assert_true(noted(&r, "of 4 end tokens the file has 3"));
    done(&r);
    change(dir, "tokenizer_config.json", "", "chat_template", json_string("{{ short }}"));
    change(dir, "tokenizer_config.json", "", "eos_token", json_string("H"));
    struct vb_tokenizer *t;
    OK(tokenizer_open(&t, dir, NULL, &err));
    int end = tokenizer_eos(t);
    tokenizer_close(t);
    change(dir, "generation_config.json", "", "eos_token_id", json_pack("[i,i]", 1, end)); /* the tokenizer's own comes
                                                                                              first */
    r = quantize(dir, 0);
    check_key(r.path, "tokenizer.chat_template", "{{ short }}", 0);
    check_key(r.path, "tokenizer.ggml.eos_token_id", NULL, end);
    check_key(r.path, "tokenizer.ggml.eot_token_id", NULL, 1);
    done(&r);
    remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_has_the_ids_of_the_directory),
        cmocka_unit_test(the_file_has_the_ids_of_tiktoken_model),
        cmocka_unit_test(the_file_has_the_ids_of_tekken_json),
        cmocka_unit_test(how_words_are_cut_is_found_by_trial),
        cmocka_unit_test(what_gguf_cannot_say_is_left_out_and_noted),
        cmocka_unit_test(special_ids_and_the_template_are_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
