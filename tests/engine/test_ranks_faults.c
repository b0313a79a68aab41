/* tests/engine/test_ranks_faults.c -- an error on one of several ranks is reported on rank 0, and nothing hangs or
 * leaks. Runs in the repository's root. With --all: more allocations fail. */
#include "tests/support/ranks.h"

#include <stdatomic.h>
#include <sys/wait.h>

static int all;

#define RANKS 3
#define MODEL "golden/tiny/v3-mtp3"

static vb_allocator counting(struct counted *c) { return (vb_allocator){counted_alloc, counted_free, c}; }

/* ---- memory that runs out ---- */

struct opened {
    vb_model *m, *draft;
    vb_draft_vocab *vocab;
    vb_session *s;
    vb_batch *b;
};

/* Opens a model, a session and a batch. Returns the first error. */
static int open_all(struct opened *o, vb_ranks *ranks, const vb_allocator *a, const char *precision, vb_error *err)
{
    vb_session_options so = {.context = 40, .threads = 1, .drafting = {.method = "mtp-eagle", .tokens = 3}};
    *o = (struct opened){0};
    int code = vb_model_open(&o->m, MODEL, &(vb_model_options){.allocator = *a, .precision = precision, .ranks = ranks},
                             err);
    if (!code)
        code = vb_model_open(&o->draft, "golden/tiny/v3", &(vb_model_options){.allocator = *a, .ranks = ranks}, err);
    if (!code)
        code = vb_draft_vocab_open(&o->vocab, o->m, (int32_t[]){7, 31, 32, 90, 127}, 5, err);
    so.drafting.vocab = o->vocab;
    if (!code)
        code = vb_session_open(&o->s, o->m, &so, err);
    so.drafting = (vb_drafting){.method = "draft-model", .tokens = 2, .model = o->draft};
    if (!code)
        code = vb_batch_open(&o->b, o->m, &(vb_batch_options){.session = &so, .max_sequences = 2}, err);
    return code;
}

static void close_all(struct opened *o)
{
    vb_batch_close(o->b);
    vb_session_close(o->s);
    vb_draft_vocab_close(o->vocab);
    vb_model_close(o->draft);
    vb_model_close(o->m);
}

static void compute(struct opened *o, struct notes *n)
{
    static const int32_t prompt[] = {5, 6, 7, 70, 9, 33, 17};
    OK(vb_append(o->s, prompt, COUNT(prompt), &err));
    note_run(n, o->s, 6, "run");
}

static void no_memory_on(int rank, const char *precision)
{
    struct notes alone = {0};
    struct opened o;
    long total = 1, before = 0, each = all ? 1 : 7;
    vb_allocator none = {0};
    char where[24];
    snprintf(where, sizeof where, "rank %d (host-%d): ", rank, rank);
    OK(open_all(&o, NULL, &none, precision, &err));
    compute(&o, &alone);
    close_all(&o);
    for (long fail = -1; fail < total; fail += fail < before ? 1 : each) {
        struct counted c = {.fail = fail};
        struct group_options g = {.count = RANKS};
        struct group *group;
        struct notes together = {0};
        vb_error why = {0};
        g.allocator[rank] = counting(&c);
        if (fail >= 0 && fail < before) {
            group_refused(&g, VB_NO_MEMORY, &why);
            if (!strstr(why.message, where) || c.alive)
                fail_msg("allocation %ld of rank %d fails: \"%s\", %ld blocks are left", fail, rank, why.message,
                         c.alive);
            continue;
        }
        vb_ranks *ranks = group_open(&group, &g);
        before = c.requests;
        int code = open_all(&o, ranks, rank ? &none : &g.allocator[0], precision, &why);
        if (fail < 0)
            total = c.requests;
        else if (code != VB_NO_MEMORY || why.code != code || (rank && !strstr(why.message, where)) ||
                 strchr(why.message, '\n'))
            fail_msg("allocation %ld of rank %d fails: code %d, \"%s\"", fail, rank, code, why.message);
        close_all(&o);
        OK(open_all(&o, ranks, rank ? &none : &g.allocator[0], precision, &err)); /* the group is as before */
        compute(&o, &together);
        close_all(&o);
        group_close(group);
        check_notes("after a lack of memory", &alone, &together);
        free(together.note);
        if (c.alive)
            fail_msg("allocation %ld of rank %d fails: %ld blocks are left", fail, rank, c.alive);
    }
    print_message("rank %d: %ld allocations for the group, %ld in all\n", rank, before, total);
    assert_true(before > 3 && total > before + 50);
    free(alone.note);
}

TEST(each_allocation_of_a_rank_fails_in_turn_and_the_group_goes_on)
{
    no_memory_on(1, "q8");
    no_memory_on(2, "bf16");
}

TEST(each_allocation_of_rank_0_fails_in_turn_and_the_group_goes_on) { no_memory_on(0, "f32"); }

/* In a pass, a rank cannot wait for the others. vb_ranks_follow returns its error, and the program ends all ranks
 * (tools/mpi/mpi.c). */
static void end_all(int rank, const vb_error *err)
{
    printf("rank %d: %s\n", rank, err->message);
    fflush(stdout);
    _exit(7);
}

