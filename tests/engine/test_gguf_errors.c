/* tests/engine/test_gguf_errors.c -- GGUF files that are wrong: each is one sentence, compared word for word, and does
 * no harm. */
#include "tests/support/engine_support.h"

#include "engine/files/gguf.h"
#include "engine/text/tokenizer.h"
#include "tests/support/gguf.h"

/* ---- headers ---- */

/* Bytes in hexadecimal or as text between quotes: 'GGUF' 03000000 ... */
static struct bytes from_hex(const char *s)
{
    struct bytes b = {0};
    while (*s) {
        if (*s == ' ') {
            s++;
        } else if (*s == '\'') {
            const char *end = strchr(s + 1, '\'');
            put(&b, s + 1, (size_t)(end - s - 1));
            s = end + 1;
        } else {
            unsigned byte;
            assert_int_equal(sscanf(s, "%2x", &byte), 1);
            put(&b, &(char){(char)byte}, 1);
            s += 2;
        }
    }
    return b;
}

#define HEAD(tensors, keys) "'GGUF' 03000000" tensors "00000000000000" keys "00000000000000"
#define NAME_A "0100000000000000 'a'"
#define N8(byte) byte "00000000000000"

TEST(a_hostile_header_is_told_and_does_no_harm)
{
    static const struct {
        const char *hex, *message;
        int code;
    } cases[] = {
        {"", "f: it does not begin with \"GGUF\": it is no GGUF file", VB_BAD_CHECKPOINT},
        {"'GGML' 03000000", "f: it does not begin with \"GGUF\": it is no GGUF file", VB_BAD_CHECKPOINT},
        {"'GGUF' 0300", "f: its 6 bytes end within the header: it was cut short", VB_BAD_CHECKPOINT},
        {"'GGUF' 00000003", "f: it is a big-endian GGUF file, which is not supported", VB_UNSUPPORTED},
        {"'GGUF' 02000000", "f: it is GGUF of version 2, only version 3 is supported", VB_UNSUPPORTED},
        {"'GGUF' 03000000 00", "f: its 9 bytes end within the header: it was cut short", VB_BAD_CHECKPOINT},
        {HEAD("00", "01"), "f: its 24 bytes end within a key: it was cut short", VB_BAD_CHECKPOINT},
        {"'GGUF' 03000000" N8("00") "ffffffffffffffff", "f: its 24 bytes end within a key: it was cut short",
         VB_BAD_CHECKPOINT},
        {"'GGUF' 03000000 ffffffffffffffff" N8("00"), "f: its 24 bytes end within a tensor: it was cut short",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") "ffffffffffffffff 'a'",
         "f: a key has a text of 18446744073709551615 bytes, of the file 1 are left", VB_BAD_CHECKPOINT},
        {HEAD("00", "01") N8("00"), "f: the name of a key is empty, longer than 255 bytes or not printable",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") N8("01") "0a", "f: the name of a key is empty, longer than 255 bytes or not printable",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") NAME_A "0d000000", "f: a has type 13, which GGUF does not have", VB_BAD_CHECKPOINT},
        {HEAD("00", "01") NAME_A "04000000 0000", "f: a has 1 items, which its 39 bytes do not hold",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") NAME_A "07000000 02", "f: a is a boolean of value 2", VB_BAD_CHECKPOINT},
        {HEAD("00", "01") NAME_A "08000000" N8("09") "'abc'", "f: a has a text of 9 bytes, of the file 3 are left",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") NAME_A "09000000 04000000 ffffffffffffff7f",
         "f: a has 9223372036854775807 items, which its 49 bytes do not hold", VB_BAD_CHECKPOINT},
        {HEAD("00", "01") NAME_A "09000000 0a000000 ffffffffffffffff",
         "f: a has 18446744073709551615 items, which its 49 bytes do not hold", VB_BAD_CHECKPOINT},
        {HEAD("00", "01") NAME_A "09000000 08000000 ffffffffffffffff", "f: its 49 bytes end within a: it was cut short",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") NAME_A "09000000 09000000" N8("01"), "f: a is an array of arrays, which is not supported",
         VB_UNSUPPORTED},
        {HEAD("00", "02") NAME_A "00000000 07" NAME_A "00000000 07", "f: the key a is there twice", VB_BAD_CHECKPOINT},
        {HEAD("00", "01") N8("11") "'general.alignment' 04000000 18000000", "f: general.alignment is no power of two",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") N8("11") "'general.alignment' 04000000 00000000", "f: general.alignment is no power of two",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") N8("11") "'general.alignment' 08000000" N8("00"), "f: general.alignment is no power of two",
         VB_BAD_CHECKPOINT},
        {HEAD("00", "01") N8("08") "'split.no' 02000000 0100",
         "f: it is file 2 of a set of 1, wanted the first", VB_BAD_CHECKPOINT},
        {HEAD("00", "01") N8("0b") "'split.count' 02000000 0300", "f: it is one of 3 files", VB_BAD_CHECKPOINT},
        {HEAD("00", "01") N8("0b") "'split.count' 05000000 ffffffff",
         "f: split.no, split.count or split.tensors.count is not a count", VB_BAD_CHECKPOINT},
        {HEAD("01", "00") N8("01") "7f", "f: the name of a tensor is empty, longer than 255 bytes or not printable",
         VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "00000000", "f: a has not one to four dimensions", VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "05000000", "f: a has not one to four dimensions", VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "01000000" N8("00"), "f: a has an extent of 0 or more than 63 bits",
         VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "01000000 0000000000000080", "f: a has an extent of 0 or more than 63 bits",
         VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "01000000" N8("08") "63000000", "f: a has the type of number 99, which is not known",
         VB_UNSUPPORTED},
        {HEAD("01", "00") NAME_A "01000000" N8("08") "02000000", "f: a has rows of 8 numbers, Q4_0 has blocks of 32",
         VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "02000000 0000000001000000 0000000001000000 00000000",
         "f: a has more bytes than 64 bits hold", VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "01000000" N8("01") "00000000" N8("08"),
         "f: a begins at byte 8 of the data, which is no multiple of 32", VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "01000000" N8("01") "00000000 e0ffffffffffffff",
         "f: a takes 4 bytes from byte 18446744073709551584 of the data on, the file has 57: it was cut "
         "short", VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "01000000" N8("01") "00000000" N8("00") "00000000",
         "f: a ends at byte 4 of the data, the file holds 0: it was cut short", VB_BAD_CHECKPOINT},
        {HEAD("01", "00") NAME_A "01000000" N8("01") "00000000" N8("00") "00000000000000 0000",
         "f: a ends at byte 4 of the data, the file holds 2: it was cut short", VB_BAD_CHECKPOINT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct bytes b = from_hex(cases[i].hex);
        struct gguf *g;
        vb_error err = {0};
        int rc = gguf_parse(&g, b.data ? b.data : "", b.used, "f", NULL, &err);
        if (rc != cases[i].code || strcmp(err.message, cases[i].message))
            fail_msg("case %zu: code %d \"%s\", wanted %d \"%s\"", i, rc, err.message, cases[i].code, cases[i].message);
        assert_null(g);
        free(b.data);
    }
}

