/* tests/engine/test_ranks_replay.c -- records all exchanges of a group of ranks, and then runs each rank alone: it
 * receives the recorded bytes of the other ranks, and must send its own recorded bytes. The record may come from
 * another kind of processor, so this also tests groups of different processors, under an emulator. Runs in the
 * repository's root. Without arguments, records and replays on each instruction set of this machine.
 *
 *     test_ranks_replay record DIR         writes a model and all exchanges of a group to DIR
 *     test_ranks_replay replay DIR RANK    runs this rank alone
 *
 * Format of DIR/exchanges: for each exchange the offsets, [RANKS + 1] numbers of 8 bytes, then the bytes of all
 * ranks. */
#include "tests/support/layout_checkpoint.h"
#include "tests/support/ranks.h"

#define RANKS 3

static const uint32_t weights[RANKS] = {2, 1, 2};

/* ---- the computation ---- */

/* Rank 0's part: models in every precision, a prompt, and tokens with drafts. */
static void compute(vb_ranks *ranks, const char *dir, const char *isa)
{
    static const char *const precisions[] = {"f32", "bf16", "q8", "q4"}, *const caches[] = {"f32", "bf16", "q8", "f32"};
    char model[96];
    snprintf(model, sizeof model, "%s/model", dir);
    for (size_t i = 0; i < COUNT(precisions) + 1; i++) {
        static struct record r;
        int32_t prompt[9];
        vb_model *m = NULL;
        vb_model_options o = {.precision = precisions[i % 4], .cache_type = caches[i % 4], .ranks = ranks};
        OK(vb_model_open(&m, i < COUNT(precisions) ? model : "golden/tiny/v32", &o, &err));
        random_tokens(m, 4, prompt, COUNT(prompt));
        run(m,
            &(vb_session_options){.context = 40, .threads = 1, .isa = isa, .prefill_chunk = 5,
                                  .prefill = i == 1 ? "expanded" : NULL,
                                  .drafting = {.method = "mtp-eagle", .tokens = 2}},
            prompt, COUNT(prompt), 5, &r);
        vb_model_close(m);
    }
}

/* ---- recording ---- */

static void write_exchange(void *context, int rank, int done, const void *buffer, const size_t *offset)
{
    if (rank || !done)
        return;
    uint64_t all[RANKS + 1];
    for (int i = 0; i <= RANKS; i++)
        all[i] = offset[i];
    fwrite(all, sizeof all, 1, context);
    fwrite(buffer, 1, offset[RANKS], context);
}

static FILE *open_record(const char *dir, const char *mode)
{
    char path[96];
    snprintf(path, sizeof path, "%s/exchanges", dir);
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    return f;
}

static void record(const char *dir)
{
    char made[64], model[96];
    struct group *group;
    FILE *f = open_record(dir, "w");
    struct group_options g = {.count = RANKS, .exchange = write_exchange, .context = f};
    memcpy(g.weights, weights, sizeof weights);
    layout_checkpoint(made, (struct layout_checkpoint){.layout = LAYOUT_FP8});
    snprintf(model, sizeof model, "%s/model", dir);
    assert_int_equal(rename(made, model), 0);
    compute(group_open(&group, &g), dir, NULL);
    group_close(group);
    assert_int_equal(fclose(f), 0);
}

/* ---- replaying ---- */

struct replay {
    FILE *f;
    int rank;
    long exchanges;
};

static void all_gather(void *context, void *buffer, const size_t *offset)
{
    struct replay *p = context;
    uint64_t was[RANKS + 1];
    size_t own = offset[p->rank], end = offset[p->rank + 1];
    p->exchanges++;
    if (fread(was, sizeof was, 1, p->f) != 1)
        fail_msg("rank %d makes exchange %ld, which was not recorded", p->rank, p->exchanges);
    for (int i = 0; i <= RANKS; i++)
        if (was[i] != offset[i])
            fail_msg("rank %d, exchange %ld: offset %d is %zu, was %" PRIu64, p->rank, p->exchanges, i, offset[i],
                     was[i]);
    char *bytes = malloc(offset[RANKS] + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, offset[RANKS], p->f), offset[RANKS]);
    for (size_t i = own; i < end; i++)
        if (bytes[i] != ((char *)buffer)[i])
            fail_msg("rank %d, exchange %ld: byte %zu of its %zu is %02x, was %02x", p->rank, p->exchanges, i - own,
                     end - own, (unsigned char)((char *)buffer)[i], (unsigned char)bytes[i]);
    memcpy(buffer, bytes, offset[RANKS]);
    free(bytes);
}

static void replay(const char *dir, int rank, const char *isa)
{
    struct replay p = {open_record(dir, "r"), rank, 0};
    char host[16] = "host-";
    host[5] = (char)('0' + rank);
    vb_ranks *ranks = NULL;
    vb_ranks_options o = {.rank = rank, .count = RANKS, .weights = weights, .all_gather = all_gather, .context = &p,
                          .host = host, .threads = 1, .isa = isa};
    OK(vb_ranks_open(&ranks, &o, &err));
    if (rank)
        OK(vb_ranks_follow(ranks, &err));
    else
        compute(ranks, dir, isa);
    vb_ranks_close(ranks);
    assert_int_equal(fgetc(p.f), EOF);
    fclose(p.f);
    print_message("rank %d: %ld exchanges\n", rank, p.exchanges);
    assert_true(p.exchanges > 500);
}

static void remove_record(const char *dir)
{
    char model[96];
    snprintf(model, sizeof model, "%s/model", dir);
    remove_dir(model);
    remove_dir(dir);
}

/* ---- tests ---- */

TEST(each_rank_alone_sends_the_same_bytes_with_any_instructions)
{
    char dir[64];
    const char *const *isas = isas_here();
    int known = 0;
    while (isas[known])
        known++;
    make_dir(dir);
    record(dir);
    for (int rank = 0; rank < RANKS; rank++)
        replay(dir, rank, isas[(known - 1 + rank) % known]);
    remove_record(dir);
}

static const char *given_dir;
static int given_rank;

TEST(exchanges_are_recorded) { record(given_dir); }
TEST(the_rank_alone_sends_the_same_bytes) { replay(given_dir, given_rank, NULL); }

int main(int argc, char **argv)
{
    const struct CMUnitTest alone[] = {cmocka_unit_test(each_rank_alone_sends_the_same_bytes_with_any_instructions)},
                            records[] = {cmocka_unit_test(exchanges_are_recorded)},
                            replays[] = {cmocka_unit_test(the_rank_alone_sends_the_same_bytes)};
    given_dir = argc > 2 ? argv[2] : "";
    given_rank = argc > 3 ? atoi(argv[3]) : 0;
    if (argc == 3 && !strcmp(argv[1], "record"))
        return cmocka_run_group_tests(records, NULL, NULL);
    if (argc == 4 && !strcmp(argv[1], "replay"))
        return cmocka_run_group_tests(replays, NULL, NULL);
    return cmocka_run_group_tests(alone, NULL, NULL);
}
