/* tests/cli/test_prompts_errors.c -- what `generate --prompts` refuses: files of answers that are something else, which
 * stay as they are; files of prompts that are wrong, before anything starts. Runs the program itself (argv[1], or
 * ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/file.h>

#include "tests/support/golden.h"
#include "tests/support/prompts.h"

/* ---- files that are something else ------------------------------------------------------------------------------- */

/* Refuses by name, and the file is what it was. */
static void leaves_alone(const char *part, const char *const *arguments)
{
    size_t before, after;
    char *was = bytes_of(out, &before);
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 1);
    const char *last = s.err_size > 1 ? memrchr(s.err, '\n', s.err_size - 1) : NULL;
    if (s.out_size || !strstr(last ? last : s.err, out) || !strstr(s.err, part))
        fail_msg("wanted %s and %s: %s%s", out, part, s.out, s.err);
    forget(&s);
    char *is = bytes_of(out, &after);
    assert_int_equal(before, after);
    assert_memory_equal(was, is, before);
    free(was);
    free(is);
}
#define LEAVES_ALONE(part, ...) leaves_alone(part, (const char *const[]){verbatim, __VA_ARGS__, NULL})

TEST(a_file_that_is_something_else_is_left_alone)
{
    static const char *const
        others[] = {"hello\n", "hello", "{}\n", "\n", "{\"index\": 0}\n", "[]\n",
                    "{\"index\": 0, \"request\": \"0123456789abcdef\"}\n",
                    "{\"index\": 0, \"request\": \"0123456789abcdef\", \"tokens\": []}\n",
                    "{\"index\": 0, \"request\": \"0123", "{\"index\": 77", "{\"indices\"",
                    "{\"index\": -1, \"request\": \"0123456789abcdef\", \"tokens\": []}\n",
                    "{\"index\": 99999999999, \"request\": \"0123456789abcdef\", \"tokens\": []}\n", "{\"index\": x"};
    write_few();
    for (size_t i = 0; i < COUNT(others); i++) {
        if (!strcmp(others[i], "{\"index\": 77")) /* may be the beginning of anything: nothing is lost */
            continue;
        write_text(dir, "out.jsonl", others[i]);
        LEAVES_ALONE("line 1", FEW_RUN);
    }
    write_file(dir, "out.jsonl", "\0\0\0\0", 4);
    LEAVES_ALONE("line 1", FEW_RUN);
    unlink(out);
    json_decref(JSON(FEW_RUN));
    LEAVES_ALONE("with other options", FEW_RUN, "--temperature", "0.5");
    LEAVES_ALONE("with other options", FEW_RUN, "-n", "6");
    LEAVES_ALONE("with other options", FEW_RUN, "--seed", "1");
    LEAVES_ALONE("with other options", FEW_RUN, "--precision", "bf16");
    LEAVES_ALONE("with other options", FEW_RUN, "--ignore-eos");
    LEAVES_ALONE("with other options", FEW_RUN, "--convention", "latent-eps=config");
    LEAVES_ALONE("with other options", FEW_RUN, "--logit-bias", "5:1");
    LEAVES_ALONE("another model", "generate", "golden/tiny/v3-mtp3", "-n", "5", "--prompts", in, "-o", out);
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 8]}\n{\"tokens\": [8]}\n{\"tokens\": [9, 10], \"id\": \"x\"}\n");
    LEAVES_ALONE("answers another prompt, or was computed", FEW_RUN);
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [8]}\n");
    LEAVES_ALONE("answers a prompt that is not there", FEW_RUN);
    write_few();
    size_t size;
    char *text = bytes_of(out, &size), *twice = malloc(2 * size);
    memcpy(twice, text, size);
    memcpy(twice + size, text, size);
    write_file(dir, "out.jsonl", twice, 2 * size);
    LEAVES_ALONE("line 4 answers a prompt for the second time", FEW_RUN);
    free(text);
    free(twice);
}

