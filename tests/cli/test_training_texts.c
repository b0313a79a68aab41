/* tests/cli/test_training_texts.c -- `verbatim train`: which sequences texts become, and in which order steps read
 * them. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/runs.h"
#include "tools/training/order.h"

#define TEST(name) static void name(void **unused __attribute__((unused)))
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Documents of data.safetensors, as lists of ids in text: "5,6|7,8|". */
static void documents_of(const char *run, char *list, size_t room)
{
    vb_tensors *file;
    vb_tensor ids, ends;
    vb_error err;
    char path[400];
    int64_t at = 0;
    snprintf(path, sizeof path, "%s/data.safetensors", run);
    assert_int_equal(vb_tensors_open(&file, path, NULL, &err), 0);
    assert_true(vb_tensors_find(file, "tokens", &ids) && vb_tensors_find(file, "ends", &ends));
    *list = '\0';
    for (size_t i = 0; i < ends.bytes / 8; i++) {
        int64_t last;
        memcpy(&last, (const char *)ends.data + 8 * i, 8);
        for (; at < last; at++) {
            int32_t id;
            memcpy(&id, (const char *)ids.data + 4 * at, 4);
            snprintf(list + strlen(list), room - strlen(list), "%d ", id);
        }
        strncat(list, "|", room - strlen(list) - 1);
    }
    vb_tensors_close(file);
}

/* What `tokenize` makes of a text, then the end token. */
static void add_wanted(char *list, size_t room, const char *text)
{
    json_t *ids = JSON("tokenize", TALE, text, "--bos");
    for (size_t i = 0; i < json_array_size(ids); i++)
        snprintf(list + strlen(list), room - strlen(list), "%d ", token_at(ids, i));
    snprintf(list + strlen(list), room - strlen(list), "1 |");
    json_decref(ids);
}

TEST(texts_become_documents)
{
    char found[4096], wanted[4096] = "";
    write_text(runs_dir, "a.txt",
               "\n\nOnce upon a time\nthere was a king.\n\n<|endoftext|>\n\nA fox <|endoftext|> "
               "sat.\r\n<|endoftext|>\r\n\n<|endoftext|>\n");
    write_text(runs_dir, "b.jsonl",
               "{\"text\": \"The end.\", \"source\": 3}\n\n{\"tokens\": [9, 8, 7, 6]}\n{\"messages\": [{\"role\": "
               "\"user\", \"content\": \"Hi.\"}]}\n");
    char both[900];
    snprintf(both, sizeof both, "%s,%s", run_file("a.txt"), run_file("b.jsonl"));
    struct said s = RUN("train", TALE, "--data", both, "--eval-share", "0", "--train-iters", "0", "-o", run_file("run"),
                        "--bos");
    expect_code(&s, 0);
    forget(&s);
    add_wanted(wanted, sizeof wanted, "Once upon a time\nthere was a king.");
    add_wanted(wanted, sizeof wanted, "A fox <|endoftext|> sat.");
    add_wanted(wanted, sizeof wanted, "The end.");
    strcat(wanted, "9 8 7 6 |");
    documents_of(run_file("run"), found, sizeof found);
    if (strncmp(found, wanted, strlen(wanted)))
        fail_msg("found %s, wanted %s", found, wanted);
    int documents = 0;
    for (const char *p = found; *p; p++)
        documents += *p == '|';
    assert_int_equal(documents, 5); /* the fifth is the conversation */
}

TEST(what_is_too_short_is_left_out_and_told)
{
    write_text(runs_dir, "a.jsonl", "{\"tokens\": [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]}\n{\"tokens\": [5, 6, 7]}\n");
    struct said s = RUN("train", MTP3, "--data", run_file("a.jsonl"), "--eval-share", "0", "--train-iters", "0", "-o",
                        run_file("run"));
    expect_code(&s, 0);
    if (!strstr(s.out, "2 documents, 1 sequence, 10 tokens to train on, 3 tokens left out; 0 documents, 0 sequences, 0 "
                       "tokens held out\n"))
        fail_msg("%s", s.out);
    forget(&s);
}

