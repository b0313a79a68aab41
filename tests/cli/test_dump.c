/* tests/cli/test_dump.c -- `verbatim dump` from outside: its two files agree with each other, with the reference, with
 * what `generate` computes, and between any two ways to dump the same rows. Runs the program itself (argv[1], or
 * ../verbatim beside this one) in the repository's root; whether taps change bits is asked through the C interface. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sha2.h>

#include "engine/verbatim.h"
#include "tests/support/golden.h"
#include "tests/support/process.h"
#include "tests/support/tiny.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define TINY "golden/tiny/"
#define PROMPT "5,6,7,70,9,33,17,2,88,41,5,6,7,70,14,99,3,61,27,86,8,8,8,19,97,64,45,73,12,101,52,4,77,29,90,5,6,7,70,9"
#define DECODING(dir, method) \
    dir, "--tokens", "5,6,7,70", "-n", "24", "--ignore-eos", "--draft", method, "--draft-tokens", "3"

static const char *const checkpoints[] = {TINY_CHECKPOINTS(TINY_PATH)};
static const char *const methods[] = {"mtp-vanilla", "mtp-eagle", "none"};
#define LAYERS 3 /* of each checkpoint: the modules follow */

/* ---- a dump, read back ------------------------------------------------------------------------------------------- */

struct dump {
    struct golden file;
    json_t *lines; /* of the manifest */
};

static struct dump read_dump(const char *dir, const char *name)
{
    char path[128], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "%s/%s.safetensors", dir, name);
    struct dump d = {.file = golden_read(path), .lines = json_array()};
    snprintf(path, sizeof path, "%s/%s.jsonl", dir, name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (getline(&line, &room, f) > 0)
        if (json_array_append_new(d.lines, json_loads(line, JSON_REJECT_DUPLICATES, NULL)))
            fail_msg("%s: a line is no JSON object: %.200s", path, line);
    free(line);
    fclose(f);
    if (!json_array_size(d.lines) || json_array_size(d.lines) != json_object_size(d.file.header))
        fail_msg("%s: %zu lines, %zu tensors", path, json_array_size(d.lines), json_object_size(d.file.header));
    return d;
}

static struct dump dump_of(const char *const *arguments, const char *dir)
{
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 0);
    forget(&s);
    struct dump d = read_dump(dir, "dump");
    remove_dir(dir);
    return d;
}

/* Through a directory that is gone afterwards. */
#define DUMP(d, ...)                                                                                            \
    do {                                                                                                        \
        char to[64];                                                                                            \
        make_dir(to);                                                                                           \
        d = dump_of((const char *const[]){verbatim, "dump", __VA_ARGS__, "--threads", "1", "-o", to, NULL}, to); \
    } while (0)

static void close_dump(struct dump *d)
{
    golden_close(&d->file);
    json_decref(d->lines);
}

static size_t size_of(const json_t *line) { return !strcmp(string(line, "dtype"), "F64") ? 8 : 4; }

static long long at(const json_t *line, const char *list, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(line, list), i));
}

struct rows {
    char *data;
    size_t n, width; /* width: bytes of a row */
    long long index[512], token[512], draft[512];
};

/* Rows of NAME and its NAME@PASS, in the order of passes; depth -1: the target's. Standing ones: those whose token was
 * committed or is a draft that was accepted. */
static struct rows rows_of(const struct dump *d, const char *name, int depth, int standing)
{
    struct rows r = {0};
    long long pass = -1;
    size_t k;
    json_t *line;
    json_array_foreach(d->lines, k, line) {
        json_t *mtp = json_object_get(line, "mtp_depth");
        size_t numbers, n = json_array_size(json_object_get(line, "index"));
        if (strcmp(string(line, "name"), name) || (depth < 0 ? !json_is_null(mtp) : json_integer_value(mtp) != depth))
            continue;
        assert_true(integer(line, "pass") > pass);
        pass = integer(line, "pass");
        const char *data = golden_data(&d->file, string(line, "tensor"), &numbers);
        r.width = numbers / n * size_of(line);
        r.data = realloc(r.data, (r.n + n) * r.width);
        assert_true(r.data && r.n + n <= COUNT(r.index));
        for (size_t i = 0; i < n; i++) {
            if (standing && at(line, "draft", i) && !json_is_true(json_array_get(json_object_get(line, "accepted"), i)))
                continue;
            r.index[r.n] = at(line, "index", i);
            r.token[r.n] = at(line, "token", i);
            r.draft[r.n] = at(line, "draft", i);
            memcpy(r.data + r.n++ * r.width, data + i * r.width, r.width);
        }
    }
    if (!r.n)
        fail_msg("the dump has no %s", name);
    return r;
}

