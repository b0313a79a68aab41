/* tests/engine/test_added.c -- the search for added tokens: the longest at each place, in a number of steps that is
 * linear in the text however long the tokens are. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include "engine/text/tokenizer_internal.h"

#define FIRST 5000 /* the id of the first added token; the tokenizer has fewer others */

/* The tokenizer of golden/tokenizer, with these added tokens in place of its own. normalized: a bit for each token. */
static struct vb_tokenizer *with_tokens(char *const *tokens, size_t count, unsigned normalized)
{
    struct vb_tokenizer *t;
    json_t *root = json_load_file("golden/tokenizer/tokenizer.json", 0, NULL), *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:i,s:s,s:b,s:b}", "id", (int)(FIRST + i), "content", tokens[i],
                                              "normalized", (int)(normalized >> i & 1), "special", 0));
    json_object_set_new(root, "added_tokens", list);
    char *text = json_dumps(root, 0);
    OK(tokenizer_parse(&t, text, strlen(text), NULL, 0, "tokenizer.json", NULL, &err));
    free(text);
    json_decref(root);
    return t;
}

/* The ids that a scan finds, with the number of its steps. `ids` has room. */
static size_t scan_text(const struct vb_tokenizer *t, const char *text, size_t size, int normalized, int32_t *ids,
                        size_t *steps)
{
    struct encoding e = {.t = t};
    struct added_scan s = {.e = &e, .text = text, .size = size, .normalized = normalized, .parse_special = 1};
    const char *part;
    size_t n, count = 0, bytes = 0;
    int32_t id;
    while (added_next(&s, &part, &n, &id) > 0) {
        size_t piece = 0;
        if (id >= 0)
            tokenizer_piece(t, id, &piece), ids[count++] = id;
        bytes += id >= 0 ? piece : n;
    }
    assert_int_equal(bytes, size);
    for (int k = 0; k < 2; k++)
        vb_free(tokenizer_allocator(t), e.begins[k]);
    *steps = e.steps;
    return count;
}

/* By the definition: at each byte the longest token that begins there. */
static size_t scan_by_hand(char *const *tokens, size_t count, unsigned normalized, int kind, const char *text,
                           size_t size, int32_t *ids)
{
    size_t found = 0;
    for (size_t at = 0, longest; at < size; at += longest ? longest : 1) {
        longest = 0;
        for (size_t i = 0; i < count; i++) {
            size_t n = strlen(tokens[i]);
            if ((int)(normalized >> i & 1) == kind && n > longest && n <= size - at && !memcmp(text + at, tokens[i], n))
                longest = n, ids[found] = (int32_t)(FIRST + i);
        }
        found += longest > 0;
    }
    return found;
}

TEST(the_longest_token_at_each_place_is_found)
{
    static char text[9001], room[8][16];
    static int32_t ids[9001], wanted[9001];
    char *tokens[8];
    uint64_t r = 11;
    size_t total = 0;
    for (int round = 0; round < 300; round++) {
        size_t count = 1 + random_below(&r, 8), size = round % 10 ? random_below(&r, 60) : 9000, steps;
        unsigned normalized = (unsigned)random_below(&r, 256);
        for (size_t i = 0; i < count; i++) {
            size_t n = 2 + random_below(&r, 6); /* the vocabulary has all single bytes */
            tokens[i] = room[i];
            for (size_t k = 0; k < n; k++)
                room[i][k] = "XYZ"[random_below(&r, 2 + i % 2)];
            room[i][n] = '\0';
            for (size_t j = 0; j < i; j++) /* two tokens with the same text are refused */
                if (!strcmp(room[i], room[j]))
                    strcat(room[i], (char[]){(char)('a' + i), '\0'});
        }
        for (size_t i = 0; i < size; i++)
            text[i] = "XYZabcde"[random_below(&r, i % 50 ? 3 : 8)];
        struct vb_tokenizer *t = with_tokens(tokens, count, normalized);
        for (int kind = 0; kind < 2; kind++) {
            size_t n = scan_by_hand(tokens, count, normalized, kind, text, size, wanted);
            assert_int_equal(scan_text(t, text, size, kind, ids, &steps), n);
            assert_memory_equal(ids, wanted, n * sizeof *ids);
            total += n;
        }
        tokenizer_close(t);
    }
    assert_true(total > 10000);
}

/* Texts of the token's own letters: with a comparison at each place there would be ten thousand steps for each byte. */
TEST(long_tokens_take_a_few_steps_for_each_byte)
{
    enum { LONG = 10000, SIZE = 1000000 };
    static char text[SIZE], long_1[LONG + 1], long_2[LONG + 2];
    static int32_t ids[SIZE];
    char short_token[] = "aa", *tokens[] = {long_1, long_2, short_token};
    memset(long_1, 'a', LONG);
    memset(long_2, 'a', LONG);
    long_2[LONG] = 'b';
    for (size_t period = 0; period < 4; period++) {
        static const size_t every[] = {SIZE + 1, LONG, LONG / 2, LONG + 1}; /* how often the text has another letter */
        for (size_t count = 1; count <= 3; count++) {
            size_t steps;
            struct vb_tokenizer *t = with_tokens(tokens, count, 0);
            for (size_t i = 0; i < SIZE; i++)
                text[i] = (i + 1) % every[period] ? 'a' : 'c';
            scan_text(t, text, SIZE, 0, ids, &steps);
            if (steps > 10 * (size_t)SIZE)
                fail_msg("%zu steps for %d bytes", steps, SIZE);
            tokenizer_close(t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_token_at_each_place_is_found),
        cmocka_unit_test(long_tokens_take_a_few_steps_for_each_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
