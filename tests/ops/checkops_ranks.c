/* tests/ops/checkops_ranks.c -- shares of ranks, and op_gather: whatever room there is for exchanges, each rank gets
 * every byte of the others. */
#include "tests/ops/checkops.h"

#include <stdlib.h>

#include "ops/ranks.h"
#include "simd/kernels.h"

#define MOST_RANKS 5
#define PIECES 3

/* ---- exchanges of ranks that run one after the other ----
 *
 * What a rank sends does not depend on what it gets. So each rank runs twice: first its bytes are written down, then it
 * gets those of all. */

static char sent[1 << 20];
static size_t sent_at, exchanges;
static int sending_rank, is_second;

static void all_gather(void *context, void *buffer, const size_t *offset)
{
    size_t own = offset[sending_rank], size = offset[sending_rank + 1] - own, count = *(const size_t *)context;
    assert_true(sent_at + offset[count] <= sizeof sent);
    if (is_second && memcmp(sent + sent_at + own, (char *)buffer + own, size))
        fail_msg("%s: rank %d sends other bytes than before", case_name, sending_rank);
    if (is_second)
        memcpy(buffer, sent + sent_at, offset[count]);
    else
        memcpy(sent + sent_at + own, (char *)buffer + own, size);
    sent_at += offset[count];
    exchanges++;
}

/* ---- rows ---- */

/* Fills a row of `chunks` units of 32 numbers, in a form in which it may travel. */
static void fill(const struct kernels *k, char *row, size_t chunks, size_t cut, enum op_travel travel, uint64_t *seed)
{
    for (size_t c = 0; c < chunks; c++) {
        float x[DOT_CHUNK], packed[DOT_CHUNK];
        for (size_t j = 0; j < DOT_CHUNK; j++)
            x[j] = (float)random_below(seed, 255) - 127; /* BF16 holds it */
        k->pack(packed, x, DOT_CHUNK);
        if (travel == OP_AS_GROUPS)
            k->quantize((struct quantized_group *)(void *)(row + c * sizeof(struct quantized_group)), packed,
                        DOT_CHUNK);
        else
            memcpy(row + c * sizeof packed, packed, c + 1 < chunks ? sizeof packed : sizeof packed - cut);
    }
}

static size_t travelling(const struct op_piece *p)
{
    return p->travel == OP_AS_BF16 ? p->row_bytes / 2
           : p->travel == OP_AS_GROUPS ? p->row_bytes / sizeof(struct quantized_group) * OP_GROUP_BYTES
           : p->row_bytes;
}

static size_t random_pieces(struct op_piece *piece, size_t *longest, const struct kernels *k, uint64_t *seed)
{
    size_t count = 1 + random_below(seed, PIECES);
    *longest = 1;
    for (size_t i = 0; i < count; i++) {
        enum op_travel travel = (enum op_travel[]){OP_AS_STORED, OP_AS_BF16, OP_AS_GROUPS}[random_below(seed, 3)];
        size_t rows = random_below(seed, 6), chunks = 1 + random_below(seed, 9), unit = 1 + random_below(seed, 3);
        size_t number = travel == OP_AS_GROUPS ? sizeof(struct quantized_group) : DOT_CHUNK * sizeof(float);
        size_t cut = travel == OP_AS_STORED ? 4 * random_below(seed, 31) : 0; /* the last unit may be shorter */
        piece[i] = (struct op_piece){calloc(rows + 1, chunks * number), rows, chunks * number - cut,
                                     (chunks + unit - 1) / unit, unit * number, travel, NULL};
        assert_non_null(piece[i].data);
        for (size_t s = 0; s < rows; s++)
            fill(k, (char *)piece[i].data + s * piece[i].row_bytes, chunks, cut, travel, seed);
        *longest = travelling(&piece[i]) > *longest ? travelling(&piece[i]) : *longest;
    }
    return count;
}

/* Copies the units that a rank has, and garbage in the place of the others. */
static void own_units(struct op_piece *to, const struct op_piece *from, const struct op_ranks *r)
{
    struct op_share own = from->cuts ? (struct op_share){from->cuts[r->rank], from->cuts[r->rank + 1]}
                                     : op_share_of(r, r->rank, from->units, 1);
    size_t bytes = from->rows * from->row_bytes;
    *to = *from;
    assert_non_null(to->data = malloc(bytes + 1));
    memset(to->data, 0xee, bytes);
    for (size_t s = 0; s < from->rows; s++)
        for (size_t at = own.begin * from->unit_bytes; at < own.end * from->unit_bytes && at < from->row_bytes; at++)
            ((char *)to->data)[s * from->row_bytes + at] = ((char *)from->data)[s * from->row_bytes + at];
}