static struct rows rows_in_layer(const struct dump *d, long long layer, const char *name, int depth)
{
    char full[128];
    snprintf(full, sizeof full, "model.layers.%lld.%s", layer, name);
    return rows_of(d, full, depth, 0);
}

static void expect_same_rows(const char *what, struct rows a, struct rows b)
{
    if (a.n != b.n || a.width != b.width || memcmp(a.index, b.index, a.n * sizeof *a.index) ||
        memcmp(a.token, b.token, a.n * sizeof *a.token))
        fail_msg("%s: %zu rows of %zu bytes and %zu of %zu, or rows of other tokens", what, a.n, a.width, b.n, b.width);
    if (memcmp(a.data, b.data, a.n * a.width))
        fail_msg("%s: bits differ", what);
    free(a.data);
    free(b.data);
}

static float *numbers(const struct rows *r, size_t i) { return (float *)(void *)(r->data + i * r->width); }

/* sum = a + b, one addition of floats each */
static void expect_sum(const char *what, struct rows a, struct rows b, struct rows sum)
{
    for (size_t i = 0; i < a.n * a.width / 4 && a.n == b.n && a.width == b.width; i++)
        numbers(&a, 0)[i] += numbers(&b, 0)[i];
    free(b.data);
    expect_same_rows(what, a, sum);
}

