/* tests/cli/test_routes_cli.c -- --routes-in and --routes-out: every format holds the same routes, and forced routes
 * that equal the chosen ones change no byte. Runs the program itself (argv[1], or ../verbatim beside this one) in the
 * repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/cli_files.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define IDS "5,6,7,70,9,33,17,2"
#define NUM_TOKENS 8
#define LAYERS 3 /* of golden/tiny/v3: layer 0 is dense */
#define TOP_K 3

static void put_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Prints routes as nested arrays: tokens [first, end), all layers or only the MoE layers, the experts of a layer in
 * reverse order. */
static void print_lists(char *to, const int32_t *experts, size_t first, size_t end, int from_layer)
{
    to += sprintf(to, "[");
    for (size_t t = first; t < end; t++) {
        to += sprintf(to, "%s[", t > first ? ", " : "");
        for (int l = from_layer; l < LAYERS; l++) {
            to += sprintf(to, "%s[", l > from_layer ? ", " : "");
            for (int k = TOP_K; k-- > 0;)
                to += sprintf(to, "%d%s", experts[(t * LAYERS + (size_t)l) * TOP_K + (size_t)k], k ? ", " : "");
            to += sprintf(to, "]");
        }
        to += sprintf(to, "]");
    }
    sprintf(to, "]");
}

/* The logits with the routes of `path` must have the bytes of `wanted`. */
static void expect_logits(const char *path, const char *wanted)
{
    const char *got = in_dir(7, "got.safetensors");
    done(RUN("logits", V3, "--tokens", IDS, "-o", got, "--routes-in", path, "--force", "--threads", "2",
             "--prefill-chunk", "3"));
    expect_equal_files(got, wanted);
}

/* The routes of golden/tiny/v3 after IDS. */
static void routes_of(int32_t experts[NUM_TOKENS * LAYERS * TOP_K], const char *logits)
{
    size_t size;
    const char *path = in_dir(6, "routes.npy");
    done(RUN("logits", V3, "--tokens", IDS, "-o", logits, "--routes-out", path));
    char *bytes = bytes_of(path, &size);
    assert_true(size > 128 && !memcmp(bytes, "\x93NUMPY\1", 7) && strstr(bytes + 10, "'descr': '<i4'") &&
                strstr(bytes + 10, "'shape': (8, 3, 3)"));
    assert_int_equal((size - NUM_TOKENS * LAYERS * TOP_K * 4) % 64, 0);
    memcpy(experts, bytes + size - NUM_TOKENS * LAYERS * TOP_K * 4, NUM_TOKENS * LAYERS * TOP_K * 4);
    free(bytes);
}

TEST(all_formats_hold_the_same_routes)
{
    static char list[8192], all[20000];
    int32_t experts[NUM_TOKENS * LAYERS * TOP_K];
    const char *logits = in_dir(0, "logits.safetensors"), *json = in_dir(1, "routes.json"),
               *own = in_dir(2, "routes.safetensors");
    routes_of(experts, logits);
    for (int k = 0; k < TOP_K; k++)
        assert_int_equal(experts[k], 0); /* a dense layer */
    expect_logits(in_dir(6, "routes.npy"), logits);
    done(RUN("logits", V3, "--tokens", IDS, "-o", in_dir(7, "got.safetensors"), "--force", "--routes-out", json));
    expect_logits(json, logits);
    done(RUN("logits", V3, "--tokens", IDS, "-o", in_dir(7, "got.safetensors"), "--force", "--routes-out", own));
    expect_logits(own, logits);

    const char *other = in_dir(3, "lists.json"); /* vLLM: RequestOutput as JSON, all layers; the last token has no
                                                    row */
    print_lists(list, experts, 0, NUM_TOKENS - 1, 0);
    snprintf(all, sizeof all, "{\"outputs\": [{\"index\": 0, \"routed_experts\": %s}]}", list);
    put_text(other, all);
    expect_logits(other, logits);
    print_lists(list, experts, 0, 5, 1); /* the prompt beside the answer, MoE layers only */
    int used = snprintf(all, sizeof all, "[{\"prompt_routed_experts\": %s, ", list);
    print_lists(list, experts, 5, NUM_TOKENS, 1);
    snprintf(all + used, sizeof all - (size_t)used, "\"choices\": [{\"routed_experts\": %s}]}]", list);
    put_text(other, all);
    expect_logits(other, logits);
    print_lists(list, experts, 3, NUM_TOKENS - 1, 0); /* SGLang: tokens before routed_experts_start_len have no row */
    snprintf(all, sizeof all, "{\"meta_info\": {\"routed_experts_start_len\": 3, \"routed_experts\": %s}}", list);
    put_text(other, all);
    expect_logits(other, logits);
}