/* The same, when it is locked; and the prompts themselves. */
TEST(a_file_that_is_in_use_is_left_alone)
{
    write_few();
    write_text(dir, "out.jsonl", "");
    int fd = open(out, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    LEAVES_ALONE("another run is writing it", FEW_RUN);
    close(fd);
    struct said s = RUN("generate", V3, "--prompts", in, "-o", in);
    expect_failure(s, 1, "is no answer of generate --prompts");
    s = RUN("generate", V3, "--prompts", in, "-o", dir);
    expect_failure(s, 1, dir);
    s = RUN("generate", V3, "--prompts", in, "-o", "/nowhere/out.jsonl");
    expect_failure(s, 1, "/nowhere/out.jsonl: No such file");
}

/* ---- files of prompts that are wrong ----------------------------------------------------------------------------- */

/* Nothing starts, and there is no file. */
static void refuse(const char *line, const char *part)
{
    int code = strcmp(part, "tokenizer.json") ? 2 : 1; /* as for the command line: what it asks for is wrong, or a file
                                                          is missing */
    char text[1024];
    struct stat st;
    snprintf(text, sizeof text, "{\"tokens\": [5]}\n%s\n{\"tokens\": [6]}\n", line);
    write_text(dir, "in.jsonl", text);
    struct said s = RUN(FEW_RUN);
    expect_code(&s, code);
    if (s.out_size || strchr(s.err, '\n') != s.err + s.err_size - 1 || !strstr(s.err, "in.jsonl: line 2: ") ||
        !strstr(s.err, part))
        fail_msg("%s: wanted one sentence with line 2 and %s: %s%s", line, part, s.out, s.err);
    struct said with_json = RUN(FEW_RUN, "--json");
    expect_code(&with_json, code);
    json_t *j = parsed(&with_json);
    if (strncmp(string(j, "error"), s.err + 10, s.err_size - 11))
        fail_msg("%s: %s and %s", line, with_json.out, s.err);
    json_decref(j);
    assert_true(stat(out, &st) < 0);
    forget(&s);
    forget(&with_json);
}

TEST(a_line_that_is_wrong_is_named_before_anything_starts)
{
    static const struct {
        const char *line, *part;
    } cases[] = {
        {"{\"tokens\": [5], \"max_token\": 5}",
         "unknown key \"max_token\"; known are prompt, tokens, messages, id, max_tokens"},
        {"{\"tokens\": [5], \"a\\nb\": 5}", "unknown key \"a\\nb\""},
        {"{\"tokens\": [5]", "column 14: it ends too early"},
        {"{\"tokens\": [5]} {\"tokens\": [6]}", "it is not JSON"},
        {"{\"tokens\": [5], \"tokens\": [6]}", "a key is there twice"},
        {"[5, 6]", "it is [5,6], wanted an object"},
        {"\"Once upon a time\"", "wanted an object"},
        {"Once upon a time", "it is not JSON"},
        {"{}", "wanted one of prompt, tokens and messages, found 0"},
        {"{\"tokens\": null}", "found 0"},
        {"{\"tokens\": [5], \"prompt\": \"x\"}", "found 2"},
        {"{\"tokens\": []}", "tokens is [], wanted"},
        {"{\"tokens\": 5}", "tokens is 5, wanted"},
        {"{\"tokens\": [5, 160]}", "token 1 is 160, outside the vocabulary of 160"},
        {"{\"tokens\": [5, -1]}", "token 1 is -1"},
        {"{\"tokens\": [5, 1.5]}", "token 1 is 1.5"},
        {"{\"tokens\": [\"5\"]}", "token 0 is \"5\""},
        {"{\"tokens\": [4294967301]}", "token 0 is 4294967301"},
        {"{\"tokens\": [99999999999999999999]}", "a number is out of range"},
        {"{\"prompt\": \"x\"}", "tokenizer.json"},
        {"{\"messages\": []}", "tokenizer.json"},
        {"{\"tokens\": [5], \"stop\": \"x\"}", "tokenizer.json"},
        {"{\"tokens\": [5], \"stop\": \"\"}", "stop is \"\", wanted a string that is not empty"},
        {"{\"tokens\": [5], \"stop\": [5]}", "stop is 5"},
        {"{\"tokens\": [5], \"id\": [5]}", "id is [5], wanted a string or a number"},
        {"{\"tokens\": [5], \"max_tokens\": -1}", "max_tokens is -1, wanted an integer from 0 to 1073741824"},
        {"{\"tokens\": [5], \"max_tokens\": 1.5}", "max_tokens is 1.5"},
        {"{\"tokens\": [5], \"max_tokens\": \"9\"}", "max_tokens is \"9\""},
        {"{\"tokens\": [5], \"seed\": -1}", "seed is -1"},
        {"{\"tokens\": [5], \"temperature\": 1e-7}", "wanted 0 or at least 1e-5"},
        {"{\"tokens\": [5], \"temperature\": -1}", "temperature is -1"},
        {"{\"tokens\": [5], \"temperature\": true}", "temperature is true"},
        {"{\"tokens\": [5], \"top_p\": 1.5}", "top_p is 1.5, wanted a number from 0 to 1"},
        {"{\"tokens\": [5], \"top_k\": 1.5}", "top_k is 1.5"},
        {"{\"tokens\": [5], \"draft\": \"guess\"}", "unknown draft method guess"},
        {"{\"tokens\": [5], \"draft\": 5}", "draft is 5"},
        {"{\"tokens\": [5], \"draft\": \"draft-model\"}", "draft-model"},
        {"{\"tokens\": [5], \"draft_tokens\": 16}", "draft_tokens is 16"},
        {"{\"tokens\": [5], \"id\": \"a\\u0000b\"}", "a string holds a zero character"},
        {"{\"tokens\": [5], \"id\": \"\xff\"}", "it is not UTF-8"},
    };
    char line[2048] = "{\"tokens\": [5";
    for (size_t i = 0; i < COUNT(cases); i++)
        refuse(cases[i].line, cases[i].part);
    for (int i = 0; i < 300; i++)
        strcat(line, ",5");
    strcat(line, "]}");
    write_text(dir, "in.jsonl", line);
    expect_failure(RUN("generate", V3, "--prompts", in, "--context", "300"), 2,
                   "line 1: the prompt has 301 tokens, the context 300");
    expect_failure(RUN("generate", V3, "--prompts", in, "--cache-tokens", "200"), 2, "line 1: a prompt of 301 tokens");
}

TEST(files_without_a_prompt_are_refused)
{
    static const char *const empty[] = {"", "\n", "  \r\n\t\n"};
    for (size_t i = 0; i < COUNT(empty); i++) {
        write_text(dir, "in.jsonl", empty[i]);
        expect_failure(RUN(FEW_RUN), 1, "there is no prompt in it");
    }
    expect_failure(RUN("generate", V3, "--prompts", "/nowhere/in.jsonl"), 1, "/nowhere/in.jsonl");
    expect_failure(RUN("generate", V3, "--prompts", dir), 1, dir);
}

TEST(options_that_make_no_sense_with_it_are_refused)
{
    static const struct {
        const char *part, *arguments[6];
    } cases[] = {
        {"--prompts and --tokens do not go together", {"--tokens", "5"}},
        {"--prompts and --prompt do not go together", {"--prompt", "x"}},
        {"--prompts and --prompt-file do not go together", {"--prompt-file", "x"}},
        {"--prompts and --messages do not go together", {"--chat", "--messages", "x"}},
        {"--prompts and --session do not go together", {"--session", "x"}},
        {"--prompts and --save-session do not go together", {"--save-session", "x"}},
        {"--prompts and --logprobs do not go together", {"--logprobs", "3"}},
        {"--prompts and --prefill onednn do not go together", {"--prefill", "onednn"}},
        {"--json wants -o", {"--json"}},
        {"-o is empty", {"-o", ""}},
        {"-o -: wanted the name of a file; without -o, stdout gets the answers", {"-o", "-"}},
        {"--system wants --chat", {"--system", "x"}},
        {"--max-sequences is 65", {"--max-sequences", "65"}},
        {"--max-sequences is 0", {"--max-sequences", "0"}},
        {"--cache-tokens is 0", {"--cache-tokens", "0"}},
        {"--context is 99999", {"--context", "99999"}},
        {"unknown instruction set sse9", {"--isa", "sse9"}},
        {"many prompts at once", {"--acceptance", "rejection", "--temperature", "1", "--draft", "eagle-reroll"}},
    };
    write_few();
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *arguments[MOST_ARGUMENTS] = {verbatim, "generate", V3, "--prompts", in};
        memcpy(arguments + 5, cases[i].arguments, sizeof cases[i].arguments);
        struct said s = run_to(PIPE, arguments);
        expect_code(&s, 2);
        if (!strstr(s.err, cases[i].part) && !strstr(s.out, cases[i].part))
            fail_msg("wanted %s: %s%s", cases[i].part, s.out, s.err);
        forget(&s);
    }
    expect_failure(RUN("generate", V3, "--tokens", "5", "-o", out), 2, "-o wants --prompts");
    expect_failure(RUN("generate", V3, "--tokens", "5", "--max-sequences", "5"), 2, "--max-sequences wants --prompts");
    expect_failure(RUN("generate", V3, "--tokens", "5", "--cache-tokens", "5"), 2, "--cache-tokens wants --prompts");
}