static long long argmax(const struct rows *r, size_t i)
{
    size_t best = 0;
    for (size_t v = 1; v < r->width / 4; v++)
        best = numbers(r, i)[v] > numbers(r, i)[best] ? v : best;
    return (long long)best;
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */

static double number(const json_t *line, const char *data, size_t i)
{
    union { double f64; float f32; int32_t i32; } u;
    memcpy(&u, data + size_of(line) * i, size_of(line));
    return size_of(line) == 8 ? u.f64 : !strcmp(string(line, "dtype"), "I32") ? u.i32 : (double)u.f32;
}

static void expect_close(const struct dump *a, const json_t *x, const struct dump *b, const json_t *y)
{
    size_t n, m;
    const char *name = string(x, "tensor"), *p = golden_data(&a->file, name, &n), *q = golden_data(&b->file, name, &m);
    int integers = !strcmp(string(x, "dtype"), "I32");
    double largest = 0, worst = 0;
    assert_string_equal(string(y, "dtype"), integers ? "I32" : "F64");
    for (size_t i = 0; i < n; i++) {
        double u = number(x, p, i), v = number(y, q, i);
        if (u == -INFINITY && v == -INFINITY && strstr(name, "attn.scores"))
            continue;
        largest = fmax(largest, fabs(v));
        worst = fmax(worst, isfinite(u) && isfinite(v) ? fabs(u - v) : INFINITY);
    }
    if (worst > (integers ? 0 : 1e-5 * largest)) /* measured: 1.3e-6; another tensor differs by order 1 */
        fail_msg("%s differs from the reference by %g of %g", name, worst, largest);
}

static void expect_reference(const char *dir, const char *tokens)
{
    static const char *const same[] = {"name", "layer", "mtp_depth", "step", "shape", "token", "index", "position",
                                       "draft", "accepted", "layout"};
    struct dump ours, theirs;
    size_t k, j;
    json_t *x, *y, *found;
    DUMP(ours, dir, "--tokens", tokens, "--taps", "*,*attn.scores*");
    DUMP(theirs, dir, "--tokens", tokens, "--taps", "*,*attn.scores*", "--reference");
    assert_int_equal(json_array_size(ours.lines), json_array_size(theirs.lines));
    json_array_foreach(ours.lines, k, x) {
        found = NULL;
        json_array_foreach(theirs.lines, j, y)
            found = strcmp(string(x, "tensor"), string(y, "tensor")) ? found : y;
        for (size_t i = 0; i < COUNT(same); i++)
            if (!found || !json_equal(json_object_get(x, same[i]), json_object_get(found, same[i])))
                fail_msg("%s %s: the reference has no such tensor or another %s", dir, string(x, "tensor"), same[i]);
        expect_close(&ours, x, &theirs, found);
    }
    close_dump(&ours);
    close_dump(&theirs);
}

TEST(the_engine_and_the_reference_dump_the_same_values_under_the_same_names)
{
    char dir[64], spec[2048], *p = spec;
    for (size_t i = 0; i < COUNT(checkpoints); i++)
        expect_reference(checkpoints[i], PROMPT);
    expect_reference("golden/tiny/v32", PROMPT); /* more tokens than index_topk */
    expect_reference("golden/tiny/glm5", PROMPT);
    expect_reference("golden/tiny/glm5", "5,6,7,70,9");
    for (int i = 0; i < 270; i++) /* more than a block of attention, of queries, of logits */
        p += sprintf(p, i ? ",%d" : "%d", (i * i + 7 * i) % 160);
    expect_reference(checkpoints[0], spec);
    make_dir(dir);
    copy_files(checkpoints[0], dir);
    replace_in(dir, "config.json", "{", "{\"rope_interleave\": false,");
    expect_reference(dir, "5,6,7,70,9");
    remove_dir(dir);
}

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

static void count_taps(void *context, const vb_tap *tap)
{
    ((size_t *)context)[strstr(tap->name, "attn.scores") != NULL]++;
}

static uint64_t fingerprint_of(const vb_model *m, vb_session_options o)
{
    static const int32_t prompt[] = {5, 6, 7, 70, 9};
    vb_generate_options g = {.max_tokens = 32, .ignore_eos = 1, .fingerprint = 1};
    vb_session *s;
    vb_result result;
    vb_error err = {0};
    if (vb_session_open(&s, m, &o, &err) || vb_append(s, prompt, COUNT(prompt), &err) ||
        vb_generate(s, &g, &result, &err))
        fail_msg("%s", err.message);
    vb_session_close(s);
    return result.fingerprint;
}

TEST(taps_change_no_bit)
{
    vb_model *m;
    assert_int_equal(vb_model_open(&m, TINY "v3-mtp3", NULL, NULL), VB_OK);
    for (size_t i = 0; i < COUNT(methods); i++) {
        vb_session_options o = {.context = 64, .threads = 1, .drafting.method = methods[i], .drafting.tokens = 4};
        uint64_t silent = fingerprint_of(m, o);
        for (o.tap_scores = 0; o.tap_scores < 2; o.tap_scores++) {
            size_t told[2] = {0, 0}; /* others, scores */
            o.tap = count_taps;
            o.tap_context = told;
            if (fingerprint_of(m, o) != silent)
                fail_msg("%s: other bits with taps%s", methods[i], o.tap_scores ? " of scores" : "");
            assert_true(told[0] > 1000 && !told[1] == !o.tap_scores);
        }
        o.tap = NULL;
    }
    vb_model_close(m);
}

/* A row that stands has chosen a token, unless the run ended with its own. */
static void expect_fingerprint(const char *what, struct dump d, json_t *run)
{
    struct rows r = rows_of(&d, "lm_head.output", -1, 1);
    const json_t *tokens = json_object_get(run, "tokens");
    size_t n = json_array_size(tokens), ended = !strcmp(string(run, "finish_reason"), "stop");
    uint64_t h = VB_FINGERPRINT_START;
    char hex[32];
    if (r.n != n && r.n != n + ended)
        fail_msg("%s: %zu rows chose %zu tokens", what, r.n, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(r.index[i], integer(run, "prompt_tokens") - 1 + (long long)i);
        assert_int_equal(argmax(&r, i), json_integer_value(json_array_get(tokens, i)));
        h = vb_fingerprint(h, numbers(&r, i), r.width / 4);
    }
    snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
    if (strcmp(hex, string(run, "fingerprint")))
        fail_msg("%s: the rows that stand have fingerprint %s, generate has %s", what, hex, string(run, "fingerprint"));
    free(r.data);
    close_dump(&d);
}

TEST(rows_of_logits_that_stand_have_the_fingerprint_of_generate)
{
    struct dump d;
    char dir[64], edit[64];
    for (size_t i = 0; i < COUNT(methods) * TINY_WITH_MODULES; i++) {
        const char *from = checkpoints[i / COUNT(methods)], *method = methods[i % COUNT(methods)];
        json_t *run = JSON("generate", DECODING(from, method));
        DUMP(d, DECODING(from, method), "--taps", "lm_head.*", "--prefill-chunk", "3");
        expect_fingerprint(method, d, run);
        for (size_t end = 2; end < 9 && i % COUNT(methods) == 1; end++) { /* now a draft of some depth, now the target's
                                                                             own */
            make_dir(dir);
            copy_files(from, dir);
            snprintf(edit, sizeof edit, "{\"eos_token_id\": %lld}", at(run, "tokens", end));
            write_text(dir, "generation_config.json", edit);
            json_t *ended = JSON("generate", dir, "--tokens", "5,6,7,70", "-n", "24", "--draft", method);
            DUMP(d, dir, "--tokens", "5,6,7,70", "-n", "24", "--draft", method, "--taps", "lm_head.output");
            expect_fingerprint(edit, d, ended);
            json_decref(ended);
            remove_dir(dir);
        }
        json_decref(run);
    }
}

/* ---- the manifest ------------------------------------------------------------------------------------------------ */

static void expect_tensor(const struct dump *d, const json_t *line)
{
    const char *key = string(line, "tensor");
    json_t *entry = json_object_get(d->file.header, key);
    char digest[SHA256_DIGEST_STRING_LENGTH], keys[256];
    size_t n;
    snprintf(keys, sizeof keys,
             "tensor:s name:s layer:%c mtp_depth:%c step:i pass:i sequence:a token:a index:a position:a "
             "slot:a draft:a accepted:a parent:a shape:a dtype:s layout:%c sha256:s",
             strstr(key, "layers") ? 'i' : 'n', json_is_null(json_object_get(line, "mtp_depth")) ? 'n' : 'i',
             strstr(key, "rope") || strstr(key, "q_b_proj") || strstr(key, "kv_a_proj_with_mqa") ? 's' : 'n');
    expect_keys(line, keys);
    const char *data = golden_data(&d->file, key, &n);
    assert_true(json_equal(json_object_get(entry, "shape"), json_object_get(line, "shape")));
    assert_string_equal(string(entry, "dtype"), string(line, "dtype"));
    assert_int_equal(at(entry, "data_offsets", 1) - at(entry, "data_offsets", 0), n * size_of(line));
    assert_true(data + n * size_of(line) <= d->file.bytes + d->file.size);
    SHA256Data((const uint8_t *)data, n * size_of(line), digest);
    assert_string_equal(string(line, "sha256"), digest);
}

/* A draft stands when it and those before it in its pass are the tokens of the output. */
static void expect_row_data(const struct dump *d, const json_t *line, const int32_t *timeline)
{
    const json_t *mtp = json_object_get(line, "mtp_depth");
    int right = 1, ahead = json_is_null(mtp) ? 0 : (int)json_integer_value(mtp) + 1;
    expect_tensor(d, line);
    for (size_t i = 0; i < (size_t)at(line, "shape", 0); i++) {
        long long index = at(line, "index", i), draft = at(line, "draft", i);
        const json_t *accepted = json_array_get(json_object_get(line, "accepted"), i);
        int same = at(line, "token", i) == timeline[index + ahead];
        assert_true(at(line, "position", i) == index && draft >= 0 && draft <= 3 && (same || draft > 0));
        assert_true(at(line, "slot", i) >= 0 && at(line, "sequence", i) == 0 &&
                    (i == 0 || index > at(line, "index", i - 1)));
        for (size_t j = 0; j < i; j++)
            assert_true(at(line, "slot", j) != at(line, "slot", i));
        right = right && same;
        assert_true(draft == 0 || ahead ? json_is_null(accepted)
                    : right ? json_is_true(accepted)
                    : json_is_false(accepted));
    }
}

TEST(the_manifest_says_what_every_row_is_and_the_hash_of_its_tensor)
{
    for (size_t m = 0; m < COUNT(methods); m++) {
        int32_t timeline[64] = {5, 6, 7, 70};
        struct dump d;
        size_t k;
        long long step = -1, drafted = 0;
        json_t *line, *run = JSON("generate", DECODING(TINY "v3-mtp3", methods[m])),
                      *stats = json_object_get(run, "stats");
        read_tokens(json_object_get(run, "tokens"), timeline + 4);
        DUMP(d, DECODING(TINY "v3-mtp3", methods[m]), "--taps", "*,*attn.scores*");
        json_array_foreach(d.lines, k, line) {
            expect_row_data(&d, line, timeline);
            drafted += strstr(string(line, "name"), "shared_head.head") != NULL;
            if (!strcmp(string(line, "name"), "lm_head.output"))
                assert_int_equal(integer(line, "step"), ++step);
        }
        assert_int_equal(step, integer(stats, "forwards"));
        assert_int_equal(drafted, integer(stats, "drafted"));
        close_dump(&d);
        json_decref(run);
    }
}

/* ---- one value, several ways ------------------------------------------------------------------------------------- */

TEST(a_prompt_in_chunks_has_the_rows_of_one_pass)
{
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        struct dump whole, pieces;
        size_t k, names = 0;
        json_t *line;
        DUMP(whole, checkpoints[i], "--tokens", PROMPT);
        DUMP(pieces, checkpoints[i], "--tokens", PROMPT, "--prefill-chunk", "3");
        json_array_foreach(whole.lines, k, line) {
            const char *name = string(line, "name");
            assert_null(strstr(name, "attn.scores")); /* only when asked for by name */
            const json_t *mtp = json_object_get(line, "mtp_depth");
            int depth = json_is_null(mtp) ? -1 : (int)json_integer_value(mtp);
            expect_same_rows(name, rows_of(&pieces, name, depth, 0), rows_of(&whole, name, depth, 0));
        }
        json_array_foreach(pieces.lines, k, line)
            names += strchr(string(line, "tensor"), '@') == NULL;
        assert_int_equal(names, json_array_size(whole.lines));
        close_dump(&pieces);
        close_dump(&whole);
    }
}

