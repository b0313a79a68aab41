/* tests/engine/test_interface.c -- what a client asks besides sessions: texts, chat templates, descriptions, lists,
 * GGUF files. verbatim.h is the only header of ours that it includes, as a client's would be. Runs in the repository's
 * root. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/client.h"
#include "tests/support/files.h"

static vb_model *model_of(const char *dir, const vb_model_options *o)
{
    vb_model *m;
    ok(vb_model_open(&m, dir, o, &err));
    return m;
}

static json_t *described(const vb_model *m)
{
    char *text;
    ok(vb_model_describe(m, &text, &err));
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(o);
    vb_text_free(text);
    return o;
}

TEST(a_model_describes_itself)
{
    vb_model *m = model_of("golden/tiny/v3-mtp3",
                           &(vb_model_options){.precision = "q8", .conventions = "concat=hidden-embedding"});
    vb_model_facts facts;
    json_t *o = described(m), *row, *bytes;
    size_t i, parts = 0, all = 0;
    const char *type;
    vb_model_look(m, &facts);
    assert_string_equal(facts.architecture, json_string_value(json_object_get(o, "architecture")));
    assert_string_equal(facts.precision, "q8");
    assert_string_equal(json_string_value(json_object_get(o, "precision")), "q8");
    assert_string_equal(facts.conventions, "concat=hidden-embedding");
    assert_int_equal(facts.mtp_modules, 3);
    assert_int_equal(json_array_size(json_object_get(o, "mtp")), 3);
    assert_true(facts.copied_bytes > 0 && json_integer_value(json_object_get(o, "quantized_bytes")) > 0);
    json_array_foreach(json_object_get(o, "parts"), i, row)
        parts += (size_t)json_integer_value(json_object_get(row, "bytes"));
    json_object_foreach(json_object_get(o, "types"), type, bytes)
        all += (size_t)json_integer_value(bytes);
    assert_int_equal(parts, all); /* every tensor is in one part */
    int layers = 0;
    json_array_foreach(json_object_get(json_object_get(o, "config"), "keys"), i, row)
        if (!strcmp(json_string_value(json_object_get(row, "key")), "num_hidden_layers"))
            layers = atoi(json_string_value(json_object_get(row, "value")));
    assert_int_equal(layers, facts.layers);
    json_decref(o);
    vb_model_close(m);
}

static void count_bytes(void *context, size_t done, size_t total)
{
    size_t *most = context;
    assert_true(done <= total);
    *most = done;
}

TEST(a_check_reads_every_byte)
{
    vb_model *m = model_of("golden/tiny/v3", NULL);
    size_t most = 0;
    ok(vb_model_check(m, count_bytes, &most, &err));
    json_t *o = described(m), *bytes;
    size_t all = 0;
    const char *type;
    json_object_foreach(json_object_get(o, "types"), type, bytes)
        all += (size_t)json_integer_value(bytes);
    assert_int_equal(most, all);
    json_decref(o);
    vb_model_close(m);
}

static int is_sparse(const char *name)
{
    return strstr(name, "index") || !strcmp(name, "mtp-set") || !strcmp(name, "latent-cache");
}

/* Each value of each convention, and each system, opens a model that says so. */
TEST(listed_conventions_are_those_that_a_model_takes)
{
    vb_convention c, c_of_k;
    vb_system s;
    size_t conventions = 0, systems = 0;
    for (size_t i = 0; vb_convention_at(i, &c); i++, conventions++)
        for (int v = 0; v < VB_CONVENTION_VALUES && c.values[v]; v++) {
            char list[128];
            snprintf(list, sizeof list, "%s=%s", c.name, c.values[v]);
            vb_model *m = model_of("golden/tiny/v3", &(vb_model_options){.conventions = list});
            for (size_t k = 0; vb_convention_at(k, &c_of_k); k++) /* of sparse attention, which v3 lacks: -1 */
                assert_int_equal(vb_model_convention(m, k), is_sparse(c_of_k.name) ? -1 : k == i ? v : 0);
            vb_model_close(m);
        }
    for (size_t i = 0; vb_system_at(i, &s); i++, systems++) {
        char as[64];
        vb_model_facts by_name, by_list;
        snprintf(as, sizeof as, "as=%s", s.name);
        vb_model *a = model_of("golden/tiny/v3", &(vb_model_options){.conventions = as});
        vb_model *b = model_of("golden/tiny/v3", &(vb_model_options){.conventions = s.conventions});
        vb_model_look(a, &by_name);
        vb_model_look(b, &by_list);
        assert_string_equal(by_name.conventions, by_list.conventions);
        int changes = 0;
        for (size_t k = 0; vb_convention_at(k, &c); k++)
            changes |= c.changes_output && vb_model_convention(a, k) > 0;
        assert_int_equal(changes, s.changes_output);
        vb_model_close(a);
        vb_model_close(b);
    }
    assert_true(conventions > 5 && systems > 3);
}