TEST(wrong_texts_are_refused_with_their_place)
{
    static const struct {
        const char *name, *text, *said;
    } cases[] = {{"a.jsonl", "{\"tokens\": [5, 6, 7, 8]}\n{\"tokens\": [5, 300]}\n",
                  "a.jsonl: line 2: token 1 is 300, the vocabulary of golden/tiny/v3-mtp3 has 128"},
                 {"a.jsonl", "\n{\"tokens\": 5}\n", "a.jsonl: line 2: tokens is 5, wanted an array"},
                 {"a.jsonl", "{\"tokens\": [5], \"text\": \"x\"}\n",
                  "line 1: wanted one of the keys text, messages and tokens, found 2"},
                 {"a.jsonl", "{\"tokens\": [5]\n", "line 1: column"},
                 {"a.jsonl", "{\"x\": 5}\n", "line 1: wanted one of the keys text, messages and tokens, found 0"},
                 {"a.jsonl", "[5]\n",
                  "line 1: the line is [5], wanted an object with one of the keys text, messages and tokens"},
                 {"a.jsonl", "{\"messages\": 5}\n", "line 1: messages is 5, wanted an array"},
                 {"a.jsonl", "{\"messages\": [{\"content\": \"hi\"}]}\n",
                  "line 1: message 0 is not an object with a role"},
                 {"a.jsonl", "\n", "a.jsonl has no documents"},
                 {"a.jsonl", "{\"tokens\": [5, 6.5]}\n", "line 1: token 1 is 6.5, wanted a token id"},
                 {"a.txt", "some text\n", "tokenizer"},
                 {"a.jsonl", "{\"tokens\": [5, 6, 7]}\n{\"tokens\": [5, 6, 7]}\n",
                  "--data has no sequence of 5 tokens or more to train on"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_text(runs_dir, cases[i].name, cases[i].text);
        expect_failure(RUN("train", MTP3, "--data", run_file(cases[i].name), "--train-iters", "1", "-o",
                           run_file("run")),
                       1, cases[i].said);
        assert_int_equal(access(run_file("run"), F_OK), -1); /* no folder is left */
    }
    write_text(runs_dir, "a.txt", "one\n<|endoftext|>\ntwo \xff\n");
    expect_failure(RUN("train", TALE, "--data", run_file("a.txt"), "--train-iters", "1", "-o", run_file("run")), 1,
                   "a.txt: document 2: the text is not valid UTF-8 at byte 4");
    write_data("data.jsonl", 12, 7);
    expect_failure(RUN("train", MTP3, "--data", run_file("data.jsonl"), "--eval-data", run_file("a.jsonl"),
                       "--train-iters", "1", "-o", run_file("run")),
                   1, "--eval-data has no sequence of 5 tokens or more");
    write_data("one.jsonl", 1, 3);
    expect_failure(RUN("train", MTP3, "--data", run_file("one.jsonl"), "--train-iters", "1", "-o", run_file("run")), 2,
                   "--data has 1 document, of which none can be held out");
    assert_int_equal(access(run_file("run"), F_OK), -1);
    expect_failure(RUN("train", MTP3, "--data", run_file("nothing.txt"), "--train-iters", "1", "-o", run_file("run")),
                   1, "nothing.txt: No such file");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1", "-o", run_file("one.jsonl/run")), 1,
                   "one.jsonl/run: Not a directory");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1", "-o", run_file("one.jsonl")), 1,
                   "one.jsonl: it exists and is not an empty folder");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1", "-o", MTP3), 1,
                   "v3-mtp3: it exists and is not an empty folder");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1", "-o", run_file("run"), "--mtp-weights",
                       "nowhere"),
                   1, "nowhere: No such file");
    assert_int_equal(access(run_file("run"), F_OK), -1);
    expect_failure(RUN("train", MTP3, "--train-iters", "1", "-o", run_file("run")), 2, "--data is missing");
    expect_failure(RUN("train", MTP3, "--data", "x", "-o", run_file("run")), 2, "--train-iters is missing");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1"), 2, "-o is missing");
    expect_failure(RUN("train", "--data", "x", "--train-iters", "1"), 2, "MODEL is missing");
    expect_failure(RUN("train", "golden/gguf/tiny.gguf", "--data", "x", "--train-iters", "1", "-o", run_file("run")), 1,
                   "is a file: --part modules wants a directory in the Hugging Face layout");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1", "-o", run_file("run"), "--lr-decay-style",
                       "WSD"),
                   2, "--lr-decay-style is WSD, wanted constant, linear");
    expect_failure(RUN("train", TINY "v32", "--data", "x", "--train-iters", "1", "-o", run_file("run")), 1,
                   "sparse attention");
    expect_failure(RUN("train", MTP3, "--data", "x", "--train-iters", "1", "-o", run_file("run"), "--seq-length", "3"),
                   2, "--seq-length is 3; 3 depths want sequences of 5");
}