TEST(modules_take_the_targets_hidden_rows)
{
    for (size_t i = 0; i < 2 * TINY_WITH_MODULES; i++) {
        const char *dir = checkpoints[i / 2];
        size_t found = 0;
        struct dump d;
        DUMP(d, DECODING(dir, methods[i % 2]));
        struct rows hidden = rows_of(&d, "model.norm.output", -1, 1), h = rows_in_layer(&d, LAYERS, "hnorm.input", 0);
        struct rows e = rows_in_layer(&d, LAYERS, "enorm.output", 0), n = rows_in_layer(&d, LAYERS, "hnorm.output", 0);
        struct rows joined = rows_in_layer(&d, LAYERS, "eh_proj.input", 0), *all[] = {&hidden, &h, &e, &n, &joined};
        assert_true(joined.n == h.n && e.n == h.n && n.n == h.n && joined.width == 2 * h.width);
        for (size_t r = 0; r < h.n; r++) {
            size_t s = (size_t)h.index[r];
            assert_memory_equal(joined.data + r * joined.width, e.data + r * e.width, e.width);
            assert_memory_equal(joined.data + r * joined.width + e.width, n.data + r * n.width, n.width);
            if (h.draft[r] > 0 && i % 2) /* mtp-eagle goes on from its own hidden states */
                continue;
            assert_true(s < hidden.n && (size_t)hidden.index[s] == s);
            if (memcmp(h.data + r * h.width, hidden.data + s * hidden.width, h.width))
                fail_msg("%s %s: hnorm.input of index %zu differs from model.norm.output", dir, methods[i % 2], s);
            found++;
        }
        assert_true(found >= 20);
        for (size_t a = 0; a < COUNT(all); a++)
            free(all[a]->data);
        close_dump(&d);
    }
}