TEST(a_chat_template_makes_a_prompt)
{
    char dir[64], *text;
    size_t size;
    vb_tokenizer *t;
    vb_template *chat;
    static const char greeting[] = "[{\"role\":\"user\",\"content\":\"Hello\"}]";
    make_dir(dir);
    write_text(dir, "chat_template.jinja",
               "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<{{ mood "
               "}}>{% endif %}");
    ok(vb_tokenizer_open(&t, "golden/tokenizer", NULL, &err));
    ok(vb_template_open(&chat, dir, NULL, &err));
    ok(vb_template_render(chat, t, greeting, strlen(greeting), 1, "{\"mood\":\"glad\"}", &text, &size, &err));
    assert_string_equal(text, "<user>Hello<glad>");
    assert_int_equal(size, strlen(text));
    vb_text_free(text);
    static const char with_zero[] = "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]"; /* a token may be that
                                                                                          character */
    ok(vb_template_render(chat, t, with_zero, strlen(with_zero), 0, NULL, &text, &size, &err));
    assert_int_equal(size, 9);
    assert_memory_equal(text, "<user>a\0b", 10);
    vb_text_free(text);
    ok(vb_template_render(chat, t, "[]", 2, 0, NULL, &text, &size, &err));
    assert_string_equal(text, "");
    vb_text_free(text);
    refused(vb_template_render(chat, t, "{}", 2, 0, NULL, &text, &size, &err), VB_BAD_ARGUMENT,
            "messages: not an array");
    assert_null(text);
    refused(vb_template_render(chat, t, "[1]", 3, 0, NULL, &text, &size, &err), VB_BAD_ARGUMENT, "message 0");
    refused(vb_template_render(chat, t, "[", 1, 0, NULL, &text, &size, &err), VB_BAD_ARGUMENT, "messages: line 1");
    refused(vb_template_render(chat, t, "[]", 2, 0, "[]", &text, &size, &err), VB_BAD_ARGUMENT,
            "template variables: not a JSON object");
    refused(vb_template_render(chat, t, "[]", 2, 0, "?", &text, &size, &err), VB_BAD_ARGUMENT,
            "template variables: line 1");
    vb_template_close(chat);
    vb_tokenizer_close(t);
    remove_dir(dir);
    refused(vb_template_open(&chat, "golden/tokenizer", NULL, &err), VB_IO, "there is no chat template");
}

TEST(special_tokens_can_be_plain_text)
{
    vb_tokenizer *t;
    int32_t one[64], many[64];
    size_t ones, manys, size;
    ok(vb_tokenizer_open(&t, "golden/tokenizer", NULL, &err));
    int32_t bos = vb_bos_token(t);
    assert_in_range(bos, 0, vb_tokenizer_size(t) - 1);
    const char *piece = vb_piece(t, bos, &size);
    ok(vb_encode(t, piece, size, one, 64, &ones, &err));
    ok(vb_encode_plain(t, piece, size, many, 64, &manys, &err));
    assert_int_equal(ones, 1);
    assert_int_equal(one[0], bos);
    assert_true(manys > 1);
    vb_tokenizer_close(t);
}