/* ---- tensors ---- */

static int parse(struct gguf_writer *w, vb_error *err)
{
    struct gguf *g;
    size_t size;
    char *bytes = gguf_bytes(w, &size);
    int rc = gguf_parse(&g, bytes, size, "f", NULL, err);
    gguf_close(g);
    free(bytes);
    return rc;
}

/* An info that does not say where its data was put. */
static void info(struct gguf_writer *w, const char *name, uint64_t count, uint64_t offset)
{
    put_text(&w->infos, name);
    put_number(&w->infos, 1, 4);
    put_number(&w->infos, count, 8);
    put_number(&w->infos, TYPE_F32, 4);
    put_number(&w->infos, offset, 8);
    w->n_tensors++;
}

TEST(tensors_cover_the_data_once)
{
    static const char data[256];
    struct gguf_writer w = {0};
    put(&w.data, data, sizeof data);
    info(&w, "a", 16, 0);
    info(&w, "b", 8, 32);
    REFUSED(parse(&w, &err), VB_BAD_CHECKPOINT, "f: b overlaps a");
    put(&w.data, data, sizeof data);
    info(&w, "b", 8, 0);
    info(&w, "a", 8, 64);
    REFUSED(parse(&w, &err), VB_BAD_CHECKPOINT, "f: there is a hole of 32 bytes before a");
    put(&w.data, data, sizeof data);
    info(&w, "b", 8, 32);
    REFUSED(parse(&w, &err), VB_BAD_CHECKPOINT, "f: there is a hole of 32 bytes before b");
    put(&w.data, data, sizeof data);
    info(&w, "a", 8, 0);
    info(&w, "a", 8, 32);
    REFUSED(parse(&w, &err), VB_BAD_CHECKPOINT, "f: a is there twice, also in f");
    put(&w.data, data, sizeof data);
    info(&w, "b", 7, 0); /* padding is no hole, and what is behind the last belongs to nobody */
    info(&w, "a", 8, 32);
    OK(parse(&w, &err));
    OK(parse(&w, &err));
}