TEST(within_a_layer_and_between_layers_values_join_bit_for_bit)
{
#define OF(layer, name) rows_in_layer(&d, layer, name, layer < LAYERS ? -1 : 0)
    for (size_t i = 0; i < COUNT(checkpoints); i++) {
        struct dump d;
        DUMP(d, DECODING(checkpoints[i], i < TINY_WITH_MODULES ? "mtp-vanilla" : "none"));
        expect_same_rows("embeddings", rows_of(&d, "model.embed_tokens.output", -1, 0), OF(0, "input_layernorm.input"));
        for (long long l = 0; l < LAYERS + (i < TINY_WITH_MODULES); l++) {
            expect_sum("attention", OF(l, "input_layernorm.input"), OF(l, "self_attn.o_proj.output"),
                       OF(l, "post_attention_layernorm.input"));
            expect_sum("the MLP", OF(l, "post_attention_layernorm.input"), OF(l, "mlp.output"), OF(l, "output"));
            expect_same_rows("a layer's output", OF(l, "output"), l + 1 < LAYERS ? OF(l + 1, "input_layernorm.input")
                             : l < LAYERS ? rows_of(&d, "model.norm.input", -1, 0) : OF(l, "shared_head.norm.input"));
        }
        if (i < TINY_WITH_MODULES)
            expect_same_rows("eh_proj", OF(LAYERS, "eh_proj.output"), OF(LAYERS, "input_layernorm.input"));
        struct rows logits = rows_of(&d, "lm_head.output", -1, 1),
                    embedded = rows_of(&d, "model.embed_tokens.output", -1, 1);
        assert_int_equal(embedded.n, logits.n + 3); /* of the prompt only the last row chooses */
        for (size_t r = 0; r + 1 < logits.n; r++)
            assert_int_equal(argmax(&logits, r), embedded.token[r + 4]);
        free(logits.data);
        free(embedded.data);
        close_dump(&d);
    }
}