TEST(options_of_modules_are_refused_without_modules)
{
    static const char *const cases[][3] = {{TINY "v3", "--mtp-new",
                                            "--mtp-new is for MTP modules, and --mtp-num-layers is 0\n"},
                                           {TINY "v3", "--save-megatron",
                                            "--save-megatron is for MTP modules, and --mtp-num-layers is 0\n"},
                                           {TINY "v3", "--soft-targets=0.5",
                                            "--soft-targets is for MTP modules, and --mtp-num-layers is 0\n"},
                                           {TINY "v3", "--loss=hass",
                                            "--loss hass has no main loss, and --mtp-num-layers is 0"},
                                           {TINY "youtu", "--save-megatron",
                                            "and --mtp-num-layers is 0, the default for a model without modules\n"}};
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_failure(RUN("train", cases[i][0], "--part", "model", "--mtp-num-layers", "0", cases[i][1], "--data", "x",
                           "--train-iters", "1", "-o", run_file("run")),
                       2, cases[i][2]);
}

/* ---- loss masks -------------------------------------------------------------------------------------------------- */

/* golden/tale with another chat template */
static void write_model(const char *name, const char *chat_template)
{
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    char here[300], from[400], to[400], root[200];
    assert_non_null(getcwd(root, sizeof root));
    snprintf(here, sizeof here, "%s/%s", runs_dir, name);
    assert_int_equal(mkdir(here, 0777), 0);
    for (size_t i = 0; i < COUNT(files); i++) {
        snprintf(from, sizeof from, "%s/%s/%s", root, TALE, files[i]);
        snprintf(to, sizeof to, "%s/%s", here, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    write_text(here, "chat_template.jinja", chat_template);
}

/* Compares a tensor of numbers of `size` bytes with a JSON array. */
static void expect_numbers(vb_tensors *file, const char *name, size_t size, const json_t *wanted)
{
    vb_tensor t;
    assert_true(vb_tensors_find(file, name, &t));
    assert_int_equal(t.bytes, size * json_array_size(wanted));
    for (size_t i = 0; i < json_array_size(wanted); i++) {
        int32_t number = 0;
        memcpy(&number, (const char *)t.data + i * size, size);
        if (number != json_integer_value(json_array_get(wanted, i)))
            fail_msg("%s: number %zu is %d, wanted %d", name, i, number,
                     (int)json_integer_value(json_array_get(wanted, i)));
    }
}

static void expect_masks(const char *template, const json_t *line)
{
    vb_tensors *file;
    vb_error err;
    write_model("model", template);
    json_t *document = json_pack("{s:O}", "messages", json_object_get(line, "messages"));
    char *text = json_dumps(document, JSON_COMPACT);
    write_text(runs_dir, "a.jsonl", text);
    struct said s = RUN("train", run_file("model"), "--data", run_file("a.jsonl"), "--eval-share", "0", "--train-iters",
                        "0", "--assistant-only-loss", "--type", "f32", "--mtp-num-layers", "1", "-o", run_file("run"));
    expect_code(&s, 0);
    forget(&s);
    assert_int_equal(vb_tensors_open(&file, run_file("run/data.safetensors"), NULL, &err), 0);
    expect_numbers(file, "tokens", 4, json_object_get(line, "tokens"));
    expect_numbers(file, "loss_mask", 1, json_object_get(line, "loss_mask"));
    vb_tensors_close(file);
    remove_tree(run_file("model"));
    remove_tree(run_file("run"));
    json_decref(document);
    free(text);
}

/* Leaves all {% TAG %} out. */
static void leave_out(char *text, const char *tag)
{
    for (char *at; (at = strstr(text, tag));)
        memmove(at, at + strlen(tag), strlen(at + strlen(tag)) + 1);
}

/* The assistant's tokens are those of transformers, whether the template marks them or prefixes of the conversation
 * show them. */
TEST(labels_are_the_tokens_of_the_assistant)
{
    char line[8192];
    FILE *f = fopen("golden/chat/loss_masks.jsonl", "r");
    assert_non_null(f);
    for (int i = 0; fgets(line, sizeof line, f); i++) {
        json_t *one = json_loads(line, 0, NULL);
        char template[2048];
        assert_non_null(one);
        snprintf(template, sizeof template, "%s", json_string_value(json_object_get(one, "template")));
        if (i % 2 == 1) /* the longer conversations */
            expect_masks(template, one);
        leave_out(template, "{% generation %}");
        leave_out(template, "{% endgeneration %}");
        if (i != 1)
            expect_masks(template, one);
        json_decref(one);
    }
    fclose(f);
}

#define CHAT \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi.\"}, {\"role\": \"assistant\", \"content\": \"Yes.\"}, " \
    "{\"role\": \"user\", \"content\": \"Ah.\"}]}\n"

TEST(wrong_masks_are_refused_with_their_place)
{
    static const struct {
        const char *text, *said;
    } cases[] = {{"{\"tokens\": [5, 6, 7], \"loss_mask\": [1, 0]}\n",
                  "line 1: loss_mask is [1,0], wanted an array of 3 numbers"},
                 {"{\"tokens\": [5, 6, 7], \"loss_mask\": [1, 0, 2]}\n",
                  "line 1: loss_mask of token 2 is 2, wanted 0 or 1"},
                 {"{\"text\": \"a\", \"loss_mask\": [1]}\n", "line 1: loss_mask is given without tokens"},
                 {"{\"tokens\": [5, 6, 7]}\n",
                  "line 1: tokens have no loss_mask, and --assistant-only-loss wants messages"},
                 {"{\"text\": \"a\"}\n", "line 1: the document is a text, and --assistant-only-loss wants messages"},
                 {"{\"tokens\": [5, 6, 7, 8, 9], \"loss_mask\": [1, 1, 1, 1, 0]}\n",
                  "--data has no sequence of 5 tokens or more to train on whose loss mask has labels"},
                 {CHAT, "line 1: the chat template writes message 1 differently when others follow"},
                 {"{\"messages\": [5]}\n", "line 1: message 0 is not an object with a role"}};
    write_model("model", "{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}");
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_text(runs_dir, "a.jsonl", cases[i].text);
        expect_failure(RUN("train", run_file("model"), "--data", run_file("a.jsonl"), "--train-iters", "1",
                           "--eval-share", "0", "--assistant-only-loss", "-o", run_file("run")),
                       1, cases[i].said);
        remove_tree(run_file("run"));
    }
}

/* ---- the order of sequences -------------------------------------------------------------------------------------- */

TEST(an_epoch_reads_each_piece_once_and_no_two_epochs_are_alike)
{
    static const size_t end[] = {10, 11, 25, 25, 60};
    static const struct order_piece pieces[] = {{0, 7}, {7, 3}, {11, 7}, {18, 7}, {25, 7}, {32, 7}, {39, 7}, {46, 7},
                                                {53, 7}};
    struct order o, other;
    struct order_place place = {0};
    size_t numbers[9], before[9] = {0}, same = 0;
    assert_true(order_open(&o, end, COUNT(end), NULL, 7, 3, 42));
    assert_int_equal(o.pieces, COUNT(pieces));
    assert_int_equal(o.left_out, 1);
    assert_memory_equal(o.piece, pieces, sizeof pieces);
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        size_t seen[9] = {0}, order[9], n = 0;
        for (size_t batch = 0; batch < 3; batch++) { /* 21 tokens: three or four pieces */
            size_t sum = 0, count = order_next(&o, &place, 24, numbers);
            for (size_t i = 0; i < count; i++) {
                sum += o.piece[numbers[i]].count;
                seen[numbers[i]]++;
                order[n++] = numbers[i];
            }
            assert_true(sum <= 24 && place.epoch == epoch);
            if (place.next == o.pieces)
                break;
        }
        for (size_t i = 0; i < 9; i++)
            assert_int_equal(seen[i], 1);
        same += epoch && !memcmp(order, before, sizeof order);
        memcpy(before, order, sizeof order);
    }
    assert_true(same == 0);
    /* where a run was is enough to go on; another seed gives another order */
    assert_true(order_open(&other, end, COUNT(end), NULL, 7, 3, 42));
    struct order_place again = {19, 0};
    assert_int_equal(order_next(&other, &again, SIZE_MAX, numbers), 9);
    assert_memory_equal(numbers, before, sizeof before);
    order_close(&other);
    assert_true(order_open(&other, end, COUNT(end), NULL, 7, 3, 43));
    again = (struct order_place){19, 0};
    order_next(&other, &again, SIZE_MAX, numbers);
    assert_memory_not_equal(numbers, before, sizeof before);
    order_close(&other);
    order_close(&o);
}