/* Beginnings of a whole file are too short, and say so: `step` bytes apart. */
static void cut(const char *path, size_t step)
{
    char *bytes;
    size_t size;
    OK(vb_read_file(NULL, path, &bytes, &size, &err));
    for (size_t n = 0; n < size; n += step) {
        char *part = malloc(n + !n); /* of its own, so that a sanitizer sees a byte too many */
        struct gguf *g;
        vb_error err = {0};
        assert_non_null(part);
        memcpy(part, bytes, n);
        int rc = gguf_parse(&g, part, n, "f", NULL, &err);
        if (!rc || strncmp(err.message, "f: ", 3))
            fail_msg("%s, %zu bytes: code %d, \"%s\"", path, n, rc, err.message);
        free(part);
    }
    vb_free(NULL, bytes);
}

TEST(a_file_cut_anywhere_is_told)
{
    cut("golden/gguf/tiny.gguf", 1);
    cut("golden/gguf/tiny-quantized.gguf", 31);
}

/* ---- metadata ---- */

struct wrong {
    const char *key;  /* left out of a good file, and */
    uint32_t type;    /* written so: STRING: as text */
    uint64_t value;
    const char *text;
    int missing;      /* or not written */
    int code;
    const char *message;
};

static void write_wrong(const char *dir, const vb_model *m, const struct wrong *x)
{
    struct gguf_writer w = {.without = x->key};
    put_config(&w, m, &(struct gguf_choice){0});
    put_tokenizer(&w, "golden/tokenizer", "deepseek-v3", 900);
    put_model(&w, m, &(struct gguf_choice){0});
    end_dropping(&w);
    w.without = NULL;
    if (x->text)
        key_string(&w, x->key, x->text);
    else if (!x->missing)
        key_number(&w, x->key, x->type, x->value);
    gguf_write(&w, dir, "f.gguf");
}

static void expect(const char *dir, const struct wrong *x, int (*open)(const char *path, vb_error *err))
{
    char path[128];
    vb_error err = {0};
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    int rc = open(path, &err);
    if (rc != x->code || strcmp(err.message, x->message))
        fail_msg("%s: code %d \"%s\", wanted %d \"%s\"", x->key, rc, err.message, x->code, x->message);
}

static int open_a_model(const char *path, vb_error *err)
{
    vb_model *m;
    int rc = vb_model_open(&m, path, NULL, err);
    if (!rc)
        vb_model_close(m);
    return rc;
}

static int open_a_tokenizer(const char *path, vb_error *err)
{
    struct vb_tokenizer *t;
    int rc = tokenizer_open(&t, path, NULL, err);
    tokenizer_close(t);
    return rc;
}

#define BAD VB_BAD_CHECKPOINT