/* ---- tests ---- */

TEST(each_rank_gets_all_rows_whatever_room_there_is)
{
    size_t most = 0;
    for (uint64_t trial = 0; trial < 300; trial++) {
        const struct kernels *k = kernel_tables[0]; /* the tests of whole models mix the tables */
        uint64_t seed = trial, before[MOST_RANKS + 1] = {0};
        size_t longest, count, ranks = 1 + random_below(&seed, MOST_RANKS), offset[MOST_RANKS + 1],
                               cuts[PIECES][MOST_RANKS + 1];
        struct op_piece whole[PIECES], piece[PIECES];
        FOR_EACH_TABLE(table)
            k = random_below(&seed, 2) ? table : scalar_table();
        for (size_t r = 0; r < ranks; r++)
            before[r + 1] = before[r] + 1 + random_below(&seed, 3);
        count = random_pieces(whole, &longest, k, &seed);
        for (size_t i = 0; i < count; i += 1 + random_below(&seed, 3)) { /* some ranks have nothing */
            for (size_t c = 0; c < ranks; c++)
                cuts[i][c] = c ? cuts[i][c - 1] + random_below(&seed, whole[i].units - cuts[i][c - 1] + 1) : 0;
            cuts[i][ranks] = whole[i].units;
            whole[i].cuts = cuts[i];
        }
        struct op_ranks r = {.count = (int)ranks, .before = before, .all_gather = all_gather, .context = &ranks,
                             .offset = offset};
        r.room = longest + random_below(&seed, 3 * longest);
        assert_non_null(r.buffer = malloc(r.room));
        struct op_ctx cx = {.k = k, .ranks = &r};
        CASE("trial %d, %zu ranks, %zu pieces, room for %zu bytes", (int)trial, ranks, count, r.room);
        for (is_second = 0; is_second < 2; is_second++)
            for (r.rank = 0; r.rank < (int)ranks; r.rank++) {
                sending_rank = r.rank;
                sent_at = exchanges = 0;
                for (size_t i = 0; i < count; i++)
                    own_units(&piece[i], &whole[i], &r);
                op_gather(&cx, piece, count);
                for (size_t i = 0; i < count; i++) {
                    if (is_second && memcmp(piece[i].data, whole[i].data, whole[i].rows * whole[i].row_bytes))
                        fail_msg("%s: on rank %d, piece %zu is not whole", case_name, r.rank, i);
                    free(piece[i].data);
                }
            }
        most = exchanges > most ? exchanges : most;
        for (size_t i = 0; i < count; i++)
            free(whole[i].data);
        free(r.buffer);
    }
    assert_true(most > 6); /* some gathers took many exchanges */
}

TEST(shares_are_disjoint_and_each_row_has_an_owner)
{
    for (uint64_t trial = 0; trial < 500; trial++) {
        uint64_t seed = trial, before[MOST_RANKS + 1] = {0};
        int ranks = 1 + (int)random_below(&seed, MOST_RANKS);
        size_t rows = random_below(&seed, 400), unit = 1 + random_below(&seed, 40), end = 0;
        for (int r = 0; r < ranks; r++)
            before[r + 1] = before[r] + 1 + random_below(&seed, trial % 2 ? 4 : UINT32_MAX);
        struct op_ranks all = {.count = ranks, .before = before};
        for (int r = 0; r < ranks; r++) {
            struct op_share own = op_share_of(&all, r, rows, unit);
            assert_int_equal(own.begin, end);
            assert_true(own.end >= own.begin && (own.end % unit == 0 || own.end == rows));
            for (size_t row = own.begin; row < own.end; row++)
                assert_int_equal(op_owner(&all, row, rows, unit), r);
            end = own.end;
        }
        assert_int_equal(end, rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_gets_all_rows_whatever_room_there_is),
        cmocka_unit_test(shares_are_disjoint_and_each_row_has_an_owner),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