/* All 24 orders of four pieces occur, and about equally often: of 2400 epochs 100 each. With p < 1e-9 one of them is
 * outside of 45..165. */
TEST(pieces_without_labels_are_left_out)
{
    static const size_t end[] = {8, 12, 20};
    static const unsigned char mask[20] = {1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0};
    struct order o;
    assert_true(order_open(&o, end, COUNT(end), mask, 4, 3, 1));
    assert_int_equal(o.pieces, 2); /* [0, 4) has labels where no depth predicts */
    assert_int_equal(o.piece[0].first, 4);
    assert_int_equal(o.piece[1].first, 12);
    assert_int_equal(o.left_out, 12);
    order_close(&o);
}

TEST(all_orders_are_equally_likely)
{
    static const size_t end[] = {2, 4, 6, 8};
    int count[256] = {0}, orders = 0;
    struct order o;
    size_t numbers[4];
    assert_true(order_open(&o, end, 4, NULL, 2, 2, 1));
    for (uint64_t epoch = 0; epoch < 2400; epoch++) {
        struct order_place place = {epoch, 0};
        assert_int_equal(order_next(&o, &place, SIZE_MAX, numbers), 4);
        count[numbers[0] * 64 + numbers[1] * 16 + numbers[2] * 4 + numbers[3]]++;
    }
    for (int i = 0; i < 256; i++) {
        orders += count[i] > 0;
        assert_true(!count[i] || (count[i] > 45 && count[i] < 165));
    }
    assert_int_equal(orders, 24);
    order_close(&o);
}

