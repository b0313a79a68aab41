/* tests/engine/test_tiktoken.c -- tokenizers in tiktoken's format and in Mistral's (tekken.json). Truth:
 * golden/tiktoken, made by the `tiktoken` package as the Python code of Kimi-K2 and Moonlight calls it, and
 * golden/tekken, made by mistral-common. Runs in the repository's root. */
#include "engine/text/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "tests/support/files.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define DIR "golden/tiktoken"
#define TEKKEN "golden/tekken"
#define KIMI "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_kimi.TikTokenTokenizer\",null]}}"

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

struct text {
    char *s;
    size_t n, room;
};

static void add(struct text *t, const char *s, size_t n)
{
    if (t->n + n + 1 > t->room) {
        t->room = 2 * (t->n + n + 1);
        t->s = realloc(t->s, t->room);
        assert_non_null(t->s);
    }
    memcpy(t->s + t->n, s, n);
    t->s[t->n += n] = 0;
}

static void say(struct text *t, const char *s) { add(t, s, strlen(s)); }

static json_t *read_json(const char *path, size_t flags)
{
    json_error_t why;
    json_t *root = json_load_file(path, flags, &why);
    if (!root)
        fail_msg("%s", why.text);
    return root;
}

static json_t *read_vectors(void) { return read_json(DIR "/vectors.json", 0); }

static struct text read_text(const char *path)
{
    struct text t = {0};
    vb_error err;
    char *data;
    size_t size;
    if (vb_read_file(NULL, path, &data, &size, &err))
        fail_msg("%s", err.message);
    add(&t, data, size);
    vb_free(NULL, data);
    return t;
}

static struct vb_tokenizer *parse(const char *ranks, const char *config)
{
    struct vb_tokenizer *t;
    vb_error err;
    if (tokenizer_parse_tiktoken(&t, ranks, strlen(ranks), config, strlen(config), "tiktoken.model", NULL, &err))
        fail_msg("%s", err.message);
    return t;
}

static void say_line(struct text *t, const unsigned char *bytes, size_t n, long rank)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned bits = bytes[i] << 16u | (i + 1 < n ? bytes[i + 1] << 8u : 0) | (i + 2 < n ? bytes[i + 2] : 0u);
        char four[4] = {digit[bits >> 18], digit[bits >> 12 & 63], i + 1 < n ? digit[bits >> 6 & 63] : '=',
                        i + 2 < n ? digit[bits & 63] : '='};
        add(t, four, 4);
    }
    char end[24];
    snprintf(end, sizeof end, " %ld\n", rank);
    say(t, end);
}

static struct text all_bytes(void)
{
    struct text t = {0};
    for (int b = 0; b < 256; b++)
        say_line(&t, (const unsigned char[]){(unsigned char)b}, 1, b);
    return t;
}

static void check_ids(const struct vb_tokenizer *t, const char *text, int special, const json_t *want, const char *what)
{
    int32_t *ids;
    size_t n;
    vb_error err;
    if (tokenizer_encode(t, text, strlen(text), special, &ids, &n, &err))
        fail_msg("%s: %s", what, err.message);
    int same = n == json_array_size(want);
    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(want, i));
    size_t at = 0, length;
    for (size_t i = 0; same && i < n; i++, at += length) { /* pieces put together are the text again */
        const char *piece = tokenizer_piece(t, ids[i], &length);
        assert_true(piece && length <= strlen(text) - at && !memcmp(piece, text + at, length));
    }
    assert_true(!same || at == strlen(text));
    if (!same) {
        char *dump = json_dumps(want, JSON_COMPACT);
        print_error("%s, special tokens %s: \"%.200s\"\nwanted %.300s\n   got ", what,
                    special ? "recognised" : "as text", text, dump);
        for (size_t i = 0; i < n && i < 60; i++)
            print_error("%s%d", i ? "," : "[", ids[i]);
        print_error("]\n");
        free(dump);
        fail();
    }
    vb_free(NULL, ids);
}