/* A message that begins with %s begins with the path of the file. */
static void check_wrong(const char *model, const struct wrong *cases, size_t count)
{
    char dir[64];
    vb_model *m = open_tiny(model);
    make_dir(dir);
    for (size_t i = 0; i < count; i++) {
        char message[256];
        struct wrong x = cases[i];
        if (!strncmp(x.message, "%s", 2)) {
            snprintf(message, sizeof message, "%s/f.gguf%s", dir, x.message + 2);
            x.message = message;
        }
        write_wrong(dir, m, &x);
        expect(dir, &x, open_a_model);
    }
    vb_model_close(m);
    remove_dir(dir);
}

TEST(metadata_of_another_type_or_range_is_told)
{
    static const struct wrong cases[] = {
        {"general.architecture", 0, 0, NULL, 1, BAD, "f.gguf: general.architecture is missing or no string"},
        {"general.architecture", U32, 1, NULL, 0, BAD, "f.gguf: general.architecture is missing or no string"},
        {"general.architecture", 0, 0, "llama\n", 0, VB_UNSUPPORTED,
         "f.gguf: architecture \"llama\\n\" is not supported, only deepseek2, mistral4, deepseek32 and glm-dsa"},
        {"general.architecture", 0, 0, "\xff", 0, VB_UNSUPPORTED,
         "f.gguf: architecture that is not UTF-8 is not supported, only deepseek2, mistral4, deepseek32 and glm-dsa"},
        {OF "embedding_length", 0, 0, NULL, 1, BAD,
         "f.gguf: deepseek2.embedding_length is missing, wanted a whole number"},
        {OF "embedding_length", F32, 0x42800000, NULL, 0, BAD,
         "f.gguf: deepseek2.embedding_length is F32, wanted a whole number"},
        {OF "embedding_length", U64, UINT64_MAX, NULL, 0, BAD,
         "f.gguf: deepseek2.embedding_length is U64, wanted a whole number"},
        {OF "embedding_length", U32, 0, NULL, 0, BAD,
         "f.gguf: hidden_size is 0, wanted a whole number from 1 to 16777216"},
        {OF "embedding_length", U32, 72, NULL, 0, BAD,
         "f.gguf: model.embed_tokens.weight is [128,64], the metadata says [128,72]"},
        {OF "attention.head_count", I32, UINT32_MAX, NULL, 0, BAD,
         "f.gguf: deepseek2.attention.head_count is I32, wanted a whole number from 0 to 16777216"},
        {OF "attention.head_count", U32, 0, NULL, 0, BAD,
         "f.gguf: num_attention_heads is 0, wanted a whole number from 1 to 16777216"},
        {OF "attention.head_count", U32, 3, NULL, 0, BAD,
         "f.gguf: blk.0.attn_k_b.weight is not one matrix for each of 3 heads"},
        {OF "attention.head_count_kv", U32, 5, NULL, 0, BAD,
         "f.gguf: deepseek2.attention.head_count_kv is 5, wanted 1 or head_count"},
        {OF "attention.key_length_mla", U32, 4, NULL, 0, BAD,
         "f.gguf: qk_nope_head_dim is -4, wanted a whole number from 1 to 16777216"},
        {OF "attention.layer_norm_rms_epsilon", F32, 0x7f800000, NULL, 0, BAD,
         "f.gguf: deepseek2.attention.layer_norm_rms_epsilon is F32, wanted a finite number"},
        {OF "attention.layer_norm_rms_epsilon", 0, 0, "1e-6", 0, BAD,
         "f.gguf: deepseek2.attention.layer_norm_rms_epsilon is STRING, wanted a finite number"},
        {OF "block_count", U32, 3, NULL, 0, BAD,
         "f.gguf: deepseek2.block_count is 3, of which nextn_predict_layers are 3"},
        {OF "block_count", U32, 5, NULL, 0, BAD, "%s: model.layers.2.enorm.weight is missing"},
        {OF "expert_group_used_count", 0, 0, NULL, 1, BAD,
         "f.gguf: deepseek2.expert_group_used_count is missing, wanted a whole number from 0 to 16777216"},
        {OF "expert_group_count", U32, 4, NULL, 0, BAD, "f.gguf: n_routed_experts 6 is not a multiple of n_group 4"},
        {OF "expert_gating_func", U32, 4, NULL, 0, VB_UNSUPPORTED,
         "f.gguf: deepseek2.expert_gating_func 4 is not supported, only 1 (softmax) and 2 (sigmoid)"},
        {OF "expert_weights_norm", U32, 1, NULL, 0, BAD, "f.gguf: deepseek2.expert_weights_norm is U32, wanted BOOL"},
        {OF "rope.scaling.type", 0, 0, "linear", 0, VB_UNSUPPORTED,
         "f.gguf: rope_scaling.rope_type \"linear\" is not supported, only default, yarn"},
        {OF "rope.scaling.type", U32, 1, NULL, 0, BAD, "f.gguf: deepseek2.rope.scaling.type is U32, wanted a string"},
        {OF "rope.scaling.type", 0, 0, "yarn", 0, BAD,
         "f.gguf: rope_scaling.factor is missing, wanted a number from 0.001 to 1000000000"},
        {OF "rope.scaling.factor", F32, 0x41200000, NULL, 0, BAD,
         "f.gguf: deepseek2.rope.scaling.type is missing, wanted a name beside factor"},
        {OF "attention.indexer.top_k", U32, 8, NULL, 0, VB_UNSUPPORTED,
         "f.gguf: the key deepseek2.attention.indexer.top_k is not known, and may change what is computed"},
        {"tokenizer.ggml.eos_token_id", F32, 0, NULL, 0, BAD,
         "f.gguf: tokenizer.ggml.eos_token_id is not a whole number"},
        {"tokenizer.ggml.bos_token_id", F32, 0, NULL, 0, BAD,
         "f.gguf: tokenizer.ggml.bos_token_id is not a whole number"},
    };
    check_wrong("v3-mtp3", cases, COUNT(cases));
}