TEST(a_share_of_the_documents_is_held_out)
{
    static const struct {
        size_t documents;
        double share;
        size_t wanted;
    } cases[] = {{100, 0.05, 5}, {100, 0.001, 1}, {2, 0.9, 1}, {1, 0.5, 0}, {0, 0.5, 0}};
    unsigned char held[100], again[100];
    for (size_t i = 0; i < COUNT(cases); i++) {
        size_t sum = 0, count = order_hold_out(held, cases[i].documents, cases[i].share, 5);
        for (size_t k = 0; k < cases[i].documents; k++)
            sum += held[k];
        assert_int_equal(count, cases[i].wanted);
        assert_int_equal(sum, cases[i].wanted);
    }
    order_hold_out(held, 100, 0.3, 5);
    order_hold_out(again, 100, 0.3, 6);
    assert_memory_not_equal(held, again, 100);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(texts_become_documents),
        IN_DIR(what_is_too_short_is_left_out_and_told),
        IN_DIR(options_of_modules_are_refused_without_modules),
        IN_DIR(wrong_texts_are_refused_with_their_place),
        IN_DIR(labels_are_the_tokens_of_the_assistant),
        IN_DIR(wrong_masks_are_refused_with_their_place),
        cmocka_unit_test(pieces_without_labels_are_left_out),
        cmocka_unit_test(an_epoch_reads_each_piece_once_and_no_two_epochs_are_alike),
        cmocka_unit_test(all_orders_are_equally_likely),
        cmocka_unit_test(a_share_of_the_documents_is_held_out),
    };
    find_verbatim(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