static int run_until_it_fails(long fail)
{
    struct counted c = {.fail = -1};
    struct group_options g = {.count = 2, .allocator[1] = counting(&c), .failed = end_all};
    struct group *group;
    struct opened o;
    struct notes n = {0};
    OK(open_all(&o, group_open(&group, &g), &(vb_allocator){0}, NULL, &err));
    c.fail = c.requests + fail;
    compute(&o, &n);
    close_all(&o);
    group_close(group);
    free(n.note);
    return c.requests > c.fail ? 1 : 0; /* 0: no allocation failed, because there were fewer */
}

TEST(a_rank_without_memory_for_a_pass_ends_the_program)
{
    char self[256], command[300], line[256];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    long fail = 0;
    assert_true(size > 0);
    self[size] = 0;
    for (int status = 7; status; fail++) {
        snprintf(command, sizeof command, "%s pass %ld", self, fail);
        FILE *f = popen(command, "r");
        assert_non_null(f);
        char *said = fgets(line, sizeof line, f);
        status = WEXITSTATUS(pclose(f));
        if (status && (status != 7 || !said || strcmp(line, "rank 1: no memory for a pass of rank 0\n")))
            fail_msg("allocation %ld in a pass fails: exit code %d, \"%s\"", fail, status, said ? line : "");
    }
    print_message("%ld allocations in passes\n", fail - 1);
    assert_true(fail > 5);
}

/* ---- models that differ ---- */

/* After rank 0's message, rank 1 waits until the other ranks have opened the model; then it replaces a file. */
static struct swapping {
    atomic_long message, count[RANKS]; /* number of the exchange that is the message, from 1; exchanges that each rank
                                          has begun */
    const char *dir, *name;
    const char *data;
    size_t size;
} swapping;

static void swap(void *context, int rank, int done, const void *buffer, const size_t *offset)
{
    struct swapping *s = context;
    (void)buffer, (void)offset;
    if (!done)
        s->count[rank]++;
    if (rank != 1 || !done || s->count[rank] != s->message)
        return;
    while (s->count[0] == s->message || s->count[2] == s->message)
        usleep(200);
    char file[160];
    snprintf(file, sizeof file, "%s/%s", s->dir, s->name);
    unlink(file); /* the other ranks have mapped the old file */
    write_file(s->dir, s->name, s->data, s->size);
}

static void refuse_another(const char *name, const char *text, const char *other)
{
    char dir[64], path[128], *data, *at;
    size_t size;
    struct group_options g = {.count = RANKS, .exchange = swap, .context = &swapping};
    struct group *group;
    struct opened o = {0};
    copy_checkpoint(dir, "golden/tiny/glm");
    snprintf(path, sizeof path, "%s/%s", dir, name);
    OK(vb_read_file(NULL, path, &data, &size, &err));
    at = text ? memmem(data, size, text, strlen(text)) : data + size / 2;
    assert_non_null(at);
    if (text)
        memcpy(at, other, strlen(other));
    for (; !text && at < data + size; at += 60) /* another checkpoint of the same shapes; few weights alone would not be
                                                   noticed */
        *at ^= 1;
    swapping = (struct swapping){.dir = dir, .name = name, .data = data, .size = size};
    vb_ranks *ranks = group_open(&group, &g);
    swapping.message = swapping.count[0] + 1;
    vb_model_options mo = {.ranks = ranks};
    REFUSED(vb_model_open(&o.m, dir, &mo, &err), VB_BAD_CHECKPOINT, "rank 1 has another model there than rank 0");
    assert_null(o.m);
    OK(vb_model_open(&o.m, dir, &mo, &err)); /* now all have the same */
    vb_model_close(o.m);
    group_close(group);
    vb_free(NULL, data);
    remove_dir(dir);
}

TEST(a_rank_with_another_model_is_named)
{
    refuse_another("config.json", "\"rms_norm_eps\": 1e-0", "\"rms_norm_eps\": 2e-0");
    refuse_another("model.safetensors", NULL, NULL);
}

/* ---- what is refused ---- */

static int see_nothing(void *context) { return context != NULL; }
static void see_tap(void *context, const vb_tap *tap) { (void)context, (void)tap; }