/* In base64, the numbers of SGLang are 4 bytes each. This text was made with Python's base64 module. */
TEST(base64_is_that_of_the_standard)
{
    const char *path = in_dir(1, "r.json"), *npy = in_dir(2, "r.npy");
    size_t size;
    put_text(path, "{\"meta_info\": {\"routed_experts\": \"AAAAAAAAAAAAAAAAAAAAAAEAAAACAAAACwAAAAoAAAAJAAAA\"}}");
    done(RUN("logits", V3, "--tokens", "5", "-o", in_dir(0, "l.safetensors"), "--routes-in", path, "--routes-out",
             npy));
    char *bytes = bytes_of(npy, &size);
    assert_memory_equal(bytes + size - 36, ((int32_t[]){0, 0, 0, 0, 1, 2, 9, 10, 11}), 36);
    free(bytes);
    put_text(path, "{\"meta_info\": {\"routed_experts\": \"AAAAAAAAAAAAAAAAAAAA*AEAAAACAAAACwAAAAoAAAAJAAAA\"}}");
    expect_failure(RUN("logits", V3, "--tokens", "5", "-o", in_dir(3, "m"), "--routes-in", path), 1,
                   "routed_experts is not base64");
}

TEST(generate_and_eval_take_and_write_routes)
{
    const char *routes = in_dir(0, "routes.safetensors"), *again = in_dir(1, "again.safetensors"),
               *drafted = in_dir(2, "drafted.safetensors");
    json_t *plain = JSON("generate", V3, "--tokens", IDS, "-n", "9", "--ignore-eos", "--routes-out", routes);
    json_t *same = JSON("generate", V3, "--tokens", IDS, "-n", "9", "--ignore-eos", "--routes-in", routes,
                        "--routes-out", again, "--threads", "3");
    json_t *drafts = JSON("generate", V3, "--tokens", IDS, "-n", "9", "--ignore-eos", "--draft", "mtp-eagle",
                          "--draft-tokens", "3", "--draft-topk", "2", "--routes-out", drafted);
    expect_same(plain, same, "fingerprint", "forced routes");
    expect_same(plain, drafts, "fingerprint", "drafts");
    expect_equal_files(routes, again);
    expect_equal_files(routes, drafted);
    json_decref(plain), json_decref(same), json_decref(drafts);

    const char *eval = in_dir(3, "eval.npy"), *windows = in_dir(4, "again.npy");
    plain = JSON("eval", V3, "--tokens", IDS, "--context", "3", "--routes-out", eval);
    same = JSON("eval", V3, "--tokens", IDS, "--context", "3", "--routes-in", eval, "--routes-out", windows);
    expect_same(plain, same, "main_loss", "windows");
    expect_equal_files(eval, windows);
    json_decref(same);
    put_text(in_dir(5, "other.json"),
             "{\"routed_experts\": [[[0,0,0],[1,2,3],[4,5,6]],[[0,0,0],[1,2,3],[4,5,6]],[[0,0,0],[1,2,3],[4,5,6]],"
             "[[0,0,0],[1,2,3],[4,5,6]],[[0,0,0],[-1,-1,-1],[-1,-1,-1]],[[0,0,0],[1,2,3],[4,5,6]],[[0,0,0],[1,2,3],"
             "[4,5,6]]]}");
    same = JSON("eval", V3, "--tokens", IDS, "--context", "3", "--routes-in", in_dir(5, "other.json"), "--routes-out",
                windows, "--force");
    assert_true(real(plain, "main_loss") != real(same, "main_loss"));
    size_t size;
    char *bytes = bytes_of(windows, &size);
    /* token 6, in the third window */
    assert_memory_equal(bytes + size - 2 * 36, ((int32_t[]){0, 0, 0, 1, 2, 3, 4, 5, 6}), 36);
    free(bytes);
    json_decref(plain), json_decref(same);
}