/* ---- files and errors -------------------------------------------------------------------------------------------- */

/* One sentence that holds `part`, on stderr or with --json in {"error"}; then still so many files. */
static void expect_refused(struct said s, int code, const char *part, const char *dir, size_t files)
{
    expect_code(&s, code);
    if (s.out_size) {
        json_t *j = parsed(&s);
        expect_keys(j, "error:s");
        if (s.err_size || !strstr(string(j, "error"), part) || !strstr(s.command, "--json"))
            fail_msg("%s: wanted %s: %s%s", s.command, part, s.out, s.err);
        json_decref(j);
    } else if (!s.err_size || strchr(s.err, '\n') != s.err + s.err_size - 1 || !strstr(s.err, part)) {
        fail_msg("%s: wanted one line with %s: %s", s.command, part, s.err);
    }
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        files -= e->d_name[0] != '.';
    closedir(d);
    if (files)
        fail_msg("%s: %zu files too few (or too many)", s.command, files);
    forget(&s);
}

#define REFUSED(kind, code, part, ...)                                                         \
    do {                                                                                       \
        expect_refused(RUN_TO(kind, "dump", __VA_ARGS__), code, part, dir, left);              \
        expect_refused(RUN_TO(kind, "dump", __VA_ARGS__, "--json"), code, part, dir, left);    \
    } while (0)

TEST(what_is_refused_is_refused_with_a_sentence_and_leaves_no_file)
{
    const char *v3 = checkpoints[0];
    char dir[64], file[96], missing[96];
    size_t left = 0;
    make_dir(dir);
    snprintf(file, sizeof file, "%s/x.safetensors", dir);
    snprintf(missing, sizeof missing, "%s/no/such", dir);
    for (const char *o = file; o; o = o == file ? dir : NULL) {
        REFUSED(PIPE, 2, "no.such*", v3, "--tokens", "5,6", "-o", o, "--taps", "lm_head.output,no.such*");
        REFUSED(PIPE, 2, "no.such*", v3, "--tokens", "5,6", "-o", o, "--taps", "no.such*", "--reference");
        REFUSED(PIPE, 2, "wants -n", v3, "--tokens", "5,6", "-o", o, "--draft", "mtp-eagle");
        REFUSED(PIPE, 2,
                "--as vllm-2025 also selects --draft mtp-eagle, which wants -n N; for one pass without drafts, give "
                "--convention as=vllm-2025 instead of --as",
                v3, "--tokens", "5,6", "-o", o, "--as", "vllm-2025");
        REFUSED(PIPE, 2, "wants -n N and no --reference; for one pass without drafts, give --convention as=mindie", v3,
                "--tokens", "5,6", "-o", o, "--as", "mindie", "--reference");
        REFUSED(PIPE, 2, "do not go with it", v3, "--tokens", "5,6", "-o", o, "--reference", "--context", "9");
        REFUSED(PIPE, 2, "--reference", v3, "--tokens", "5,6", "-o", o, "--reference", "-n", "3");
        REFUSED(PIPE, 2, "vocabulary of 160", v3, "--tokens", "5,160", "-o", o);
        REFUSED(PIPE, 2, "context", v3, "--tokens", "5,6,7", "-o", o, "--context", "2");
        REFUSED(SMALL_FILES, 1, "File too large", v3, "--tokens", PROMPT, "-o", o);
    }
    REFUSED(PIPE, 1, missing, v3, "--tokens", "5,6", "-o", missing);
    REFUSED(PIPE, 2, "-o is missing", v3, "--tokens", "5,6");
    strcat(missing, "/x.safetensors");
    REFUSED(PIPE, 1, missing, v3, "--tokens", "5,6", "-o", missing);
    remove_dir(dir);
}

