/* tests/cli/test_trace_example.c -- a trace beside a worked example on paper: MindIE's, as its documentation draws it
 * for a prompt A B C D and two drafts, in golden/trace/mindie.txt; and what padding must not change. Runs the program
 * itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/verbatim.h"
#include "tests/support/process.h"
#include "numbers/numbers.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

static vb_error err;
#define OK(call) do { if (call) fail_msg("%s", err.message); } while (0)

static vb_model *open_model(const char *dir, const char *conventions)
{
    vb_model *m;
    vb_model_options o = {.conventions = conventions};
    OK(vb_model_open(&m, dir, &o, &err));
    return m;
}

/* ---- the worked example ------------------------------------------------------------------------------------------ */

#define EXAMPLE_TOKENS 9 /* A to I */
#define PROMPTS 20000    /* to search; one in some hundred goes the example's way */

/* Which of its drafts a run's rounds accepted. */
struct rounds {
    uint64_t decode;
    int32_t draft[2][2], chosen[2][3];
    int proposed[2], n[2];
};

static void note(void *context, const vb_trace *t)
{
    struct rounds *r = context;
    if (t->kind != VB_TRACE_CHOOSE || t->round == 0 || t->round > 2)
        return;
    uint64_t i = t->round - 1;
    if (t->depth >= 0 && r->proposed[i] < 2)
        r->draft[i][r->proposed[i]++] = t->token;
    else if (t->depth < 0 && r->n[i] < 3)
        r->chosen[i][r->n[i]++] = t->token;
}

/* The first round misses both drafts, the second hits both, and the wrong g is not the G that comes to stand there. */
static int goes_the_examples_way(const vb_model *m, const int32_t *prompt)
{
    struct rounds r = {0};
    vb_result result;
    vb_session *s;
    vb_generate_options g = {.max_tokens = 5, .ignore_eos = 1};
    vb_session_options o = {.context = 32, .threads = 1, .drafting.method = "eagle-reroll", .drafting.tokens = 2,
                            .padded = 1, .trace = note, .trace_context = &r};
    OK(vb_session_open(&s, m, &o, &err));
    OK(vb_append(s, prompt, 4, &err));
    OK(vb_generate(s, &g, &result, &err));
    vb_session_close(s);
    return r.proposed[0] == 2 && r.proposed[1] == 2 && r.n[0] == 1 && r.n[1] == 3 && r.draft[0][1] != r.chosen[1][0];
}

/* "12,7,300,41": four tokens; a model that is trained anew has others. */
static void find_prompt(char *text, size_t room)
{
    vb_model *m = open_model("golden/tale", "as=mindie");
    uint64_t random = 1;
    int found = 0;
    for (int i = 0; i < PROMPTS && !found; i++) {
        int32_t prompt[4];
        for (int j = 0; j < 4; j++) {
            random = lcg_next(random);
            prompt[j] = (int32_t)((random >> 33) % (uint64_t)vb_vocab_size(m));
        }
        found = goes_the_examples_way(m, prompt);
        snprintf(text, room, "%d,%d,%d,%d", (int)prompt[0], (int)prompt[1], (int)prompt[2], (int)prompt[3]);
        if (found)
            print_message("prompt %s, the %d. tried\n", text, i + 1);
    }
    vb_model_close(m);
    if (!found)
        fail_msg("none of %d prompts of golden/tale misses both drafts of the first round and hits both of the second",
                 PROMPTS);
}

struct example {
    long long tokens[EXAMPLE_TOKENS];
    FILE *to;
};

/* The letter of a place in the text: small where the token is a wrong one. */
static char letter(const struct example *e, long long index, long long token)
{
    assert_true(index >= 0 && index < EXAMPLE_TOKENS);
    return (char)((token == e->tokens[index] ? 'A' : 'a') + index);
}

static long long at(const json_t *pass, const char *key, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(pass, key), i));
}

static void put_numbers(FILE *to, const json_t *pass, const char *key)
{
    for (size_t i = 0; i < json_array_size(json_object_get(pass, key)); i++)
        fprintf(to, "%s%lld", i ? " " : "", at(pass, key, i));
    fputs(" | ", to);
}

