/* tests/cli/test_cli_errors.c -- what the `verbatim` command refuses, and how: the exit code, one sentence on stderr or
 * one {"error": ...} on stdout, never a signal. Then the shapes in which options may come. Text is in test_cli_text.c.
 * Runs the program itself (argv[1], or ../verbatim beside this one) in the repository's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/golden.h"
#include "tests/support/process.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define TINY "golden/tiny/"
#define V3 TINY "v3"
#define TOKENIZER "golden/tokenizer"

enum { WRONG = 1, USAGE = 2 };

/* One line that begins with the program's name, without control characters. */
static void expect_sentence(const struct said *s)
{
    int right = s->err_size > 12 && !strncmp(s->err, "verbatim: ", 10) && s->err[s->err_size - 1] == '\n';
    for (size_t i = 0; i + 1 < s->err_size; i++)
        right = right && (unsigned char)s->err[i] >= 0x20 && s->err[i] != 0x7f;
    if (!right || strlen(s->err) != s->err_size)
        fail_msg("%s: stderr should be one sentence: %s", s->command, s->err);
}

/* Runs the command twice, the second time with --json, and wants the same sentence, which holds `part`. */
static void refuse(int code, const char *part, const char *const *arguments)
{
    const char *with_json[MOST_ARGUMENTS] = {arguments[0], arguments[1], "--json"};
    struct said plain = run_to(PIPE, arguments);
    expect_code(&plain, code);
    expect_sentence(&plain);
    if (plain.out_size || !strstr(plain.err, part))
        fail_msg("%s: stdout \"%s\", stderr should hold \"%s\": %s", plain.command, plain.out, part, plain.err);
    for (int i = 2; arguments[i]; i++)
        with_json[i + 1] = arguments[i];
    struct said s = run_to(PIPE, with_json);
    expect_code(&s, code);
    json_t *j = parsed(&s);
    expect_keys(j, "error:s");
    if (s.err_size || strncmp(string(j, "error"), plain.err + 10, plain.err_size - 11))
        fail_msg("%s: stderr \"%s\", stdout %s, without --json %s", s.command, s.err, s.out, plain.err);
    json_decref(j);
    forget(&s);
    forget(&plain);
}

#define REFUSE(code, part, ...) refuse(code, part, (const char *const[]){verbatim, __VA_ARGS__, NULL})

/* Runs and wants success; the output. */
static struct said succeed(const char *const *arguments)
{
    struct said s = run_to(PIPE, arguments);
    expect_code(&s, 0);
    return s;
}

#define SUCCEED(...) succeed((const char *const[]){verbatim, __VA_ARGS__, NULL})

/* ---- the command line: 2 ----------------------------------------------------------------------------------------- */

TEST(unknown_names_are_refused)
{
    REFUSE(USAGE, "unknown command translate", "translate");
    REFUSE(USAGE, "unknown command translate", "translate", V3, "--tokens", "5");
    REFUSE(USAGE, "--frobnicate", "generate", V3, "--tokens", "5", "--frobnicate");
    REFUSE(USAGE, "--frobnicate", "generate", V3, "--tokens", "5", "--frobnicate=1");
    REFUSE(USAGE, "-x", "inspect", "-x", V3);
    REFUSE(USAGE, "--draf", "generate", V3, "--tokens", "5", "--draf", "none"); /* no abbreviations */
    REFUSE(USAGE, "--draft", "logits", V3, "--tokens", "5", "-o", "unused", "--draft", "none");
    REFUSE(USAGE, "-o", "generate", V3, "--tokens", "5", "-o", "unused");
    REFUSE(USAGE, "--all", "generate", V3, "--tokens", "5", "--all");
    REFUSE(USAGE, "guess", "generate", V3, "--tokens", "5", "--draft", "guess");
    REFUSE(USAGE, "sse9", "generate", V3, "--tokens", "5", "--isa", "sse9");
    REFUSE(USAGE, "sse9", "verify", V3, "--tokens", "5", "--isa", "sse9");
    REFUSE(USAGE, "f64", "generate", V3, "--tokens", "5", "--precision", "f64");
    REFUSE(USAGE, "known are f32, bf16, q8, q4 and tensor", "inspect", V3, "--precision", "fp16");
    REFUSE(USAGE, "surplus", "generate", V3, "surplus", "--tokens", "5");
    REFUSE(USAGE, "surplus", "tokenize", TOKENIZER, "text", "surplus");
}