TEST(an_earlier_dump_stays_whole_until_the_next_one_is)
{
    char dir[64], file[96];
    size_t left = 2;
    make_dir(dir);
    snprintf(file, sizeof file, "%s/x.safetensors", dir);
    json_decref(JSON("dump", checkpoints[0], "--tokens", "5,6,7", "-o", file));
    struct dump before = read_dump(dir, "x"), after;
    REFUSED(PIPE, 1, "it exists, and --force is not given", checkpoints[0], "--tokens", "5,6", "-o", file);
    REFUSED(PIPE, 2, "no.such*", checkpoints[0], "--tokens", "5,6", "-o", file, "--taps", "*,no.such*", "--force");
    /* 4096 bytes of data fit into the limit, the file with its header does not */
    REFUSED(SMALL_FILES, 1, "File too large", checkpoints[0], "--tokens", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16",
            "-o", file, "--taps", "model.norm.output", "--force");
    after = read_dump(dir, "x");
    assert_true(before.file.size == after.file.size && json_equal(before.lines, after.lines));
    close_dump(&before);
    close_dump(&after);
    remove_dir(dir);
}

TEST(a_file_or_a_directory_is_written_whole_each_time)
{
    char dir[64], file[96];
    for (int round = 0; round < 2; round++) { /* DIR/x.safetensors, and DIR, which is there */
        make_dir(dir);
        snprintf(file, sizeof file, round ? "%s" : "%s/x.safetensors", dir);
        for (int again = 0; again < 2; again++) { /* the shorter one last */
            const char *tokens = again ? "9,8" : PROMPT, *model = again ? TINY "v2-lite" : TINY "v3";
            struct dump d, fresh;
            json_t *j = JSON("dump", model, "--tokens", tokens, "-o", file, "--force");
            d = read_dump(dir, round ? "dump" : "x");
            DUMP(fresh, model, "--tokens", tokens);
            expect_keys(j, "out:s tensors:i");
            assert_string_equal(string(j, "out"), file);
            assert_int_equal(integer(j, "tensors"), json_array_size(d.lines));
            assert_int_equal(d.file.size, fresh.file.size);
            assert_memory_equal(d.file.bytes, fresh.file.bytes, fresh.file.size);
            assert_true(json_equal(d.lines, fresh.lines));
            json_decref(j);
            close_dump(&d);
            close_dump(&fresh);
        }
        expect_refused(RUN("dump", TINY "v3", "--tokens", "5"), 2, "-o is missing", dir, 2); /* two files, no more */
        remove_dir(dir);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_engine_and_the_reference_dump_the_same_values_under_the_same_names),
        cmocka_unit_test(taps_change_no_bit),
        cmocka_unit_test(rows_of_logits_that_stand_have_the_fingerprint_of_generate),
        cmocka_unit_test(the_manifest_says_what_every_row_is_and_the_hash_of_its_tensor),
        cmocka_unit_test(a_prompt_in_chunks_has_the_rows_of_one_pass),
        cmocka_unit_test(modules_take_the_targets_hidden_rows),
        cmocka_unit_test(within_a_layer_and_between_layers_values_join_bit_for_bit),
        cmocka_unit_test(what_is_refused_is_refused_with_a_sentence_and_leaves_no_file),
        cmocka_unit_test(an_earlier_dump_stays_whole_until_the_next_one_is),
        cmocka_unit_test(a_file_or_a_directory_is_written_whole_each_time),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