/* The target's hidden rows by their letters; the module's, by the letter that its row took in the pass before, or x. */
static void put_hidden(const struct example *e, const json_t *pass, const json_t *before)
{
    for (size_t i = 0; i < json_array_size(json_object_get(pass, "hidden")); i++) {
        const json_t *o = json_array_get(json_object_get(pass, "hidden"), i);
        long long row = integer(o, "row");
        size_t j = 0;
        fputs(i ? " " : "", e->to);
        if (json_is_null(o)) {
            fputc('0', e->to);
        } else if (!strcmp(string(o, "from"), "target")) {
            fputc('A' + (int)row, e->to);
        } else {
            while (j < json_array_size(json_object_get(before, "index")) && at(before, "index", j) != row)
                j++;
            if (j == json_array_size(json_object_get(before, "index")))
                fail_msg("hidden row %lld is not of the pass before", row);
            if (at(before, "draft", j) < 0)
                fputc('x', e->to);
            else
                fprintf(e->to, "module's %c", letter(e, row + 1, at(before, "input_ids", j)));
        }
    }
    fputs(" | ", e->to);
}

static void put_result(const struct example *e, const json_t *pass, int is_target)
{
    const json_t *chosen = json_object_get(pass, "chosen"), *kept = json_object_get(pass, "hidden_kept");
    int discarded = !is_target && integer(pass, "round") == 0;
    for (size_t i = 0; i < json_array_size(chosen) && !discarded; i++) {
        const json_t *c = json_array_get(chosen, i);
        long long row = at(pass, "index", (size_t)integer(c, "row"));
        fprintf(e->to, "%s%c", i ? " " : "", letter(e, row + (is_target ? 1 : 2), integer(c, "token")));
    }
    if (is_target && json_array_size(json_object_get(pass, "lm_head_indices")) > 1)
        fprintf(e->to, ", accepted %lld of 2", integer(pass, "accepted"));
    if (json_array_size(kept))
        fputs(", hidden ", e->to);
    for (size_t i = 0; i < json_array_size(kept); i++)
        fputc('A' + (int)at(pass, "hidden_kept", i), e->to);
    fputs(discarded ? "draft discarded\n" : "\n", e->to);
}

static void put_line(const struct example *e, const json_t *pass, const json_t *before)
{
    int is_target = json_is_null(json_object_get(pass, "depth"));
    long long round = integer(pass, "round");
    round ? fprintf(e->to, "decode %lld | ", round) : fputs("prefill | ", e->to);
    fprintf(e->to, "%s | ", is_target ? "target" : "module");
    for (size_t i = 0; i < json_array_size(json_object_get(pass, "input_ids")); i++) {
        long long token = at(pass, "input_ids", i), draft = at(pass, "draft", i);
        if (draft < 0)
            assert_int_equal(token, 0);
        fprintf(e->to, "%s%c", i ? " " : "", draft < 0 ? '0' : letter(e, at(pass, "index", i) + !is_target, token));
    }
    fputs(" | ", e->to);
    put_numbers(e->to, pass, "slots");
    put_numbers(e->to, pass, "positions");
    fprintf(e->to, "%lld | ", integer(pass, "context_length"));
    put_numbers(e->to, pass, "lm_head_indices");
    is_target ? fputs("| ", e->to) : put_hidden(e, pass, before);
    put_result(e, pass, is_target);
}

static json_t *lines_of(const struct said *s)
{
    json_t *lines = json_array();
    char *place = NULL, *copy = strdup(s->out);
    for (char *line = strtok_r(copy, "\n", &place); line; line = strtok_r(NULL, "\n", &place))
        if (json_array_append_new(lines, json_loads(line, JSON_REJECT_DUPLICATES, NULL)))
            fail_msg("%s: a line is no JSON object: %.300s", s->command, line);
    free(copy);
    return lines;
}

TEST(the_worked_example_of_mindie_is_reproduced)
{
    char prompt[64], *made = NULL, golden[2048];
    size_t size, used;
    struct example e = {.to = open_memstream(&made, &size)};
    find_prompt(prompt, sizeof prompt);
    struct said s = RUN("trace", "golden/tale", "--tokens", prompt, "-n", "5", "--ignore-eos", "--as", "mindie",
                        "--draft-tokens", "2", "--padded", "--json");
    expect_code(&s, 0);
    json_t *lines = lines_of(&s), *end = json_array_get(lines, json_array_size(lines) - 1);
    for (size_t i = 0; i < EXAMPLE_TOKENS; i++)
        e.tokens[i] = i < 4 ? at(json_array_get(lines, 0), "prompt", i) : at(end, "tokens", i - 4);
    for (size_t i = 1; i + 1 < json_array_size(lines); i++)
        put_line(&e, json_array_get(lines, i), json_array_get(lines, i - 1));
    fclose(e.to);
    FILE *f = fopen("golden/trace/mindie.txt", "r");
    assert_non_null(f);
    used = fread(golden, 1, sizeof golden - 1, f);
    golden[used] = '\0';
    fclose(f);
    char *from = strstr(golden, "\n\n"); /* what the columns are */
    assert_non_null(from);
    if (strcmp(from + 2, made))
        fail_msg("prompt %s: the trace\n%sis not golden/trace/mindie.txt\n%s", prompt, made, from + 2);
    free(made);
    json_decref(lines);
    forget(&s);
}