TEST(missing_parts_are_refused)
{
    REFUSE(USAGE, "MODEL", "generate", "--tokens", "5");
    REFUSE(USAGE, "MODEL", "inspect");
    REFUSE(USAGE, "--tokens", "generate", V3);
    REFUSE(USAGE, "--tokens", "generate", V3, "--tokens", "5", "--prompt", "x");
    REFUSE(USAGE, "--tokens", "logits", V3, "-o", "unused");
    REFUSE(USAGE, "-o", "logits", V3, "--tokens", "5");
    REFUSE(USAGE, "--tokens", "generate", V3, "--tokens");
    REFUSE(USAGE, "-n", "generate", V3, "--tokens", "5", "-n");
    REFUSE(USAGE, "TEXT", "tokenize", TOKENIZER);
    REFUSE(USAGE, "TEXT", "tokenize", TOKENIZER, "x", "--decode", "5");
    struct said s = run_to(PIPE, (const char *const[]){verbatim, NULL});
    expect_code(&s, USAGE);
    assert_true(s.out_size == 0 && strstr(s.err, "usage"));
    forget(&s);
}

TEST(numbers_are_checked)
{
    static const char *const options[][2] = {
                                             {"-n", "-1"},
                                             {"-n", "five"},
                                             {"-n", "5x"},
                                             {"-n", ""},
                                             {"-n", "1.5"},
                                             {"-n", "99999999999999999999"},
                                             {"--ngram-min", "0"},
                                             {"--ngram-max", "65"},
                                             {"--draft-tokens", "16"},
                                             {"--draft-tokens", "-1"},
                                             {"--draft-tokens", "3 "},
                                             {"--threads", "0"},
                                             {"--threads", "many"},
                                             {"--prefill-chunk", "0"},
                                             {"--context", "0"},
                                             {"--context", "1281"},
                                             {"--context", "x"},
                                             {"--temperature", "-1"},
                                             {"--temperature", "hot"},
                                             {"--temperature", "nan"},
                                             {"--temperature", "1e-6"},
                                             {"--top-k", "-1"},
                                             {"--top-k", "1.5"},
                                             {"--top-p", "1.5"},
                                             {"--top-p", "-0.5"},
                                             {"--seed", "-1"},
                                             {"--seed", " -1"},
                                             {"--seed", "18446744073709551616"}};
    for (size_t i = 0; i < COUNT(options); i++)
        REFUSE(USAGE, options[i][0], "generate", V3, "--tokens", "5", "--draft", "mtp-eagle", options[i][0],
               options[i][1]);
    REFUSE(USAGE, "--json", "generate", V3, "--tokens", "5", "--json=1");
    REFUSE(USAGE, "ngram-min is 5", "generate", V3, "--tokens", "5", "--draft", "ngram", "--ngram-min", "5",
           "--ngram-max", "3");
    REFUSE(USAGE, "ngram-max is many", "generate", V3, "--tokens", "5", "--draft", "ngram", "--draft-settings",
           "ngram-min=2,ngram-max=many");
    REFUSE(USAGE, "unknown setting n=1", "generate", V3, "--tokens", "5", "--draft", "ngram", "--draft-settings",
           "n=1");
    REFUSE(USAGE, "p-min is 1.5", "generate", V3, "--tokens", "5", "--draft", "mtp-eagle", "--draft-p-min", "1.5");
    REFUSE(USAGE, "--draft-vocab is 161, wanted @FILE or a number from 1 to 160", "generate", V3, "--tokens", "5",
           "--draft", "mtp-eagle", "--draft-vocab", "161");
    REFUSE(USAGE, "--draft-vocab is 5,6, wanted", "generate", V3, "--tokens", "5", "--draft", "mtp-eagle",
           "--draft-vocab", "5,6");
    REFUSE(USAGE, "token id 0 is \"some\"", "generate", V3, "--tokens", "5", "--draft", "mtp-eagle", "--draft-vocab",
           "some");
    REFUSE(USAGE, "--draft-vocab is for draft methods with MTP modules, not for ngram", "generate", V3, "--tokens", "5",
           "--draft", "ngram", "--draft-vocab", "7");
    REFUSE(USAGE, "excludes --decode and --bos", "tokenize", V3, "--decode", "5", "--most-frequent", "2");
    REFUSE(USAGE, "wants --draft-model DIR", "generate", V3, "--tokens", "5", "--draft", "draft-model");
    REFUSE(USAGE, "is for --draft draft-model, eagle, eagle3 and parallel-heads, not for none", "generate", V3,
           "--tokens", "5", "--draft-model", V3);
    REFUSE(USAGE, "not for mtp-eagle", "verify", V3, "--tokens", "5", "--draft", "mtp-eagle", "--draft-model", V3);
    REFUSE(USAGE, "--draft-model, which is missing", "verify", V3, "--tokens", "5", "--draft-precision", "q4");
    REFUSE(USAGE, "vocabulary has 256 tokens, that of " V3 " 160", "draft", V3, "--tokens", "5", "--draft",
           "draft-model", "--draft-model", TINY "moonlight");
    REFUSE(WRONG, "no such directory", "draft", V3, "--tokens", "5", "--draft", "draft-model", "--draft-model",
           "no such directory");
    REFUSE(USAGE, "callback wants a function", "generate", V3, "--tokens", "5", "--draft", "callback");
}

