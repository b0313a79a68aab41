/* tests/engine/test_pages.c -- new memory gets its pages before it is written, only where it is wanted, and no byte
 * changes; blocks become panels. */
#include "tests/support/engine_support.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/pages.h"
#include "simd/quantized.h"

#define MIB ((size_t)1 << 20)
#define SIZE (24 * MIB)

static unsigned char *new_memory(void)
{
    unsigned char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* How many bytes of memory[from, from + bytes) have pages. */
static size_t present(unsigned char *memory, size_t from, size_t bytes)
{
    static unsigned char in[SIZE / 4096];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), count = 0;
    assert_int_equal(mincore(memory + from, bytes, in), 0);
    for (size_t i = 0; i < bytes / page; i++)
        count += in[i] & 1;
    return count * page;
}

static int can_populate(void)
{
#ifdef MADV_POPULATE_WRITE
    unsigned char *memory = new_memory();
    int can = !madvise(memory, MIB, MADV_POPULATE_WRITE);
    munmap(memory, SIZE);
    return can;
#else
    return 0;
#endif
}

TEST(pages_come_where_they_are_wanted_and_nowhere_else)
{
    unsigned char *memory = new_memory();
    struct pages p;
    assert_int_equal(pages_open(&p, memory, SIZE, NULL), VB_OK);
    assert_non_null(p.claimed);
    assert_int_equal(present(memory, 0, SIZE), 0);
    pages_want(&p, memory + 8 * MIB, 4 * MIB);
    if (can_populate())
        assert_int_equal(present(memory, 8 * MIB, 4 * MIB), 4 * MIB);
    assert_int_equal(present(memory, 0, 6 * MIB) + present(memory, 14 * MIB, 10 * MIB), 0);
    pages_close(&p);
    munmap(memory, SIZE);
}

struct writer {
    pthread_t id;
    struct pages *p;
    unsigned char *memory;
    size_t first;
};

/* Every third piece of 100,000 bytes; pages_want goes a little beyond each. */
static void *write_some(void *arg)
{
    struct writer *w = arg;
    for (size_t at = w->first * 100000; at + 100000 <= SIZE; at += 300000) {
        memset(w->memory + at, 1 + (int)w->first, 100000);
        pages_want(w->p, w->memory + at, SIZE - at < MIB ? SIZE - at : MIB);
    }
    return NULL;
}

TEST(threads_may_write_while_pages_come_and_no_byte_changes)
{
    unsigned char *memory = new_memory();
    struct pages p;
    struct writer w[3];
    assert_int_equal(pages_open(&p, memory, SIZE, NULL), VB_OK);
    for (size_t i = 0; i < 3; i++) {
        w[i] = (struct writer){.p = &p, .memory = memory, .first = i};
        assert_int_equal(pthread_create(&w[i].id, NULL, write_some, &w[i]), 0);
    }
    for (size_t i = 0; i < 3; i++)
        pthread_join(w[i].id, NULL);
    pages_close(&p);
    for (size_t i = 0; i < SIZE / 100000 * 100000; i++)
        if (memory[i] != 1 + i / 100000 % 3)
            fail_msg("byte %zu is %d", i, memory[i]);
    munmap(memory, SIZE);
}

TEST(slow_requests_change_the_kind_of_pages_and_a_few_do_not)
{
    unsigned char *memory = new_memory();
    struct pages p;
    assert_int_equal(pages_open(&p, memory, SIZE, NULL), VB_OK);
    for (unsigned round = 0; round < 4 && can_populate(); round++) {
        int before = p.small;
        p.asked = 15;
        p.slow = round % 2 ? 4 : 12;
        pages_want(&p, memory + (2 + round) * 2 * MIB, 1);
        assert_int_equal(p.small, round % 2 ? before : !before);
        assert_int_equal(p.slow, 0);
    }
    pages_close(&p);
    munmap(memory, SIZE);
}