#define FORCED "{\"routed_experts\": [[[0,0,0],[1,2,3],[4,5,6]],[[0,0,0],[1,2,3],[4,5,6]]]}"

/* The answer to line `index` in a file of answers. */
static json_t *answer_of(const char *answers, size_t index)
{
    size_t size;
    char *text = bytes_of(answers, &size);
    json_t *found = NULL, *one;
    for (char *at = text; at < text + size; at = strchr(at, '\n') + 1) {
        one = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(one);
        if (integer(one, "index") == (long long)index && !found)
            found = json_incref(one);
        json_decref(one);
    }
    free(text);
    assert_non_null(found);
    return found;
}

TEST(lines_of_prompts_take_forced_routes_as_a_single_prompt_does)
{
    static char lines[1200];
    const char *routes = in_dir(0, "routes.json"), *prompts = in_dir(1, "prompts.jsonl"),
               *answers = in_dir(2, "answers.jsonl");
    put_text(routes, FORCED);
    snprintf(lines, sizeof lines,
             "{\"tokens\": [5,6,7], \"routes_in\": \"%s\"}\n{\"tokens\": [5,6,7]}\n"
             "{\"tokens\": [5,6,7], \"routed_experts\": [[[0,0,0],[1,2,3],[4,5,6]],[[0,0,0],[1,2,3],[4,5,6]]]}\n"
             "{\"tokens\": [5,6,7], \"draft\": \"ngram\", \"routes_in\": \"%s\"}\n", routes, routes);
    put_text(prompts, lines);
    json_t *forced = JSON("generate", V3, "--tokens", "5,6,7", "-n", "8", "--ignore-eos", "--routes-in", routes);
    json_t *free_ = JSON("generate", V3, "--tokens", "5,6,7", "-n", "8", "--ignore-eos");
    assert_string_not_equal(string(forced, "fingerprint"), string(free_, "fingerprint"));
    done(RUN("generate", V3, "--prompts", prompts, "-o", answers, "-n", "8", "--ignore-eos"));
    for (size_t i = 0; i < 4; i++) {
        json_t *one = answer_of(answers, i);
        expect_same(one, i == 1 ? free_ : forced, "fingerprint", "a line of prompts");
        expect_same(one, i == 1 ? free_ : forced, "tokens", "a line of prompts");
        json_decref(one);
    }
    json_decref(forced), json_decref(free_);
    /* all answers are there */
    done(RUN("generate", V3, "--prompts", prompts, "-o", answers, "-n", "8", "--ignore-eos"));
    put_text(routes, "{\"routed_experts\": [[[0,0,0],[1,2,3],[4,5,6]],[[0,0,0],[1,2,3],[4,5,7]]]}");
    expect_failure(RUN("generate", V3, "--prompts", prompts, "-o", answers, "-n", "8", "--ignore-eos"), 1, "line 1");
    put_text(prompts, "{\"tokens\": [5,6,7,8], \"routed_experts\": [[[0,0,0],[1,2,3],[4,5,6]]]}");
    expect_failure(RUN("generate", V3, "--prompts", prompts), 1,
                   "line 1: routed_experts: it has routes of 1 tokens, the text has 4");
    put_text(prompts, "{\"tokens\": [5], \"routed_experts\": [], \"routes_in\": \"x\"}");
    expect_failure(RUN("generate", V3, "--prompts", prompts), 2, "line 1: wanted one of routed_experts and routes_in");
    put_text(prompts, "{\"tokens\": [5], \"routes_in\": 3}");
    expect_failure(RUN("generate", V3, "--prompts", prompts), 2,
                   "line 1: routes_in is 3, wanted the name of a file of routes");
    put_text(prompts, "{\"tokens\": [5], \"routes_in\": \"/nothing/here\"}");
    expect_failure(RUN("generate", V3, "--prompts", prompts), 1, "/nothing/here");
}