/* ---- padding ----------------------------------------------------------------------------------------------------- */

static const char *const methods[] = {"mtp-vanilla", "mtp-eagle", "eagle-reroll", "eagle-keep"};

struct outcome {
    int32_t tokens[64];
    size_t count;
    vb_result result;
    uint64_t drafts; /* a sum over what modules proposed */
};

static void add_drafts(void *context, const vb_trace *t)
{
    struct outcome *o = context;
    if (t->kind == VB_TRACE_CHOOSE && t->depth >= 0)
        o->drafts = (o->drafts ^ (uint64_t)(uint32_t)t->token) * 1099511628211u;
}

static struct outcome run(const vb_model *m, const char *method, int K, float temperature, int padded, int traced)
{
    static const int32_t prompt[] = {5, 6, 7, 70, 9, 5, 6, 7};
    struct outcome o = {0};
    vb_session *s;
    size_t count;
    vb_generate_options g = {.max_tokens = 24, .ignore_eos = 1, .fingerprint = 1};
    vb_session_options so = {.context = 40, .threads = 1, .drafting.method = method, .drafting.tokens = K,
                             .padded = padded, .sampling = {.temperature = temperature, .seed = 7},
                             .poison_cut_rows = 1, .trace = traced ? add_drafts : NULL, .trace_context = &o};
    OK(vb_session_open(&s, m, &so, &err));
    OK(vb_append(s, prompt, COUNT(prompt), &err));
    OK(vb_generate(s, &g, &o.result, &err));
    const int32_t *tokens = vb_tokens(s, &count);
    o.count = count;
    assert_true(count <= COUNT(o.tokens));
    memcpy(o.tokens, tokens, count * sizeof *tokens);
    vb_session_close(s);
    return o;
}

static void check_same(const char *what, const struct outcome *a, const struct outcome *b)
{
    if (a->count != b->count || memcmp(a->tokens, b->tokens, a->count * sizeof *a->tokens) ||
        a->result.fingerprint != b->result.fingerprint)
        fail_msg("%s: %zu tokens, fingerprint %016llx; wanted %zu, %016llx", what, b->count,
                 (unsigned long long)b->result.fingerprint, a->count, (unsigned long long)a->result.fingerprint);
}

TEST(padded_and_unpadded_give_the_same_output_and_the_same_drafts)
{
    static const char *const dirs[] = {"golden/tiny/v3-mtp3", "golden/tale"}, *const conventions[] = {"", "as=mindie"};
    size_t accepted = 0;
    for (size_t i = 0; i < COUNT(dirs) * COUNT(conventions); i++) {
        vb_model *m = open_model(dirs[i / 2], conventions[i % 2]);
        for (int hot = 0; hot < 2; hot++) {
            struct outcome plain = run(m, "none", 0, (float)hot, 0, 0);
            for (size_t k = 0; k < COUNT(methods) * 5; k++) {
                char what[160];
                int K = (int)(k / COUNT(methods)) + 1;
                const char *method = methods[k % COUNT(methods)];
                struct outcome a = run(m, method, K, (float)hot, 0, 1), b = run(m, method, K, (float)hot, 1, 1);
                struct outcome untraced = run(m, method, K, (float)hot, 1, 0);
                snprintf(what, sizeof what, "%s %s, %s, K %d, temperature %d", dirs[i / 2], conventions[i % 2], method,
                         K, hot);
                check_same(what, &plain, &a);
                check_same(what, &plain, &b);
                check_same(what, &plain, &untraced);
                if (a.drafts != b.drafts || a.result.accepted != b.result.accepted ||
                    a.result.drafted != b.result.drafted)
                    fail_msg("%s: padded, other drafts: %zu of %zu accepted, wanted %zu of %zu", what,
                             b.result.accepted, b.result.drafted, a.result.accepted, a.result.drafted);
                if (untraced.result.accepted != b.result.accepted || untraced.result.forwards != b.result.forwards)
                    fail_msg("%s: without a trace, other drafts", what);
                accepted += a.result.accepted;
            }
        }
        vb_model_close(m);
    }
    print_message("%zu drafts accepted\n", accepted);
    assert_true(accepted > 100);
}

int main(int argc, char **argv)
{
    find_verbatim(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_worked_example_of_mindie_is_reproduced),
        cmocka_unit_test(padded_and_unpadded_give_the_same_output_and_the_same_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