TEST(little_memory_is_left_alone)
{
    unsigned char *memory = new_memory();
    struct pages p;
    assert_int_equal(pages_open(&p, memory, 7 * MIB, NULL), VB_OK);
    pages_want(&p, memory, 7 * MIB);
    assert_int_equal(present(memory, 0, SIZE), 0);
    pages_close(&p);
    munmap(memory, SIZE);
}

static void *no_memory(void *context, size_t size)
{
    (void)context, (void)size;
    return NULL;
}

TEST(no_memory_for_the_list_of_pieces_is_an_error)
{
    unsigned char *memory = new_memory();
    struct pages p;
    vb_allocator a = {.alloc = no_memory};
    assert_int_equal(pages_open(&p, memory, SIZE, &a), VB_NO_MEMORY);
    pages_want(&p, memory, SIZE);
    pages_close(&p);
    assert_int_equal(present(memory, 0, SIZE), 0);
    munmap(memory, SIZE);
}

/* Byte `at` of a panel of the blocks, by the layout in simd/quantized.h. block[r] is row r; rows from `rows` on do not
 * exist. */
static unsigned char byte_of_panel(enum weight_type type, size_t groups, const unsigned char *const *block, size_t rows,
                                   size_t at)
{
    size_t pair = panel_pair_bytes(type), code_bytes = panel_code_bytes(type), size = quantized_format(type)->bytes;
    size_t wide = type == WEIGHT_Q8_F32 ? 4 : 2, in = at % pair, scale = in < 64; /* wide: bytes of a scale */
    size_t g = at / pair * 2 + (scale ? in / wide / 16 : (in - 64) / code_bytes);
    size_t k = scale ? in % (16 * wide) : (in - 64) % code_bytes, r = scale ? k / wide : k % 64 / 4;
    if (g >= groups || r >= rows)
        return 0;
    unsigned char byte = block[r][g * size + (scale ? k % wide : wide + k / 64 * 4 + k % 4)];
    return scale || type == WEIGHT_Q4_0 || type == WEIGHT_IQ4_NL ? byte : (unsigned char)(byte + 128);
}

TEST(every_byte_of_a_panel_is_the_one_that_the_layout_says)
{
    static const enum weight_type types[] = {WEIGHT_Q8_0, WEIGHT_Q4_0, WEIGHT_IQ4_NL, WEIGHT_Q8_F32};
    static unsigned char blocks[16][3 * 36], panel[2 * (64 + 2 * 512)];
    const unsigned char *row[16];
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i / (3 * 36)][i % (3 * 36)] = (unsigned char)(i * 37 + i / 256);
    for (size_t r = 0; r < 16; r++)
        row[r] = blocks[(r * 5) % 16];
    for (size_t groups = 1; groups <= 3; groups++)
        for (size_t rows = 1; rows <= 16; rows++)
            for (size_t t = 0; t < 4; t++) {
                enum weight_type type = types[t];
                for (size_t r = 0; r < 16 && type == WEIGHT_Q8_F32; r++) /* one scale for all blocks of a row: the last
                                                                            type of the list */
                    for (size_t g = 1; g < 3; g++)
                        memcpy(blocks[r] + 36 * g, blocks[r], 4);
                memset(panel, 0xaa, sizeof panel);
                panel_from_rows(panel, type, groups * QUANTIZED_GROUP, row, rows);
                for (size_t at = 0; at < panel_bytes(type, groups * QUANTIZED_GROUP); at++)
                    if (panel[at] != byte_of_panel(type, groups, row, rows, at))
                        fail_msg("%s, %zu rows, %zu groups: byte %zu", quantized_format(type)->name, rows, groups, at);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_where_they_are_wanted_and_nowhere_else),
        cmocka_unit_test(threads_may_write_while_pages_come_and_no_byte_changes),
        cmocka_unit_test(slow_requests_change_the_kind_of_pages_and_a_few_do_not),
        cmocka_unit_test(little_memory_is_left_alone),
        cmocka_unit_test(no_memory_for_the_list_of_pieces_is_an_error),
        cmocka_unit_test(every_byte_of_a_panel_is_the_one_that_the_layout_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