TEST(pieces_of_characters_become_characters)
{
    static const char text[] = "a\xc3\xa4\xe2\x82\xac\xf0\x9f\x8c\xb2";
    vb_utf8 stream = {0};
    char out[64], all[64] = "";
    for (size_t i = 0; text[i]; i++) {
        size_t n = vb_utf8_push(&stream, text + i, 1, out);
        assert_int_equal(vb_utf8_valid(out, n), n); /* whole ones only */
        strncat(all, out, n);
    }
    assert_int_equal(vb_utf8_finish(&stream, out), 0);
    assert_string_equal(all, text);
    assert_int_equal(vb_utf8_push(&stream, "\xf0\x9f", 2, out), 0);
    assert_int_equal(vb_utf8_finish(&stream, out), 3);
    assert_memory_equal(out, "\xef\xbf\xbd", 3);
    assert_int_equal(vb_utf8_push(&stream, "b", 1, out), 1); /* it began anew */
    assert_int_equal(vb_utf8_valid("ab\xff", 3), 2);
}

static uint64_t fingerprint_of(const char *dir, const char *precision)
{
    static const int32_t prompt[] = {5, 6, 7, 8};
    vb_model *m = model_of(dir, &(vb_model_options){.precision = precision});
    vb_session *s;
    vb_result r;
    ok(vb_session_open(&s, m, &(vb_session_options){.context = 20}, &err));
    ok(vb_append(s, prompt, 4, &err));
    ok(vb_generate(s, &(vb_generate_options){.max_tokens = 10, .ignore_eos = 1, .fingerprint = 1}, &r, &err));
    vb_session_close(s);
    vb_model_close(m);
    return r.fingerprint;
}

TEST(a_model_becomes_a_file_of_the_size_and_types_that_were_planned)
{
    char dir[64], path[128];
    vb_quantize *q;
    vb_quantized_tensor t;
    size_t bytes = 0, blocks = 0;
    make_dir(dir);
    snprintf(path, sizeof path, "%s/q.gguf", dir);
    vb_model *m = model_of("golden/tiny/v3", NULL);
    ok(vb_quantize_open(&q, m, "golden/tiny/v3", &(vb_quantize_options){.type = "q8_0"}, &err));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    ok(vb_quantize_write(q, fd, path, 1, NULL, NULL, &err));
    assert_int_equal(lseek(fd, 0, SEEK_END), vb_quantize_bytes(q));
    close(fd);
    for (size_t i = 0; vb_quantize_tensor(q, i, &t); i++) {
        bytes += t.bytes;
        blocks += !strcmp(t.type, "Q8_0");
        assert_in_range(t.ndim, 1, 3);
    }
    assert_true(blocks > 0 && bytes < vb_quantize_bytes(q));
    vb_quantize_close(q);
    assert_true(fingerprint_of(path, NULL) == fingerprint_of("golden/tiny/v3", "q8"));
    refused(vb_quantize_open(&q, m, "golden/tiny/v3", &(vb_quantize_options){.type = "q9"}, &err), VB_BAD_ARGUMENT,
            "type is q9");
    refused(vb_quantize_open(&q, m, "golden/tiny/v3", &(vb_quantize_options){0}, &err), VB_BAD_ARGUMENT,
            "type is missing");
    refused(vb_quantize_open(&q, m, "golden/tiny/v3", &(vb_quantize_options){.type = "f32", .head_type = "x"}, &err),
            VB_BAD_ARGUMENT, "head type is x");
    assert_null(q);
    vb_model_close(m);
    remove_dir(dir);
}