/* The FNV-1a of a text's ids, as the golden script has it. */
static void check_hash(const struct vb_tokenizer *t, const struct text *text, int special, json_int_t want_n,
                       const char *want, const char *what)
{
    int32_t *ids;
    size_t n;
    vb_error err;
    char got[20];
    uint64_t h = 14695981039346656037u;
    if (tokenizer_encode(t, text->s, text->n, special, &ids, &n, &err))
        fail_msg("%s: %s", what, err.message);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)ids[i]) * 1099511628211u;
    snprintf(got, sizeof got, "%016llx", (unsigned long long)h);
    if (strcmp(got, want) || (want_n >= 0 && (json_int_t)n != want_n))
        fail_msg("%s: %zu ids with hash %s, wanted %lld with %s", what, n, got, (long long)want_n, want);
    vb_free(NULL, ids);
}

/* tiktoken.model with other ranks. */
static struct text reordered(const struct text *ranks, const json_t *order)
{
    struct text t = {0};
    const char *line = ranks->s;
    for (size_t i = 0; i < json_array_size(order); i++) {
        char end[24];
        const char *space = strchr(line, ' ');
        add(&t, line, (size_t)(space - line));
        /* other ends of lines, too */
        snprintf(end, sizeof end, " %lld\r\n\n", (long long)json_integer_value(json_array_get(order, i)));
        say(&t, end);
        line = strchr(space, '\n') + 1;
    }
    return t;
}

/* ---- against outside truth --------------------------------------------------------------------------------------- */

/* Of a trained table and of ranks that no training gives: parts that come after what is made of them, bytes last. */
TEST(ids_are_those_of_tiktoken_whatever_the_ranks)
{
    json_t *vectors = read_vectors(), *variant;
    struct text ranks = read_text(DIR "/tiktoken.model"), config = read_text(DIR "/tokenizer_config.json");
    size_t v, i, cases = 0;
    json_array_foreach(json_object_get(vectors, "variants"), v, variant)
    {
        const char *name = json_string_value(json_object_get(variant, "name"));
        const json_t *order = json_object_get(variant, "order"), *c;
        struct text other = json_is_null(order) ? (struct text){0} : reordered(&ranks, order);
        struct vb_tokenizer *t = parse(other.s ? other.s : ranks.s, config.s);
        json_array_foreach(json_object_get(variant, "cases"), i, c)
        {
            const json_t *plain = json_array_get(c, 2);
            const char *text = json_string_value(json_array_get(c, 0));
            check_ids(t, text, 1, json_array_get(c, 1), name);
            check_ids(t, text, 0, json_is_null(plain) ? json_array_get(c, 1) : plain, name);
            cases++;
        }
        tokenizer_close(t);
        free(other.s);
    }
    assert_true(v == 3 && cases > 300);
    free(ranks.s);
    free(config.s);
    json_decref(vectors);
}

TEST(long_texts_are_cut_where_the_python_code_cuts_them)
{
    json_t *vectors = read_vectors(), *c;
    struct vb_tokenizer *t;
    vb_error err;
    size_t i;
    assert_int_equal(tokenizer_open(&t, DIR, NULL, &err), VB_OK);
    json_array_foreach(json_object_get(vectors, "long"), i, c)
    {
        const json_t *part;
        struct text text = {0};
        char what[40];
        size_t k;
        json_array_foreach(json_array_get(c, 0), k, part)
            for (json_int_t times = json_integer_value(json_array_get(part, 1)); times; times--)
                say(&text, json_string_value(json_array_get(part, 0)));
        snprintf(what, sizeof what, "long text %zu", i);
        check_hash(t, &text, 1, json_integer_value(json_array_get(c, 1)), json_string_value(json_array_get(c, 2)),
                   what);
        free(text.s);
    }
    assert_true(i > 5);
    tokenizer_close(t);
    json_decref(vectors);
}

static void put_character(char *out, uint32_t c)
{
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[more] | c >> 6 * more);
    for (int i = 1; i <= more; i++)
        out[i] = (char)(0x80 | (c >> 6 * (more - i) & 0x3f));
    out[more + 1] = 0;
}