TEST(metadata_of_an_indexer_is_checked)
{
    static const struct wrong cases[] = {
        {OF "attention.indexer.head_count", 0, 0, NULL, 1, BAD,
         "f.gguf: glm-dsa.attention.indexer.head_count is missing, wanted a whole number"},
        {OF "attention.indexer.top_k", U32, 0, NULL, 0, BAD,
         "f.gguf: index_topk is 0, wanted a whole number from 1 to 16777216"},
        {OF "attention.indexer.key_length", U32, 64, NULL, 0, VB_UNSUPPORTED,
         "f.gguf: index_head_dim 64 is not supported, only 128"},
        {OF "attention.indexer.types", BOOL, 1, NULL, 0, BAD,
         "f.gguf: glm-dsa.attention.indexer.types is BOOL, wanted an array with one BOOL per layer"},
        {OF "attention.indexer.types", 0, 0, NULL, 1, BAD,
         "%s: model.layers.2.self_attn.indexer.wq_b.weight is missing"},
        {OF "attention.indexer.block_size", U32, 8, NULL, 0, VB_UNSUPPORTED,
         "f.gguf: the key glm-dsa.attention.indexer.block_size is not known, and may change what is computed"},
        {OF "expert_gating_func", U32, 1, NULL, 0, VB_UNSUPPORTED,
         "f.gguf: glm-dsa.expert_gating_func 1 (softmax) is not supported, only 2 (sigmoid)"},
        {OF "expert_count", 0, 0, NULL, 1, BAD, "f.gguf: glm-dsa.expert_count is missing, wanted a whole number"},
        {"verbatim.index_share_for_mtp_iteration", U32, 1, NULL, 0, BAD,
         "f.gguf: verbatim.index_share_for_mtp_iteration is no BOOL"},
    };
    check_wrong("glm5", cases, COUNT(cases));
}