TEST(prompts_that_do_not_fit_are_refused)
{
    static const char *const commands[] = {"generate", "verify", "draft"};
    char dir[64], file[128], at_file[160];
    make_dir(dir);
    snprintf(file, sizeof file, "%s/prompt", dir);
    snprintf(at_file, sizeof at_file, "@%s", file);
    for (size_t i = 0; i < COUNT(commands); i++) {
        REFUSE(USAGE, "empty", commands[i], V3, "--tokens", "");
        REFUSE(USAGE, "outside the vocabulary of 160", commands[i], V3, "--tokens", "5,160");
        REFUSE(USAGE, "1281", commands[i], V3, "--tokens", "5", "--context", "1281");
        REFUSE(USAGE, "3 tokens", commands[i], V3, "--tokens", "5,6,7", "--context", "2");
        REFUSE(USAGE, "no MTP modules", commands[i], TINY "moonlight", "--tokens", "5", "--draft", "mtp-vanilla");
    }
    REFUSE(USAGE, "empty", "logits", V3, "--tokens", " , ", "-o", "unused");
    REFUSE(USAGE, "outside the vocabulary of 160", "logits", V3, "--tokens", "160", "-o", "unused");
    REFUSE(USAGE, "2147483648", "generate", V3, "--tokens", "5,2147483648");
    REFUSE(USAGE, "\"-3\"", "generate", V3, "--tokens", "5,-3");
    REFUSE(USAGE, "\"x\"", "generate", V3, "--tokens", "5,6,x\n7");
    REFUSE(USAGE, "\"6;7\"", "generate", V3, "--tokens", "5 6;7");
    write_text(dir, "prompt", "5\n6\nseven\n8\n");
    REFUSE(USAGE, "token id 2 is \"seven\"", "generate", V3, "--tokens", at_file);
    write_file(dir, "prompt", "5\0006", 3);
    REFUSE(USAGE, "token id 0", "generate", V3, "--tokens", at_file);
    char *long_prompt = malloc(2 * 1281 + 1);
    assert_non_null(long_prompt);
    for (int i = 0; i < 1281; i++)
        memcpy(long_prompt + 2 * i, "5 ", 2);
    write_file(dir, "prompt", long_prompt, 2 * 1281);
    REFUSE(USAGE, "1281 tokens", "generate", V3, "--tokens", at_file);
    write_file(dir, "prompt", long_prompt, 2 * 1280); /* exactly as long as the model allows */
    struct said s = SUCCEED("generate", V3, "--tokens", at_file, "-n", "3", "--json");
    assert_non_null(strstr(s.out, "\"tokens\": []"));
    forget(&s);
    free(long_prompt);
    remove_dir(dir);
}