/* All pairs of bytes are tokens: where a word begins decides which are joined. */
TEST(every_character_is_cut_as_tiktoken_cuts_it)
{
    json_t *vectors = read_vectors(), *block;
    struct text ranks = all_bytes();
    size_t i;
    for (int pair = 0; pair < 65536; pair++)
        say_line(&ranks, (const unsigned char[]){(unsigned char)(pair >> 8), (unsigned char)pair}, 2, 256 + pair);
    struct vb_tokenizer *t = parse(ranks.s, KIMI);
    json_array_foreach(json_object_get(vectors, "characters"), i, block)
    {
        uint32_t first = (uint32_t)json_integer_value(json_array_get(block, 0)),
                 step = (uint32_t)json_integer_value(json_array_get(block, 1));
        struct text text = {0};
        char what[32];
        for (uint32_t c = first ? first : 1; c < first + 4096 * step && c < 0x110000; c += step) {
            char s[5], all[64];
            if (c >= 0xd800 && c < 0xe000)
                continue;
            put_character(s, c);
            snprintf(all, sizeof all, "aB%sb%s%sA %s1%s's\n%s", s, s, s, s, s, s);
            say(&text, all);
        }
        snprintf(what, sizeof what, "characters from U+%04X", first);
        if (text.n)
            check_hash(t, &text, 0, -1, json_string_value(json_array_get(block, 2)), what);
        free(text.s);
    }
    assert_true(i > 30);
    tokenizer_close(t);
    free(ranks.s);
    json_decref(vectors);
}

/* ---- what a directory says --------------------------------------------------------------------------------------- */