TEST(architectures_that_are_known_are_refused_with_the_reason)
{
    static const struct wrong cases[] = {
        {"general.architecture", 0, 0, "deepseek4", 0, VB_UNSUPPORTED,
         "f.gguf: architecture deepseek4 is not supported: the compressed sparse attention and hyper-connections of "
         "DeepSeek-V4 are not computed here"},
        {"general.architecture", 0, 0, "deepseek2-ocr", 0, VB_UNSUPPORTED,
         "f.gguf: architecture deepseek2-ocr is not supported: the language model of DeepSeek-OCR has no latent "
         "attention (MLA)"},
        {"general.architecture", 0, 0, "kimi-linear", 0, VB_UNSUPPORTED,
         "f.gguf: architecture kimi-linear is not supported: the linear attention of Kimi-Linear is not computed here"},
        {"general.architecture", 0, 0, "mistral3", 0, VB_UNSUPPORTED,
         "f.gguf: architecture mistral3 is not supported: Mistral 3 and Ministral have no latent attention (MLA)"},
        {"general.architecture", 0, 0, "DeepseekV4ForCausalLM", 0, VB_UNSUPPORTED,
         "f.gguf: architecture \"DeepseekV4ForCausalLM\" is not supported, only deepseek2, mistral4, deepseek32 and "
         "glm-dsa"},
    };
    check_wrong("v3-mtp3", cases, COUNT(cases));
}

TEST(a_tokenizer_of_another_kind_is_told)
{
    static const struct wrong cases[] = {
        {"tokenizer.ggml.model", 0, 0, "llama", 0, VB_UNSUPPORTED,
         "f.gguf: tokenizer.ggml.model is not gpt2 (byte-level BPE), and no other is supported"},
        {"tokenizer.ggml.model", U32, 1, NULL, 0, BAD, "f.gguf: tokenizer.ggml.model is U32, wanted STRING"},
        {"tokenizer.ggml.model", 0, 0, NULL, 1, VB_IO, "f.gguf: it has no tokenizer"},
        {"tokenizer.ggml.pre", 0, 0, "kimi-k2\n", 0, VB_UNSUPPORTED,
         "f.gguf: tokenizer.ggml.pre \"kimi-k2?\" is not supported, only gpt-2, deepseek-v3, deepseek-llm, glm4, "
         "kimi-k2, tekken, youtu, kanana2, gigachat, joyai-llm"},
        {"tokenizer.ggml.pre", 0, 0, NULL, 1, BAD,
         "f.gguf: tokenizer.ggml.pre is missing, wanted the name of how words are cut"},
        {"tokenizer.ggml.tokens", 0, 0, "a", 0, BAD, "f.gguf: tokenizer.ggml.tokens is STRING, wanted array of STRING"},
        {"tokenizer.ggml.token_type", I32, 1, NULL, 0, BAD,
         "f.gguf: tokenizer.ggml.token_type is I32, wanted array of I32"},
        {"tokenizer.ggml.merges", 0, 0, NULL, 1, BAD,
         "f.gguf: tokenizer.ggml.merges is missing, wanted array of STRING"},
        {"tokenizer.ggml.add_bos_token", U32, 1, NULL, 0, BAD,
         "f.gguf: tokenizer.ggml.add_bos_token is U32, wanted BOOL"},
        {"tokenizer.ggml.bos_token_id", U32, 900, NULL, 0, BAD,
         "f.gguf: tokenizer.ggml.bos_token_id is U32, wanted the id of a token"},
    };
    char dir[64];
    vb_model *m = open_tiny("v3-mtp3");
    make_dir(dir);
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_wrong(dir, m, &cases[i]);
        expect(dir, &cases[i], open_a_tokenizer);
    }
    vb_model_close(m);
    remove_dir(dir);
}