/* A logit that is not a number ends its prompt; that is its answer, also for the next run. */
TEST(an_error_stands_in_place_of_an_answer)
{
    char path[128];
    size_t count;
    json_t *answer[MOST];
    copy_files("golden/tiny/v2-lite", dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    struct golden g = golden_read(path);
    size_t offset = (size_t)((char *)golden_data(&g, "lm_head.weight", &count) - g.bytes);
    golden_close(&g);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, (long)offset + 2 * 77, SEEK_SET);
    fwrite("\xc0\x7f", 1, 2, f);
    fclose(f);
    write_text(dir, "in.jsonl", "{\"tokens\": [5, 6, 7], \"id\": \"a\"}\n{\"tokens\": [5], \"max_tokens\": 0}\n");
    for (int again = 0; again < 2; again++) {
        struct said s = RUN("generate", dir, "-n", "5", "--prompts", in, "-o", out);
        expect_code(&s, 1);
        assert_non_null(strstr(s.err, "1 prompts ended with an error"));
        forget(&s);
        assert_int_equal(read_answers(answer), 2);
        expect_keys(answer[0], "index:i request:s id:s error:s");
        assert_non_null(strstr(string(answer[0], "error"), "token 3"));
        assert_string_equal(string(answer[1], "finish_reason"), "length");
        drop_answers(answer);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH_DIR(a_file_that_is_something_else_is_left_alone),
        WITH_DIR(a_file_that_is_in_use_is_left_alone),
        WITH_DIR(a_line_that_is_wrong_is_named_before_anything_starts),
        WITH_DIR(files_without_a_prompt_are_refused),
        WITH_DIR(options_that_make_no_sense_with_it_are_refused),
        WITH_DIR(an_error_stands_in_place_of_an_answer),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