TEST(draft_methods_say_what_they_need_and_how_long_they_draft)
{
    vb_model *with = model_of("golden/tiny/v3-mtp3", NULL), *without = model_of("golden/tiny/v2-lite", NULL);
    vb_draft_method method;
    int version;
    ok(vb_draft_method_find(&method, "eagle3", &err));
    assert_string_equal(method.name, "eagle3");
    assert_true(method.needs_head && method.trees && method.keeps_state && !method.by_history);
    ok(vb_draft_method_find(&method, "eagle-reroll", &err));
    assert_true(method.by_history);
    ok(vb_draft_method_find(&method, "ngram", &err));
    assert_false(method.keeps_state);
    ok(vb_draft_method_find(&method, "none", &err));
    assert_null(method.name);
    refused(vb_draft_method_find(&method, "guess", &err), VB_BAD_ARGUMENT,
            "unknown draft method guess; known are none, mtp-vanilla");
    assert_null(method.name);

    ok(vb_draft_check(with, &(vb_drafting){.method = "mtp-eagle"}, &err));
    ok(vb_draft_check(without, &(vb_drafting){0}, &err));
    refused(vb_draft_check(without, &(vb_drafting){.method = "mtp-eagle"}, &err), VB_BAD_ARGUMENT,
            "has no MTP modules");
    refused(vb_draft_check(with, &(vb_drafting){.method = "draft-model"}, &err), VB_BAD_ARGUMENT,
            "wants a draft model");
    refused(vb_draft_check(with, &(vb_drafting){.method = "ngram", .settings = "n=1"}, &err), VB_BAD_ARGUMENT,
            "unknown setting n=1");

    assert_int_equal(vb_draft_tokens(with, &(vb_drafting){.method = "mtp-vanilla"}), 3);
    assert_int_equal(vb_draft_tokens(with, &(vb_drafting){.method = "mtp-vanilla", .automatic = 1}), 3);
    assert_int_equal(vb_draft_tokens(with, &(vb_drafting){.method = "mtp-eagle", .automatic = 1}), VB_MAX_DRAFT);
    assert_int_equal(vb_draft_tokens(with, &(vb_drafting){.method = "mtp-eagle", .tokens = 7}), 7);
    assert_int_equal(vb_draft_tokens(with, &(vb_drafting){.method = "mtp-eagle", .tokens = -1}), 0);
    assert_int_equal(vb_draft_tokens(without, &(vb_drafting){.method = "ngram"}), 3);
    assert_int_equal(vb_draft_tokens(with, &(vb_drafting){.tokens = 7}), 0);

    ok(vb_draft_head(&version, "golden/eagle/eagle1-v3", &err));
    assert_int_equal(version, 1);
    ok(vb_draft_head(&version, "golden/eagle/eagle3-v3", &err));
    assert_int_equal(version, 3);
    ok(vb_draft_head(&version, "golden/heads/parallel-v3", &err));
    assert_int_equal(version, VB_PARALLEL_HEADS);
    ok(vb_draft_head(&version, "golden/tiny/v3", &err));
    assert_int_equal(version, 0);
    vb_model_close(with);
    vb_model_close(without);
}

TEST(a_session_opens_on_each_instruction_set_that_is_listed_and_on_no_other)
{
    static const char *const names[] = {"scalar", "avx2", "avx512", "neon"};
    vb_model *m = model_of("golden/tiny/v3", NULL);
    vb_session *s;
    size_t count = 0, found = 0;
    while (vb_isa(count))
        count++;
    assert_string_equal(vb_isa(count - 1), "scalar");
    for (size_t n = 0; n < 4; n++) {
        vb_session_options o = {.context = 8, .threads = 1, .isa = names[n]};
        size_t times = 0;
        for (size_t i = 0; i < count; i++)
            times += !strcmp(vb_isa(i), names[n]);
        assert_true(times <= 1);
        found += times;
        if (times)
            ok(vb_session_open(&s, m, &o, &err)), vb_session_close(s);
        else
            refused(vb_session_open(&s, m, &o, &err), VB_BAD_ARGUMENT, "this CPU lacks");
    }
    assert_int_equal(found, count);
    vb_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_describes_itself),
        cmocka_unit_test(a_check_reads_every_byte),
        cmocka_unit_test(listed_conventions_are_those_that_a_model_takes),
        cmocka_unit_test(a_chat_template_makes_a_prompt),
        cmocka_unit_test(special_tokens_can_be_plain_text),
        cmocka_unit_test(pieces_of_characters_become_characters),
        cmocka_unit_test(a_model_becomes_a_file_of_the_size_and_types_that_were_planned),
        cmocka_unit_test(draft_methods_say_what_they_need_and_how_long_they_draft),
        cmocka_unit_test(a_session_opens_on_each_instruction_set_that_is_listed_and_on_no_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