static int parse_tokenizer(struct gguf_writer *w, const char *const *tokens, size_t count, const int32_t *kinds,
                           vb_error *err)
{
    struct gguf *g;
    struct vb_tokenizer *t;
    size_t size;
    key_string(w, "tokenizer.ggml.model", "gpt2");
    key_string(w, "tokenizer.ggml.pre", "gpt-2");
    key_array(w, "tokenizer.ggml.tokens", STRING, count);
    for (size_t i = 0; i < count; i++)
        put_text(&w->keys, tokens[i]);
    key_array(w, "tokenizer.ggml.token_type", I32, count);
    for (size_t i = 0; i < count; i++)
        put_number(&w->keys, (uint64_t)kinds[i], 4);
    key_array(w, "tokenizer.ggml.merges", STRING, 1);
    put_text(&w->keys, "a b");
    char *bytes = gguf_bytes(w, &size);
    assert_int_equal(gguf_parse(&g, bytes, size, "f", NULL, err), VB_OK);
    int rc = tokenizer_parse_gguf(&t, g, NULL, err);
    tokenizer_close(t);
    gguf_close(g);
    free(bytes);
    return rc;
}

TEST(tokens_that_cannot_be_are_told)
{
    struct gguf_writer w = {0};
    OK(parse_tokenizer(&w, (const char *[]){"a", "b", "ab"}, 3, (int32_t[]){1, 1, 1}, &err));
    REFUSED(parse_tokenizer(&w, (const char *[]){"a", "b", "a"}, 3, (int32_t[]){1, 1, 1}, &err), BAD,
            "f: token \"a\" is there twice, as 0 and 2");
    REFUSED(parse_tokenizer(&w, (const char *[]){"a", "", "ab"}, 3, (int32_t[]){1, 1, 1}, &err), BAD,
            "f: token 1 is empty, not UTF-8, or holds a zero character");
    REFUSED(parse_tokenizer(&w, (const char *[]){"a", "\xc3", "ab"}, 3, (int32_t[]){1, 1, 1}, &err), BAD,
            "f: token 1 is empty, not UTF-8, or holds a zero character");
    REFUSED(parse_tokenizer(&w, (const char *[]){"a", "b", "ab"}, 3, (int32_t[]){1, 1, 7}, &err), BAD,
            "f: token 2 is of kind 7, wanted 1 to 6");
    REFUSED(parse_tokenizer(&w, (const char *[]){"a", "b", "ba"}, 3, (int32_t[]){1, 1, 1}, &err), BAD,
            "f: merge 0 makes \"ab\", which the vocabulary does not have");
    key_u32(&w, "tokenizer.ggml.bos_token_id", 2);
    REFUSED(parse_tokenizer(&w, (const char *[]){"a", "b", "ab", "c"}, 4, (int32_t[]){1, 1, 5, 1}, &err), BAD, "f: ");
}

/* ---- tensors of the model ---- */

TEST(a_type_or_a_name_that_is_not_known_is_told)
{
    static const char zeros[4096];
    char dir[64], path[128];
    vb_model *m = open_tiny("v2-lite");
    struct gguf_choice o = {0};
    struct gguf_writer w = {0};
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    for (int i = 0; i < 5; i++) {
        put_config(&w, m, &o);
        put_model(&w, m, &o);
        switch (i) {
        case 0: tensor(&w, "blk.0.attn_q_b.weight", TYPE_Q8_1, 2, (size_t[]){4, 64}, zeros, 4 * 2 * 36); break;
        case 1: tensor(&w, "rope_freqs.weight", TYPE_F32, 1, (size_t[]){8}, zeros, 32); break;
        case 2: tensor(&w, "blk.01.attn_q.weight", TYPE_F32, 1, (size_t[]){8}, zeros, 32); break;
        case 3: tensor(&w, "blk.0.ffn_up_exps.weight", TYPE_F32, 2, (size_t[]){8, 8}, zeros, 256); break;
        default: tensor(&w, "blk.0.ffn_gate_up_exps.weight", TYPE_F32, 3, (size_t[]){2, 5, 8}, zeros, 320);
        }
        gguf_write(&w, dir, "f.gguf");
        static const char *const messages[] = {
            "f.gguf: blk.0.attn_q_b.weight is Q8_1; supported are F32, F16, BF16, Q4_0, ",
            "f.gguf: rope_freqs.weight has no place in the model of the metadata (tensors left over: 1)",
            "f.gguf: blk.01.attn_q.weight has no place in the model of the metadata (tensors left over: 1)",
            "f.gguf: blk.0.ffn_up_exps.weight is not one matrix for each of up to 65536 experts",
            "f.gguf: blk.0.ffn_gate_up_exps.weight is not two matrices of one size for each of up to 65536 experts",
        };
        REFUSED(open_a_model(path, &err), i ? BAD : VB_UNSUPPORTED, messages[i]);
    }
    vb_model_close(m);
    remove_dir(dir);
}