TEST(an_instruction_set_that_the_cpu_lacks_is_refused)
{
#ifdef __aarch64__
    const char *other = "avx2";
#else
    const char *other = "neon";
#endif
    REFUSE(USAGE, other, "generate", V3, "--tokens", "5", "--isa", other);
    REFUSE(USAGE, other, "verify", V3, "--tokens", "5", "--isa", other);
    REFUSE(USAGE, other, "logits", V3, "--tokens", "5", "--isa", other, "-o", "unused");
    assert_int_not_equal(access("unused", F_OK), 0);
}

/* ---- files: 1 ---------------------------------------------------------------------------------------------------- */

TEST(files_that_are_not_there_are_named)
{
    char dir[64], file[128];
    make_dir(dir);
    snprintf(file, sizeof file, "%s/missing/o.safetensors", dir);
    REFUSE(WRONG, "golden/missing", "generate", "golden/missing", "--tokens", "5");
    REFUSE(WRONG, "golden/missing", "inspect", "golden/missing");
    REFUSE(WRONG, "config.json", "verify", "golden/tiny", "--tokens", "5");
    REFUSE(WRONG, "golden/mis?sing", "inspect", "golden/mis\nsing");
    REFUSE(WRONG, "no-such-prompt", "generate", V3, "--tokens", "@golden/no-such-prompt");
    REFUSE(WRONG, "golden/truth", "generate", V3, "--tokens", "@golden/truth"); /* a directory */
    REFUSE(WRONG, "no-such-text", "tokenize", TOKENIZER, "--file", "golden/no-such-text");
    REFUSE(WRONG, "tokenizer.json", "generate", V3, "--prompt", "text");
    REFUSE(WRONG, "tokenizer.json", "tokenize", V3, "text");
    REFUSE(WRONG, file, "logits", V3, "--tokens", "5", "-o", file);
    REFUSE(WRONG, dir, "logits", V3, "--tokens", "5", "-o", dir);
    assert_int_equal(rmdir(dir), 0); /* nothing was left in it */
}

/* Refused by every command that opens it. */
static void refuse_checkpoint(const char *dir, const char *part)
{
    REFUSE(WRONG, part, "generate", dir, "--tokens", "5,6", "-n", "2");
    REFUSE(WRONG, part, "inspect", dir);
}

TEST(a_config_that_is_wrong_is_refused)
{
    static const char *const edits[][3] = {
        {"\"hidden_size\": 64", "\"hidden_size\": 65", "65"},
        {"\"hidden_size\"", "\"hidden_sizes\"", "7168"}, /* the default */
        {"\"vocab_size\": 160", "\"vocab_size\": 161", "161"},
        {"\"vocab_size\": 160", "\"vocab_size\": -1", "vocab_size"},
        {"\"vocab_size\": 160", "\"vocab_size\": \"160\"", "vocab_size"},
        {"\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", "layers"},
        {"DeepseekV3ForCausalLM", "LlamaForCausalLM", "LlamaForCausalLM"},
        {"{", "[", "config.json"},
        {",", ",,", "config.json"}};
    char dir[64];
    make_dir(dir);
    copy_files(V3, dir);
    for (size_t i = 0; i < COUNT(edits); i++) {
        copy_files(V3, dir);
        replace_in(dir, "config.json", edits[i][0], edits[i][1]);
        refuse_checkpoint(dir, edits[i][2]);
    }
    write_text(dir, "config.json", "");
    refuse_checkpoint(dir, "config.json");
    remove_dir(dir);
}