TEST(a_directory_names_its_special_tokens_and_the_rest_are_reserved)
{
    struct vb_tokenizer *t;
    vb_error err;
    size_t size;
    assert_int_equal(tokenizer_open(&t, DIR, NULL, &err), VB_OK);
    int32_t n = tokenizer_bos(t); /* the first behind the ranks */
    assert_int_equal(tokenizer_eos(t), n + 1);
    assert_int_equal(tokenizer_add_bos(t), 0);
    assert_int_equal(tokenizer_size(t), n + 258);
    assert_false(tokenizer_is_special(t, n - 1));
    for (int32_t id = n; id < n + 258; id++)
        assert_true(tokenizer_is_special(t, id));
    const char *piece = tokenizer_piece(t, n + 22, &size);
    assert_true(size == 7 && !memcmp(piece, "<think>", 7));
    char want[40];
    snprintf(want, sizeof want, "<|reserved_token_%d|>", n + 257);
    piece = tokenizer_piece(t, n + 257, &size);
    assert_true(size == strlen(want) && !memcmp(piece, want, size));
    for (int32_t id = 0; id < n; id++)
        assert_non_null(tokenizer_piece(t, id, &size));
    tokenizer_close(t);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refused(const char *ranks, size_t size, const char *config, int code, const char *want)
{
    struct vb_tokenizer *t;
    vb_error err = {0};
    int rc = tokenizer_parse_tiktoken(&t, ranks, size, config, strlen(config), "t.model", NULL, &err);
    if (rc != code || t || !strstr(err.message, want) || strchr(err.message, '\n'))
        fail_msg("%d \"%s\", wanted %d \"%s\"", rc, err.message, code, want);
}

TEST(ranks_that_are_wrong_are_told_in_one_sentence)
{
    static const struct {
        const char *line, *want;
    } cases[] = {
        {"YWI=", "t.model: line 257 is not a token in base64, a space and its rank"},
        {"YWI= ", "line 257 is not"},
        {" 256", "line 257 is not"},
        {"YWI 256", "line 257 is not"},
        {"YW*= 256", "line 257 is not"},
        {"YWJ= 256", "line 257 is not"},
        {"Y=== 256", "line 257 is not"},
        {"YWI=YWI= 256", "line 257 is not"},
        {"==== 256", "line 257 is not"},
        {"YWI=  256", "line 257 is not"},
        {"YWI= -1", "line 257 is not"},
        {"YWI= 2x6", "line 257 is not"},
        {"YWI= 256 1", "line 257 is not"},
        {"YWI= 9999999999", "line 257 is not"},
        {"\xff\xfe\x80\x81 256", "line 257 is not"},
        {"{\"a\": 1}", "line 257 is not"},
        {"YWI= 300", "line 257 has rank 300, but 257 tokens have the ranks 0 to 256"},
        {"YWI= 7", "line 257 has rank 7, which another line has"},
        {"YQ== 256", "line 257 has the token of rank 97 once more"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct text ranks = all_bytes();
        say(&ranks, cases[i].line);
        say(&ranks, "\n");
        refused(ranks.s, ranks.n, KIMI, VB_BAD_CHECKPOINT, cases[i].want);
        free(ranks.s);
    }
    struct text ranks = all_bytes();
    add(&ranks, "YW\0= 256", 8);
    refused(ranks.s, ranks.n, KIMI, VB_BAD_CHECKPOINT, "line 257 is not");
    ranks.n = 0;
    refused("", 0, KIMI, VB_BAD_CHECKPOINT, "t.model: there is no token for byte 0x00");
    for (int b = 0; b < 256; b++)
        if (b != 0x41)
            say_line(&ranks, (const unsigned char[]){(unsigned char)b}, 1, b - (b > 0x41));
    refused(ranks.s, ranks.n, KIMI, VB_BAD_CHECKPOINT, "t.model: there is no token for byte 0x41");
    free(ranks.s);
}

TEST(a_token_of_enormous_length_is_refused_and_one_of_a_thousand_bytes_is_not)
{
    struct text ranks = all_bytes();
    unsigned char bytes[1026] = {0};
    size_t keep = ranks.n, n;
    int32_t *ids;
    vb_error err;
    say_line(&ranks, bytes, 1023, 256);
    struct vb_tokenizer *t = parse(ranks.s, KIMI);
    assert_int_equal(tokenizer_encode(t, (const char *)bytes, 1023, 1, &ids, &n, &err), VB_OK);
    assert_true(n == 1 && ids[0] == 256);
    vb_free(NULL, ids);
    tokenizer_close(t);
    ranks.n = keep;
    say_line(&ranks, bytes, 1026, 256);
    refused(ranks.s, ranks.n, KIMI, VB_UNSUPPORTED, "t.model: line 257 has a token of more than 1023 bytes");
    free(ranks.s);
}

#define WITH(rest) "{\"auto_map\":{\"AutoTokenizer\":\"a/b--tokenization_moonshot.TikTokenTokenizer\"}," rest "}"

TEST(a_config_that_is_wrong_or_of_other_code_is_told_in_one_sentence)
{
    static const struct {
        const char *config;
        int code;
        const char *want;
    } cases[] = {
        {"{}", VB_UNSUPPORTED,
         "tokenizer_config.json: the tokenizer's class (auto_map or tokenizer_class) is \"\"; how words are cut is "
         "known for "},
        {"{\"tokenizer_class\":\"GPT2Tokenizer\"}", VB_UNSUPPORTED, "is \"GPT2Tokenizer\""},
        {"{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_qwen.QWenTokenizer\",null]},\"tokenizer_class\":"
         "\"TikTokenTokenizer\"}",
         VB_UNSUPPORTED, "is \"tokenization_qwen.QWenTokenizer\""},
        {"{\"auto_map\":{\"AutoTokenizer\":[null]}}", VB_UNSUPPORTED, "is \"\""},
        {"[1]", VB_BAD_CHECKPOINT, "tokenizer_config.json: not a JSON object"},
        {"{\"a\"", VB_BAD_CHECKPOINT, "tokenizer_config.json: line 1, column "},
        {WITH("\"bos_token\":\"<s>\""), VB_BAD_CHECKPOINT, "bos_token is \"<s>\", which is no token"},
        {WITH("\"added_tokens_decoder\":[]"), VB_BAD_CHECKPOINT,
         "tokenizer_config.json: added_tokens_decoder is not an object"},
        {WITH("\"added_tokens_decoder\":{\"x\":{\"content\":\"a\"}}"), VB_BAD_CHECKPOINT,
         "added_tokens_decoder.x is not an id with a content"},
        {WITH("\"added_tokens_decoder\":{\"-300\":{\"content\":\"a\"}}"), VB_BAD_CHECKPOINT,
         "added_tokens_decoder.-300 is not"},
        {WITH("\"added_tokens_decoder\":{\"300\":{\"content\":\"\"}}"), VB_BAD_CHECKPOINT,
         "added_tokens_decoder.300 is not"},
        {WITH("\"added_tokens_decoder\":{\"300\":\"a\"}"), VB_BAD_CHECKPOINT, "added_tokens_decoder.300 is not"},
        {WITH("\"added_tokens_decoder\":{\"255\":{\"content\":\"a\"}}"), VB_BAD_CHECKPOINT,
         "tokenizer_config.json: added token \"a\" has id 255, wanted 256 to 513, behind the ranks"},
        {WITH("\"added_tokens_decoder\":{\"99999999999999999999\":{\"content\":\"a\"}}"), VB_BAD_CHECKPOINT,
         "added token \"a\" has id 9999"},
        {WITH("\"added_tokens_decoder\":{\"300\":{\"content\":\"a\"}}"), VB_BAD_CHECKPOINT,
         "added token \"a\" has id 300, the vocabulary says 97"},
        {WITH("\"added_tokens_decoder\":{\"300\":{\"content\":\"<x>\"},\"301\":{\"content\":\"<x>\"}}"),
         VB_BAD_CHECKPOINT, "added token \"<x>\" is there twice"},
    };
    struct text ranks = all_bytes();
    for (size_t i = 0; i < COUNT(cases); i++)
        refused(ranks.s, ranks.n, cases[i].config, cases[i].code, cases[i].want);
    tokenizer_close(parse(ranks.s, "{\"tokenizer_class\":\"TikTokenTokenizer\"}"));
    tokenizer_close(parse(ranks.s, WITH("\"added_tokens_decoder\":{\"300\":{\"content\":\"<x>\"}}")));
    free(ranks.s);
}

/* ---- tekken.json ------------------------------------------------------------------------------------------------- */

/* mistral-common never reads special tokens in a text. */
TEST(ids_of_tekken_json_are_those_of_mistral_common)
{
    json_t *vectors = read_json(TEKKEN "/vectors.json", 0), *c;
    struct vb_tokenizer *t;
    vb_error err;
    size_t i, size;
    if (tokenizer_open(&t, TEKKEN, NULL, &err))
        fail_msg("%s", err.message);
    assert_int_equal(tokenizer_size(t), json_integer_value(json_object_get(vectors, "size")));
    assert_int_equal(tokenizer_bos(t), json_integer_value(json_object_get(vectors, "bos")));
    assert_int_equal(tokenizer_eos(t), json_integer_value(json_object_get(vectors, "eos")));
    assert_true(tokenizer_add_bos(t));
    json_array_foreach(json_object_get(vectors, "cases"), i, c)
        check_ids(t, json_string_value(json_array_get(c, 0)), 0, json_array_get(c, 1), "tekken");
    assert_true(i > 100);
    json_array_foreach(json_object_get(vectors, "pieces"), i, c)
    {
        const char *name = json_string_value(json_array_get(c, 1));
        int32_t id = (int32_t)json_integer_value(json_array_get(c, 0));
        const char *piece = tokenizer_piece(t, id, &size);
        assert_true(piece && size == strlen(name) && !memcmp(piece, name, size) && tokenizer_is_special(t, id));
        json_t *alone = json_pack("[O]", json_array_get(c, 0));
        check_ids(t, name, 1, alone, "a special token");
        json_decref(alone);
    }
    assert_int_equal(i, 5);
    tokenizer_close(t);
    json_decref(vectors);
}

/* Sets the value at a path such as "config/pattern" or "vocab/300/rank"; '...' stands for "...", "" removes it. */
static void set(json_t *root, const char *path, const char *value)
{
    char key[64], text[64];
    const char *slash = strchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : strlen(path);
    snprintf(key, sizeof key, "%.*s", (int)n, path);
    if (slash) {
        json_t *inner = json_is_array(root) ? json_array_get(root, strtoul(key, NULL, 10)) : json_object_get(root, key);
        assert_non_null(inner);
        set(inner, slash + 1, value);
        return;
    }
    snprintf(text, sizeof text, "%s", value);
    for (char *s = text; *s; s++)
        *s = *s == '\'' ? '"' : *s;
    json_t *new = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_int_equal(!new, !*value);
    assert_int_equal(new ? json_object_set_new(root, key, new) : json_object_del(root, key), 0);
}

static int parse_tekken(json_t *root, vb_error *err)
{
    struct vb_tokenizer *t;
    char *text = json_dumps(root, JSON_COMPACT);
    int rc = tokenizer_parse_tekken(&t, text, strlen(text), "tekken.json", NULL, err);
    assert_int_equal(!t, rc != 0);
    tokenizer_close(t);
    free(text);
    return rc;
}

TEST(a_wrong_tekken_json_is_told_in_one_sentence)
{
    static const struct {
        const char *path, *value;
        int code;
        const char *want;
    } cases[] = {
        {"config/version", "'v99'", VB_OK, ""},
        {"config/pattern", "'[^ ]+|\\\\$|[$^]'", VB_OK, ""},
        {"config", "[]", VB_BAD_CHECKPOINT, "tekken.json: there is no config"},
        {"config/pattern", "", VB_BAD_CHECKPOINT, "config.pattern is no string"},
        {"config/pattern", "'a\\u0000b'", VB_BAD_CHECKPOINT, "config.pattern is no string"},
        {"config/pattern", "'[^ ]+|a$'", VB_UNSUPPORTED, "config.pattern has a $, which is not implemented"},
        {"config/pattern", "'^a'", VB_UNSUPPORTED, "config.pattern has a ^"},
        {"config/pattern", "'\\\\w+'", VB_UNSUPPORTED, "uses \\w, which is not implemented"},
        {"config/default_vocab_size", "", VB_BAD_CHECKPOINT,
         "config.default_vocab_size is missing, wanted 1 to 16777216"},
        {"config/default_vocab_size", "300.0", VB_BAD_CHECKPOINT, "config.default_vocab_size is 300.0"},
        {"config/default_vocab_size", "293", VB_BAD_CHECKPOINT,
         "default_vocab_size is 293 with 20 special tokens, and vocab has 272 tokens"},
        {"config/default_vocab_size", "20", VB_BAD_CHECKPOINT, "default_vocab_size is 20 with 20 special tokens"},
        {"config/default_vocab_size", "200", VB_BAD_CHECKPOINT, "there is no token for byte 0xB4"},
        {"config/default_num_special_tokens", "0", VB_BAD_CHECKPOINT, "config.default_num_special_tokens is 0"},
        {"config/default_num_special_tokens", "1e20", VB_BAD_CHECKPOINT, "default_num_special_tokens is 1e20"},
        {"vocab", "{}", VB_BAD_CHECKPOINT, "vocab has 0 tokens"},
        {"vocab/260/rank", "261", VB_BAD_CHECKPOINT,
         "tekken.json: vocab entry 260 is not an object with its own index as rank, and token_bytes in base64"},
        {"vocab/260/token_bytes", "7", VB_BAD_CHECKPOINT, "vocab entry 260 is not an object"},
        {"vocab/260/token_bytes", "'YW*='", VB_BAD_CHECKPOINT, "vocab entry 260 is not an object"},
        {"vocab/260/token_bytes", "''", VB_BAD_CHECKPOINT, "vocab entry 260 is not an object"},
        {"vocab/260/token_bytes", "'YQ=='", VB_BAD_CHECKPOINT, "vocab entry 260 has the token of rank 97 once more"},
        {"special_tokens", "null", VB_UNSUPPORTED,
         "there are no special_tokens; only files that list them are supported"},
        {"special_tokens", "[]", VB_BAD_CHECKPOINT, "<s> or </s> is missing in special_tokens"},
        {"special_tokens/2/rank", "3", VB_BAD_CHECKPOINT, "special_tokens[2] has not the rank 2 and a token_str"},
        {"special_tokens/2/token_str", "''", VB_BAD_CHECKPOINT, "special_tokens[2] has not"},
        {"special_tokens/0/token_str", "'<s>'", VB_BAD_CHECKPOINT, "added token \"<s>\" is there twice"},
        {"special_tokens/3/token_str", "'<SPECIAL_19>'", VB_BAD_CHECKPOINT,
         "added token \"<SPECIAL_19>\" is there twice"},
        {"special_tokens/2/token_str", "'<eos>'", VB_BAD_CHECKPOINT, "<s> or </s> is missing"},
        {"config/default_num_special_tokens", "18", VB_BAD_CHECKPOINT,
         "there are 19 special_tokens, default_num_special_tokens is 18"},
    };
    vb_error err;
    struct vb_tokenizer *t;
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *root = read_json(TEKKEN "/fuzz.seed", JSON_ALLOW_NUL);
        set(root, cases[i].path, cases[i].value);
        err.message[0] = 0;
        int rc = parse_tekken(root, &err);
        if (rc != cases[i].code || !strstr(err.message, cases[i].want) || strchr(err.message, '\n'))
            fail_msg("%s = %s: %d \"%s\", wanted %d \"%s\"", cases[i].path, cases[i].value, rc, err.message,
                     cases[i].code, cases[i].want);
        json_decref(root);
    }
    assert_int_equal(tokenizer_parse_tekken(&t, "[1]", 3, "tekken.json", NULL, &err), VB_BAD_CHECKPOINT);
    assert_string_equal(err.message, "tekken.json: not a JSON object");
    assert_int_equal(tokenizer_parse_tekken(&t, "{\"a\"", 4, "tekken.json", NULL, &err), VB_BAD_CHECKPOINT);
    assert_non_null(strstr(err.message, "tekken.json: line 1, column "));
}

/* ---- memory that runs out ---------------------------------------------------------------------------------------- */

static void fail_each(const char *dir)
{
    struct counted f = {.fail = 0};
    vb_allocator a = {counted_alloc, counted_free, &f};
    struct vb_tokenizer *t;
    vb_error err;
    int rc = VB_NO_MEMORY;
    for (; rc; f.fail++) {
        f.requests = 0;
        rc = tokenizer_open(&t, dir, &a, &err);
        if (rc ? rc != VB_NO_MEMORY || t || f.alive : f.requests > f.fail)
            fail_msg("allocation %ld of opening failed: rc %d, %ld blocks left, \"%s\"", f.fail, rc, f.alive,
                     err.message);
    }
    assert_true(f.fail > 20);
    tokenizer_close(t);
    assert_int_equal(f.alive, 0);
}

TEST(each_allocation_that_fails_is_told_and_nothing_leaks)
{
    fail_each(DIR);
    fail_each(TEKKEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_tiktoken_whatever_the_ranks),
        cmocka_unit_test(long_texts_are_cut_where_the_python_code_cuts_them),
        cmocka_unit_test(every_character_is_cut_as_tiktoken_cuts_it),
        cmocka_unit_test(a_directory_names_its_special_tokens_and_the_rest_are_reserved),
        cmocka_unit_test(ranks_that_are_wrong_are_told_in_one_sentence),
        cmocka_unit_test(a_token_of_enormous_length_is_refused_and_one_of_a_thousand_bytes_is_not),
        cmocka_unit_test(a_config_that_is_wrong_or_of_other_code_is_told_in_one_sentence),
        cmocka_unit_test(ids_of_tekken_json_are_those_of_mistral_common),
        cmocka_unit_test(a_wrong_tekken_json_is_told_in_one_sentence),
        cmocka_unit_test(each_allocation_that_fails_is_told_and_nothing_leaks),
    };
    return cmocka_run_group_tests_name("tiktoken", tests, NULL, NULL);
}