TEST(a_session_with_forced_routes_wants_them_again)
{
    const char *session = in_dir(0, "session"), *routes = in_dir(1, "routes.json");
    put_text(routes, "{\"routed_experts\": [[[0,0,0],[1,2,3],[4,5,6]],[[0,0,0],[1,2,3],[4,5,6]]]}");
    json_t *whole = JSON("generate", V3, "--tokens", "5,6,7", "-n", "8", "--ignore-eos", "--routes-in", routes);
    done(RUN("generate", V3, "--tokens", "5,6,7", "-n", "4", "--ignore-eos", "--routes-in", routes, "--save-session",
             session));
    expect_failure(RUN("generate", V3, "--session", session, "-n", "4"), 2,
                   "was saved with other forced routes for its 6 computed tokens");
    json_t *rest = JSON("generate", V3, "--session", session, "-n", "4", "--ignore-eos", "--routes-in", routes);
    int32_t a[8], b[4];
    assert_int_equal(tokens_of(whole, a, 8), 8);
    assert_int_equal(tokens_of(rest, b, 4), 4);
    assert_memory_equal(a + 4, b, sizeof b);
    json_decref(whole), json_decref(rest);
    json_t *info = JSON("session", "info", session);
    assert_int_equal(strlen(string(info, "routes")), 16);
    json_decref(info);
}

static void expect_refused(const char *text, const char *part)
{
    const char *path = in_dir(1, "routes.json");
    put_text(path, text);
    expect_failure(RUN("generate", V3, "--tokens", IDS, "-n", "1", "--routes-in", path),
                   strstr(part, "the routes send") ? 2 : 1, part);
}

TEST(an_invalid_file_is_one_sentence)
{
#define ROW "[[0,0,0],[1,2,3],[4,5,6]]"
#define SIX ROW "," ROW "," ROW "," ROW "," ROW "," ROW
    expect_refused("{\"routed_experts\": [" SIX "]}", "it has routes of 6 tokens, the text has 8");
    expect_refused("{\"routed_experts\": [" SIX ",[[0,0,0],[1,2,12],[4,5,6]]]}",
                   "the routes send token 6 in layer 1 to expert 12, wanted 0 to 11");
    expect_refused("{\"routed_experts\": [" SIX ",[[0,0,0],[1,2,3],[4,5,4]]]}",
                   "the routes send token 6 in layer 2 to the same expert twice");
    expect_refused("{\"routed_experts\": [" SIX ",[[0,0,0],[1,2,3]]]}",
                   "routed_experts is not an array [tokens, layers, top_k] of integers");
    expect_refused("{\"routed_experts\": [[[1,2],[3,4],[5,6]]]}",
                   "the routed experts have the shape [1, 3, 2], wanted 3 layers and 3 experts per token");
    expect_refused("{\"routed_experts\": [[[1,2,3.5]]]}", "routed_experts is not an array");
    expect_refused("{\"routed_experts\": 5}", "routed_experts is neither an array nor a text");
    expect_refused("{\"routed_experts\": \"AAAA\"}", "routed_experts has 3 bytes, wanted int32 [tokens, 3, 3]");
    expect_refused("{\"experts\": 5}", "it has no key routed_experts");
    expect_refused("{\"routed_experts\": [", "it ends too early");
    expect_refused("\x93NUMPY\1", "routes.json: "); /* it ends early */
    expect_failure(RUN("generate", V3, "--tokens", IDS, "--routes-in", "golden/tiny/v3/model.safetensors"), 1,
                   "it has no tensor routed_experts");
    expect_failure(RUN("generate", V3, "--tokens", IDS, "--routes-in", in_dir(2, "nothing")), 1, "No such file");
    expect_failure(RUN("logits", V3, "--tokens", "5", "-o", in_dir(3, "l"), "--routes-out", in_dir(2, "r.txt")), 2,
                   "wanted a name that ends in .safetensors, .npy or .json");
    expect_failure(RUN("generate", V3, "--prompts", "golden/tale/prompts.jsonl", "--routes-in", "x"), 2,
                   "--prompts and --routes-in do not go together");
    put_text(in_dir(1, "routes.json"), "{\"routed_experts\": [" SIX "," ROW "," ROW "]}");
    expect_failure(RUN("logits", V3, "--tokens", "5", "-o", in_dir(3, "l"), "--routes-in", in_dir(1, "routes.json")), 1,
                   "it has routes of 8 tokens, the text only has 1");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(all_formats_hold_the_same_routes),
        IN_DIR(base64_is_that_of_the_standard),
        IN_DIR(generate_and_eval_take_and_write_routes),
        IN_DIR(lines_of_prompts_take_forced_routes_as_a_single_prompt_does),
        IN_DIR(a_session_with_forced_routes_wants_them_again),
        IN_DIR(an_invalid_file_is_one_sentence),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