static void cut(const char *dir, const char *name, long size, long less)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, size >= 0 ? size : st.st_size - less), 0);
}

static void overwrite(const char *dir, const char *name, size_t offset, const void *bytes, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, size, (off_t)offset), size);
    close(fd);
}

TEST(weights_that_are_wrong_are_refused)
{
    char dir[64], path[128];
    make_dir(dir);
    copy_files(TINY "v2-lite", dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    static const long sizes[] = {0, 4, 8, 100};
    cut(dir, "model.safetensors", -1, 1);
    refuse_checkpoint(dir, "model.safetensors");
    for (size_t i = 0; i < COUNT(sizes); i++) {
        cut(dir, "model.safetensors", sizes[i], 0);
        refuse_checkpoint(dir, "model.safetensors");
    }
    copy_files(TINY "v2-lite", dir);
    overwrite(dir, "model.safetensors", 0, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8); /* the header's length */
    refuse_checkpoint(dir, "model.safetensors");
    copy_files(TINY "v2-lite", dir);
    overwrite(dir, "model.safetensors", 8, "x", 1);
    refuse_checkpoint(dir, "model.safetensors");
    copy_files(TINY "v2-lite", dir);
    replace_in(dir, "model.safetensors", "\"model.norm.weight\"", "\"model.worm.weight\"");
    refuse_checkpoint(dir, "model.norm.weight");
    copy_files(TINY "v2-lite", dir);
    replace_in(dir, "model.safetensors", "\"BF16\"", "\"BF61\"");
    refuse_checkpoint(dir, "BF61");
    unlink(path);
    refuse_checkpoint(dir, "model.safetensors");
    remove_dir(dir);

    make_dir(dir);
    copy_files(TINY "v3-mtp3", dir);
    cut(dir, "model-00002-of-000003.safetensors", -1, 2);
    refuse_checkpoint(dir, "model-00002-of-000003.safetensors");
    snprintf(path, sizeof path, "%s/model-00002-of-000003.safetensors", dir);
    unlink(path);
    refuse_checkpoint(dir, "model-00002-of-000003.safetensors");
    cut(dir, "model.safetensors.index.json", -1, 5);
    refuse_checkpoint(dir, "model.safetensors.index.json");
    remove_dir(dir);
}

TEST(a_weight_that_is_not_a_number_is_found_by_check_and_ends_a_run)
{
    char dir[64], path[128];
    size_t count;
    make_dir(dir);
    copy_files(TINY "v2-lite", dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    struct golden g = golden_read(path);
    size_t offset = (size_t)((char *)golden_data(&g, "lm_head.weight", &count) - g.bytes);
    golden_close(&g);
    overwrite(dir, "model.safetensors", offset + 2 * 77, "\xc0\x7f", 2);
    REFUSE(WRONG, "lm_head.weight", "inspect", dir, "--check");
    REFUSE(WRONG, "token 3", "generate", dir, "--tokens", "5,6,7", "-n", "4");
    REFUSE(WRONG, "token 3", "verify", dir, "--tokens", "5,6,7", "-n", "4");
    REFUSE(WRONG, "token 3", "draft", dir, "--tokens", "5,6,7");
    remove_dir(dir);
}

TEST(an_output_file_is_replaced_only_by_a_whole_one)
{
    char dir[64], file[128], text[32] = "";
    make_dir(dir);
    snprintf(file, sizeof file, "%s/o.safetensors", dir);
    write_text(dir, "o.safetensors", "what was there before");
    struct said s = RUN_TO(SMALL_FILES, "logits", V3, "--tokens", "5,6,7,8,9,10,11,12", "-o", file, "--force");
    expect_code(&s, WRONG);
    expect_sentence(&s);
    assert_true(s.out_size == 0 && strstr(s.err, file));
    forget(&s);
    REFUSE(WRONG, "it exists, and --force is not given", "logits", V3, "--tokens", "5,6", "-o", file);
    REFUSE(WRONG, "it exists, and --force is not given", "trace", V3, "--tokens", "5,6", "--html", file);
    REFUSE(WRONG, "it exists, and --force is not given", "bench", V3, "--svg", file);
    REFUSE(USAGE, "vocabulary", "logits", V3, "--tokens", "5,6,1000", "-o", file, "--force");
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    assert_true(fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    assert_string_equal(text, "what was there before");
    unlink(file);
    assert_int_equal(rmdir(dir), 0); /* no .part is left */
}

/* ---- stdout ------------------------------------------------------------------------------------------------------ */

/* Giving a file its name must not take the place of a device (root has the right to) or of a link. */
TEST(output_takes_the_place_of_files_only)
{
    char dir[64], pipe[96], link_to[96];
    struct stat st;
    make_dir(dir);
    snprintf(pipe, sizeof pipe, "%s/pipe", dir);
    snprintf(link_to, sizeof link_to, "%s/link", dir);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink("nowhere", link_to), 0);
    const char *const paths[] = {pipe, link_to};
    for (size_t i = 0; i < COUNT(paths); i++) {
        REFUSE(WRONG, "a link or a device", "logits", V3, "--tokens", "5", "-o", paths[i]);
        REFUSE(WRONG, "a link or a device", "dump", V3, "--tokens", "5", "-o", paths[i]);
        REFUSE(WRONG, "a link or a device", "trace", V3, "--tokens", "5", "--html", paths[i]);
        assert_int_equal(lstat(paths[i], &st), 0);
        assert_true(i ? S_ISLNK(st.st_mode) : S_ISFIFO(st.st_mode));
    }
    REFUSE(USAGE, "--html is empty", "trace", V3, "--tokens", "5", "--html", "");
    REFUSE(USAGE, "-o is empty", "logits", V3, "--tokens", "5", "-o", "");
    REFUSE(USAGE, "-o -: wanted the name of a file, not stdout", "logits", V3, "--tokens", "5", "-o", "-");
    REFUSE(USAGE, "--html -: wanted the name of a file, not stdout", "trace", V3, "--tokens", "5", "--html", "-");
    remove_dir(dir);
}

TEST(output_that_cannot_be_written_is_an_error)
{
    static const enum stdout_kind kinds[] = {CLOSED, FULL, READER_GONE};
    static const char *const commands[][9] = {
        {"generate", V3, "--tokens", "5", "-n", "20"},  {"generate", V3, "--tokens", "5", "-n", "20", "--json"},
        {"verify", V3, "--tokens", "5", "-n", "4"},     {"draft", V3, "--tokens", "5"},
        {"inspect", V3},                                {"inspect", V3, "--json"},
        {"tokenize", TOKENIZER, "text"},                {"tokenize", TOKENIZER, "--decode", "70", "--json"},
        {"generate", "--help"},                         {"inspect", "golden/missing", "--json"}};
    for (size_t k = 0; k < COUNT(kinds); k++)
        for (size_t i = 0; i < COUNT(commands); i++) {
            const char *arguments[11] = {verbatim};
            memcpy(arguments + 1, commands[i], sizeof commands[i]);
            struct said s = run_to(kinds[k], arguments);
            expect_code(&s, WRONG);
            expect_sentence(&s);
            forget(&s);
        }
}

TEST(a_reader_that_goes_away_does_no_harm)
{
    struct said s = RUN_TO(ONE_BYTE_READ, "generate", V3, "--tokens", "5", "-n", "200", "--ignore-eos");
    assert_true(s.out_size >= 1 && s.exit_code <= 1);
    forget(&s);
    s = RUN_TO(ONE_BYTE_READ, "verify", V3, "--tokens", "5", "-n", "10");
    assert_true(s.exit_code <= 1);
    forget(&s);
}

TEST(closed_stdout_does_not_leak_into_the_output_file)
{
    char dir[64], file[128], *data[2];
    size_t size[2];
    make_dir(dir);
    snprintf(file, sizeof file, "%s/o.safetensors", dir);
    for (int closed = 0; closed < 2; closed++) {
        struct said s = RUN_TO(closed ? CLOSED : PIPE, "logits", V3, "--tokens", "5,6", "-o", file, "--json");
        expect_code(&s, closed);
        forget(&s);
        struct golden g = golden_read(file);
        data[closed] = g.bytes;
        size[closed] = g.size;
        json_decref(g.header);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(data[0], data[1], size[0]);
    vb_free(NULL, data[0]);
    vb_free(NULL, data[1]);
    remove_dir(dir);
}

/* ---- how options and prompts may come ---------------------------------------------------------------------------- */

static void expect_output(const char *wanted, struct said s)
{
    expect_code(&s, 0);
    if (s.out_size != strlen(wanted) || memcmp(s.out, wanted, s.out_size))
        fail_msg("%s: \"%s\", wanted \"%s\"", s.command, s.out, wanted);
    forget(&s);
}

TEST(options_may_stand_anywhere_and_carry_an_equals_sign)
{
    char dir[64], at_file[160];
    struct said plain = SUCCEED("generate", V3, "--tokens", "5,6,7", "-n", "3");
    const char *w = plain.out;
    make_dir(dir);
    snprintf(at_file, sizeof at_file, "@%s/ids", dir);
    expect_output(w, RUN("generate", "--tokens", "5,6,7", "-n", "3", V3));
    expect_output(w, RUN("generate", "-n", "3", V3, "--tokens", "5,6,7"));
    expect_output(w, RUN("generate", "--tokens=5,6,7", "-n=3", V3));
    expect_output(w, RUN("generate", "--tokens=5,6,7", "-n=3", "--", V3));
    expect_output(w, RUN("generate", V3, "--tokens", " 5 6\t7, ", "-n", "9", "-n", "3"));
    write_text(dir, "ids", "5,\r\n6\r\n\r\n7\r\n");
    expect_output(w, RUN("generate", V3, "--tokens", at_file, "-n", "3"));
    write_text(dir, "ids", "5 6,\n7");
    expect_output(w, RUN("generate", V3, "--tokens", at_file, "-n", "3"));
    write_text(dir, "ids", "\n");
    REFUSE(USAGE, "empty", "generate", V3, "--tokens", at_file);
    struct said one = SUCCEED("generate", V3, "--tokens", "5", "-n", "1");
    forget(&one);
    /* a value may read like an option; what follows -- is never one */
    REFUSE(WRONG, "tokenizer.json", "generate", V3, "--prompt", "--help");
    REFUSE(USAGE, "--json", "generate", V3, "--tokens", "--json");
    struct said s = SUCCEED("tokenize", TOKENIZER, "--", "--json");
    assert_true(s.out_size && s.out[0] != '[');
    forget(&s);
    s = SUCCEED("tokenize", TOKENIZER, "--", "--help");
    assert_null(strstr(s.out, "usage"));
    forget(&s);
    forget(&plain);
    remove_dir(dir);
}

/* Whether text names the option, and not only a longer one. */
static int names_option(const char *text, const char *option)
{
    for (const char *p = text; (p = strstr(p, option)); p++) {
        char before = p > text ? p[-1] : ' ', after = p[strlen(option)];
        if (strchr(" (\n,", before) && after != '-' && !(after >= 'a' && after <= 'z'))
            return 1;
    }
    return 0;
}

TEST(help_names_every_option)
{
#define COMPUTE " --threads --isa --precision --prefill-chunk --context --numa --mlock --json"
#define DRAFT \
    " --draft --draft-tokens --draft-p-min --draft-vocab --ngram-min --ngram-max --draft-settings --draft-model " \
    "--draft-precision"
#define PROMPT " --prompt --prompt-file --tokens --bos --no-bos --temperature --top-k --top-p --min-p --seed" \
               " --repetition-penalty --presence-penalty --frequency-penalty --logit-bias"
#define CHAT " --messages --system --chat-template-kwargs"
#define ACCEPTANCE " --acceptance --draft-sample-method --relaxed-topk --relaxed-delta --thinking-tokens"
    static const char *const takes[][2] = {
        {"generate", "-n --ignore-eos --stats --prefill --stop --chat --logprobs --prompts -o --max-sequences "
                     "--cache-tokens" ACCEPTANCE COMPUTE PROMPT DRAFT CHAT},
        {"chat", "-n --ignore-eos --stats --stop --logprobs --temperature --top-k --top-p --min-p --seed "
                 "--repetition-penalty --presence-penalty "
                 "--frequency-penalty --logit-bias" ACCEPTANCE COMPUTE CHAT DRAFT},
        {"verify", "-n --ignore-eos --all --prefill --stop" ACCEPTANCE COMPUTE PROMPT DRAFT CHAT},
        {"draft", "--prefill" COMPUTE PROMPT DRAFT ACCEPTANCE CHAT},
        {"logits", "--tokens -o" COMPUTE},
        {"tokenize", "--file --decode --bos --no-special --most-frequent --json"},
        {"inspect", "--check --precision --json"},
        {"quantize", "-o --type --embedding-type --head-type --force --threads --json"},
        {"demo", "-n --rounds --held-out --large --ignore-eos --prefill --numa --mlock --threads --isa --precision "
                 "--prefill-chunk --context" PROMPT}};
    struct said all = SUCCEED("--help");
    for (size_t i = 0; i < COUNT(takes); i++) {
        char options[1024], *place = NULL;
        struct said s = SUCCEED(takes[i][0], V3, "--help"), first = SUCCEED(takes[i][0], "-h", "--unknown");
        assert_true(strlen(takes[i][1]) < sizeof options);
        strcpy(options, takes[i][1]);
        assert_non_null(strstr(all.out, takes[i][0]));
        assert_string_equal(s.out, first.out);
        assert_int_equal(s.err_size, 0);
        for (char *o = strtok_r(options, " ", &place); o; o = strtok_r(NULL, " ", &place))
            if (!names_option(s.out, o))
                fail_msg("verbatim %s --help does not name %s", takes[i][0], o);
        forget(&s);
        forget(&first);
    }
    forget(&all);
}

/* The GNU C library overwrites memory that is freed, so a draft vocabulary that outlives its model cannot be closed. */
static void a_draft_vocabulary_is_closed_before_its_model(void **unused)
{
    (void)unused;
    setenv("MALLOC_PERTURB_", "165", 1);
    struct said s = RUN("generate", V3, "--tokens", "5", "-n", "2", "--draft", "mtp-eagle", "--draft-vocab", "20");
    unsetenv("MALLOC_PERTURB_");
    expect_code(&s, 0);
    forget(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(missing_parts_are_refused),
        cmocka_unit_test(numbers_are_checked),
        cmocka_unit_test(prompts_that_do_not_fit_are_refused),
        cmocka_unit_test(an_instruction_set_that_the_cpu_lacks_is_refused),
        cmocka_unit_test(files_that_are_not_there_are_named),
        cmocka_unit_test(a_config_that_is_wrong_is_refused),
        cmocka_unit_test(weights_that_are_wrong_are_refused),
        cmocka_unit_test(a_weight_that_is_not_a_number_is_found_by_check_and_ends_a_run),
        cmocka_unit_test(an_output_file_is_replaced_only_by_a_whole_one),
        cmocka_unit_test(output_takes_the_place_of_files_only),
        cmocka_unit_test(output_that_cannot_be_written_is_an_error),
        cmocka_unit_test(a_reader_that_goes_away_does_no_harm),
        cmocka_unit_test(closed_stdout_does_not_leak_into_the_output_file),
        cmocka_unit_test(options_may_stand_anywhere_and_carry_an_equals_sign),
        cmocka_unit_test(help_names_every_option),
        cmocka_unit_test(a_draft_vocabulary_is_closed_before_its_model),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