static void refuse_all(vb_model *m, struct notes *n, void *context)
{
    vb_session *s = NULL;
    vb_quantize *q = NULL;
    struct group *group = context;
    (void)group;
    note(n, 1, "done");
    if (!m->ranks)
        return;
    REFUSED(vb_session_open(&s, m, &(vb_session_options){.context = 20, .prefill = "onednn"}, &err), VB_BAD_ARGUMENT,
            "prefill onednn is for one process");
    REFUSED(vb_session_open(&s, m,
                            &(vb_session_options){.context = 20, .prefill = "expanded", .tap = see_tap,
                                                  .tap_scores = 1},
                            &err),
            VB_BAD_ARGUMENT, "no taps of scores with prefill expanded");
    REFUSED(vb_model_lock(m, &err), VB_BAD_ARGUMENT, "weights cannot be locked on several ranks");
    REFUSED(vb_quantize_open(&q, m, MODEL, &(vb_quantize_options){.type = "q8_0"}, &err), VB_BAD_ARGUMENT,
            "a GGUF file is written by one process");
    REFUSED(vb_session_open(&s, m, &(vb_session_options){.context = 20, .isa = "none"}, &err), VB_BAD_ARGUMENT, "none");
    REFUSED(vb_session_open(&s, m, &(vb_session_options){.context = -1}, &err), VB_BAD_ARGUMENT, "context");
    assert_true(!s && !q);
    OK(vb_session_open(&s, m, &(vb_session_options){.context = 20, .stop = see_nothing}, &err));
    vb_session_close(s);
    vb_model *other = NULL;
    REFUSED(vb_model_open(&other, MODEL, &(vb_model_options){.ranks = m->ranks, .numa = "bind"}, &err), VB_BAD_ARGUMENT,
            "numa bind is for one process");
    REFUSED(vb_model_open(&other, MODEL, &(vb_model_options){.ranks = m->ranks, .precision = "f8"}, &err),
            VB_BAD_ARGUMENT, "f8");
    REFUSED(vb_model_open(&other, "golden/tiny", &(vb_model_options){.ranks = m->ranks}, &err), VB_IO, "golden/tiny");
}

TEST(what_ranks_cannot_do_is_refused_and_the_group_goes_on)
{
    check_scenario("refusals", MODEL, &(vb_model_options){0}, &(struct group_options){.count = 3}, refuse_all, NULL);
}

static void describe(vb_model *m, struct notes *n, void *context)
{
    char *json;
    uint64_t fingerprint;
    OK(vb_model_describe(m, &json, &err));
    if (!context) /* else there are copies, and the sizes are those of this rank's share */
        note_bytes(n, json, strlen(json), "the description");
    vb_text_free(json);
    OK(vb_model_check(m, NULL, NULL, &err));
    OK(vb_model_fingerprint(m, 0, 1, &fingerprint, &err));
    note(n, fingerprint, "the fingerprint");
}

/* These functions read whole tensors, whatever share of them this rank computes. */
TEST(a_model_describes_itself_as_in_one_process)
{
    static const char *const dirs[] = {MODEL, "golden/tiny/moonlight", "golden/gguf/quantized.gguf"};
    for (size_t i = 0; i < COUNT(dirs); i++)
        check_scenario(dirs[i], dirs[i], &(vb_model_options){0}, &(struct group_options){.count = 3}, describe,
                       i == 2 ? &all : NULL);
}

TEST(groups_that_cannot_be_are_refused)
{
    vb_error why;
    vb_ranks *r = NULL;
    group_refused(&(struct group_options){.count = 3, .weights = {1, 0, 2}}, VB_BAD_ARGUMENT, &why);
    assert_non_null(strstr(why.message, "the weight of rank 1 is 0"));
    group_refused(&(struct group_options){.count = 2, .weights = {0, 2}}, VB_BAD_ARGUMENT, &why);
    assert_non_null(strstr(why.message, "the weight of rank 0 is 0"));
    REFUSED(vb_ranks_open(&r, &(vb_ranks_options){.rank = 0, .count = 1025}, &err), VB_BAD_ARGUMENT, "at most 1024");
    REFUSED(vb_ranks_open(&r, &(vb_ranks_options){.rank = 2, .count = 2}, &err), VB_BAD_ARGUMENT, "rank 2 of 2");
    REFUSED(vb_ranks_open(&r, &(vb_ranks_options){.rank = 0, .count = 0}, &err), VB_BAD_ARGUMENT, "rank 0 of 0");
}

/* If another rank's CPU lacks its instruction set, the error names this rank and not rank 0. */
TEST(a_rank_without_the_instruction_set_is_named)
{
    struct group *group;
    vb_session *s = NULL;
    vb_model *m = NULL;
    struct group_options g = {.count = 3, .isa = {NULL, NULL, "neon2"}};
    OK(vb_model_open(&m, MODEL, &(vb_model_options){.ranks = group_open(&group, &g)}, &err));
    REFUSED(vb_session_open(&s, m, &(vb_session_options){.context = 20}, &err), VB_BAD_ARGUMENT, "rank 2 (host-2): ");
    vb_model_close(m);
    group_close(group);
}

int main(int argc, char **argv)
{
    all = argc > 1 && !strcmp(argv[1], "--all");
    if (argc > 2 && !strcmp(argv[1], "pass"))
        return run_until_it_fails(atol(argv[2]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_of_a_rank_fails_in_turn_and_the_group_goes_on),
        cmocka_unit_test(each_allocation_of_rank_0_fails_in_turn_and_the_group_goes_on),
        cmocka_unit_test(a_rank_without_memory_for_a_pass_ends_the_program),
        cmocka_unit_test(a_rank_with_another_model_is_named),
        cmocka_unit_test(what_ranks_cannot_do_is_refused_and_the_group_goes_on),
        cmocka_unit_test(a_model_describes_itself_as_in_one_process),
        cmocka_unit_test(groups_that_cannot_be_are_refused),
        cmocka_unit_test(a_rank_without_the_instruction_set_is_named),
    };
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