TEST(a_file_of_mtp_layers_alone_is_told)
{
    char dir[64], path[128];
    struct gguf_choice o = {0};
    struct gguf_writer w = {0};
    vb_model *m = open_tiny("glm5");
    make_dir(dir);
    snprintf(path, sizeof path, "%s/mtp.gguf", dir);
    put_config(&w, m, &o);
    put_matrix(&w, "", "token_embd", &m->embed_tokens, 0);
    put_matrix(&w, "", "output", &m->lm_head, 0);
    put_vector(&w, "", "output_norm.weight", m->norm, 64);
    put_layer(&w, &m->config, &m->mtp[0].layer, 4, &o);
    gguf_write(&w, dir, "mtp.gguf");
    REFUSED(open_a_model(path, &err), VB_UNSUPPORTED,
            "/mtp.gguf: it has MTP layers only, wanted the file of the whole model");
    vb_model_close(m);
    remove_dir(dir);
}

TEST(a_path_that_is_no_file_is_told)
{
    char dir[64], path[128];
    make_dir(dir);
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    REFUSED(open_a_model(path, &err), VB_IO, "f.gguf: No such file or directory");
    REFUSED(open_a_tokenizer(path, &err), VB_IO, "f.gguf: No such file or directory");
    write_text(dir, "f.gguf", "GGUF");
    REFUSED(open_a_model(path, &err), BAD, "f.gguf: 4 bytes are no GGUF file");
    write_text(dir, "f.gguf", "<html>Not found</html>");
    REFUSED(open_a_model(path, &err), BAD, "f.gguf: it does not begin with \"GGUF\": it is no GGUF file");
    remove_dir(dir);
}

TEST(every_allocation_may_fail)
{
    for (int what = 0; what < 2; what++)
        for (long fail = 0;; fail++) {
            struct counted counted = {.fail = fail};
            vb_allocator a = {counted_alloc, counted_free, &counted};
            struct vb_tokenizer *t = NULL;
            struct vb_model *m = NULL;
            vb_error err = {0};
            int rc = what ? tokenizer_open(&t, "golden/gguf/tiny.gguf", &a, &err)
                          : model_open(&m, "golden/gguf/tiny.gguf", &a, &err);
            if (!rc) {
                assert_true(counted.requests <= fail && fail > 10);
                tokenizer_close(t);
                model_close(m);
            }
            assert_int_equal(counted.alive, 0);
            if (!rc)
                break;
            assert_int_equal(rc, VB_NO_MEMORY);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hostile_header_is_told_and_does_no_harm),
        cmocka_unit_test(tensors_cover_the_data_once),
        cmocka_unit_test(a_file_cut_anywhere_is_told),
        cmocka_unit_test(metadata_of_another_type_or_range_is_told),
        cmocka_unit_test(metadata_of_an_indexer_is_checked),
        cmocka_unit_test(architectures_that_are_known_are_refused_with_the_reason),
        cmocka_unit_test(a_tokenizer_of_another_kind_is_told),
        cmocka_unit_test(tokens_that_cannot_be_are_told),
        cmocka_unit_test(a_type_or_a_name_that_is_not_known_is_told),
        cmocka_unit_test(a_file_of_mtp_layers_alone_is_told),
        cmocka_unit_test(a_path_that_is_no_file_is_told),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
