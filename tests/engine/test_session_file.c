/* tests/engine/test_session_file.c -- session files that are wrong, or do not belong to the model: one sentence each,
 * and no harm; and how a file comes into being. */
#include "tests/support/engine_support.h"

#include <errno.h>
#include <sys/stat.h>

#include "engine/base/crc64.h"
#include "tests/support/session.h"

#define TINY "golden/tiny/v3-mtp3"
#define GOLDEN "golden/session/tiny.session" /* golden/scripts/make_session.sh */

static char dir[64], file[128], other[128];
static vb_model *model;

static int begin(void **unused)
{
    (void)unused;
    make_dir(dir);
    snprintf(file, sizeof file, "%s/session", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    model = open_model(TINY);
    return 0;
}

static int end(void **unused)
{
    (void)unused;
    vb_model_close(model);
    remove_dir(dir);
    return 0;
}

static const vb_session_options drafting = {.context = 24, .threads = 1, .isa = "scalar",
                                            .drafting.method = "mtp-vanilla", .drafting.tokens = 2};

/* `tokens` of a prompt, and `n` more. */
static vb_session *some_session(const vb_model *m, const vb_session_options *o, size_t tokens, size_t n)
{
    static struct record r;
    int32_t prompt[64];
    random_tokens(m, 3, prompt, tokens);
    vb_session *s = open_session(m, o, prompt, tokens);
    generate(s, n, &r);
    return s;
}

static void save_some(const vb_model *m, const vb_session_options *o, size_t tokens, size_t n)
{
    vb_file_options replace = {.replace = 1};
    vb_session *s = some_session(m, o, tokens, n);
    OK(vb_session_save(s, file, &replace, &err));
    vb_session_close(s);
}

/* Refused, in a sentence that names the file; the same by vb_session_info_read with `check`. */
static void check_refused(const char *path, const char *what, size_t at)
{
    vb_session *s = NULL;
    vb_session_info info;
    for (int i = 0; i < 2; i++) {
        vb_error err = {0};
        int code = i ? vb_session_info_read(&info, path, 1, NULL, &err)
                     : vb_session_load(&s, model, &drafting, path, NULL, &err);
        if ((code != VB_BAD_CHECKPOINT && code != VB_UNSUPPORTED) || s || strncmp(err.message, path, strlen(path)) ||
            strchr(err.message, '\n'))
            fail_msg("%s %zu: %s gave %d, \"%s\"", what, at, i ? "info" : "load", code, err.message);
    }
}

TEST(the_checksum_is_crc_64_xz)
{
    struct crc64 c;
    char bytes[100];
    crc64_open(&c);
    assert_true(crc64(&c, 0, "123456789", 9) == 0x995DC9BBDF1939FAu);
    assert_true(crc64(&c, 0, "", 0) == 0);
    for (int i = 0; i < 100; i++)
        bytes[i] = (char)(i * 37);
    for (size_t cut = 0; cut <= 100; cut++) /* in two parts, at any place */
        assert_true(crc64(&c, crc64(&c, 0, bytes, cut), bytes + cut, 100 - cut) == crc64(&c, 0, bytes, 100));
}

TEST(a_file_cut_anywhere_is_refused)
{
    char *bytes;
    size_t size;
    save_some(model, &drafting, 4, 2);
    OK(vb_read_file(NULL, file, &bytes, &size, &err));
    print_message("%zu bytes\n", size);
    for (size_t n = 0; n < size; n++) {
        if (!has_turn(n, 3))
            continue;
        write_file(dir, "other", bytes, n);
        check_refused(other, "cut at", n);
    }
    char *longer = malloc(size + 1);
    assert_non_null(longer);
    memcpy(longer, bytes, size);
    longer[size] = 'x';
    write_file(dir, "other", longer, size + 1);
    check_refused(other, "one byte more than", size);
    free(longer);
    vb_free(NULL, bytes);
}

TEST(a_file_with_any_byte_changed_is_refused)
{
    char *bytes;
    size_t size;
    save_some(model, &drafting, 4, 2);
    OK(vb_read_file(NULL, file, &bytes, &size, &err));
    for (size_t i = 0; i < size; i++) {
        char was = bytes[i];
        if (!has_turn(i, 3))
            continue;
        bytes[i] = (char)(was ^ 1 << i % 8);
        write_file(dir, "other", bytes, size);
        check_refused(other, "a bit changed in byte", i);
        if (i < SESSION_HEAD || i % 4 == 0) {
            bytes[i] = (char)~was;
            write_file(dir, "other", bytes, size);
            check_refused(other, "all bits changed in byte", i);
        }
        bytes[i] = was;
    }
    vb_free(NULL, bytes);
}

/* Which sentence says what is wrong. */
TEST(what_is_wrong_with_a_file_is_said)
{
    char *bytes;
    size_t size;
    vb_session *s = NULL;
    save_some(model, &drafting, 9, 2);
    OK(vb_read_file(NULL, file, &bytes, &size, &err));
#define CHANGED(at, byte, code, sentence)                                                          \
    do {                                                                                           \
        char was = bytes[at];                                                                      \
        bytes[at] = (char)(byte);                                                                  \
        write_file(dir, "other", bytes, size);                                                     \
        bytes[at] = was;                                                                           \
        REFUSED(vb_session_load(&s, model, &drafting, other, NULL, &err), code, sentence);         \
    } while (0)
    CHANGED(0, 'x', VB_BAD_CHECKPOINT, "is no session file of Verbatim");
    CHANGED(8, 4, VB_UNSUPPORTED, "is a session file of version 4; this program reads versions 1 to 3");
    CHANGED(30, 77, VB_BAD_CHECKPOINT, "is damaged: the checksum of its header is wrong");
    CHANGED(230, '!', VB_BAD_CHECKPOINT, "is damaged: the checksum of its section about is wrong");
    CHANGED(size - 1, bytes[size - 1] ^ 4, VB_BAD_CHECKPOINT,
            "is damaged: the checksum of its section drafter is wrong");
    char order[4];
    memcpy(order, bytes + 12, 4);
    for (int i = 0; i < 4; i++)
        bytes[12 + i] = order[3 - i];
    write_file(dir, "other", bytes, size);
    REFUSED(vb_session_load(&s, model, &drafting, other, NULL, &err), VB_UNSUPPORTED, "other byte order");
    memcpy(bytes + 12, order, 4);
    write_file(dir, "other", bytes, size - 1);
    REFUSED(vb_session_load(&s, model, &drafting, other, NULL, &err), VB_BAD_CHECKPOINT, "is cut short");
    write_file(dir, "other", "", 0);
    REFUSED(vb_session_load(&s, model, &drafting, other, NULL, &err), VB_BAD_CHECKPOINT,
            "is no session file of Verbatim");
    REFUSED(vb_session_load(&s, model, &drafting, "golden/tiny/v3/config.json", NULL, &err), VB_BAD_CHECKPOINT,
            "is no session file");
    REFUSED(vb_session_load(&s, model, &drafting, dir, NULL, &err), VB_IO, "it is no file");
    REFUSED(vb_session_load(&s, model, &drafting, "/nowhere/session", NULL, &err), VB_IO, "No such file");
    assert_null(s);
    vb_free(NULL, bytes);
}

/* A forged file: loaded or refused, with what is loaded going on. Returns whether it was. */
static int try_forged(char *bytes, size_t size, const vb_session_options *o)
{
    vb_session *s = NULL;
    vb_error err = {0};
    vb_result r;
    vb_generate_options more = {.max_tokens = 4, .ignore_eos = 1};
    int32_t next, drafts[VB_MAX_DRAFT], n;
    make_checksums_fit((uint8_t *)bytes, size);
    write_file(dir, "other", bytes, size);
    if (vb_session_load(&s, model, o, other, NULL, &err)) {
        assert_null(s);
        assert_true(err.message[0] && !strchr(err.message, '\n'));
        return 0;
    }
    (void)(vb_generate(s, &more, &r, &err) || vb_truncate(s, 2, &err) || vb_generate(s, &more, &r, &err) ||
           vb_draft(s, &next, drafts, &n, &err));
    vb_session_close(s);
    return 1;
}

/* Every number of the header, the output and the drafter's state, and tokens: checksums prove nothing. */
TEST(a_file_whose_checksums_fit_does_no_harm)
{
    static const char *const methods[] = {"mtp-vanilla", "eagle-keep"};
    size_t loaded = 0, refused = 0, size;
    char *bytes, *copy;
    for (size_t m = 0; m < COUNT(methods); m++)
        for (int hidden = 0; hidden < 2; hidden++) {
            vb_session_options o = drafting;
            vb_file_options how = {.replace = 1, .without_hidden = !hidden};
            uint64_t sections[SESSION_SECTIONS], at = SESSION_HEAD;
            o.drafting.method = methods[m];
            vb_session *s = some_session(model, &o, 3, 3);
            OK(vb_session_save(s, file, &how, &err));
            vb_session_close(s);
            OK(vb_read_file(NULL, file, &bytes, &size, &err));
            copy = malloc(size);
            assert_non_null(copy);
            for (int i = 0; i < SESSION_SECTIONS; i++) {
                sections[i] = at;
                uint64_t n;
                memcpy(&n, bytes + SESSION_TABLE + 24 * i + 8, 8);
                at += n;
            }
            for (size_t i = 12; i < size; i++) {
                static const unsigned char values[] = {0, 1, 0x80, 0xff};
                if ((i >= SESSION_TABLE && i < sections[2]) || (i >= sections[4] && i < sections[5]))
                    continue;
                if (i > sections[5] + 72 && i % 8) /* somewhere there a depth's length is */
                    continue;
                for (size_t v = i % 2; v < COUNT(values) + 2; v += 2) { /* every other one of them */
                    memcpy(copy, bytes, size);
                    copy[i] = (char)(v < COUNT(values) ? values[v] : v == COUNT(values) ? bytes[i] + 1 : bytes[i] - 1);
                    int was = try_forged(copy, size, &o);
                    loaded += (size_t)was, refused += (size_t)!was;
                }
            }
            for (size_t n = sections[5]; n < size; n += 7) { /* the drafter's state ends too soon */
                memcpy(copy, bytes, n);
                int was = try_forged(copy, n, &o);
                loaded += (size_t)was, refused += (size_t)!was;
            }
            free(copy);
            vb_free(NULL, bytes);
        }
    print_message("%zu were loaded, %zu refused\n", loaded, refused);
    assert_true(loaded > 1000 && refused > 1000);
}

/* ---- another model, other options ---- */

static void check_other(const char *name, const vb_model_options *mo, const vb_session_options *o, const char *part)
{
    vb_model *m = NULL;
    vb_session *s = NULL;
    OK(vb_model_open(&m, name, mo, &err));
    REFUSED(vb_session_load(&s, m, o, file, NULL, &err), VB_BAD_ARGUMENT, part);
    assert_null(s);
    vb_model_close(m);
}

TEST(a_session_of_another_model_or_other_options_is_refused_by_what_differs)
{
    char changed[64];
    vb_session_options small = drafting, same = drafting;
    vb_session *s = NULL;
    save_some(model, &drafting, 9, 2);
    check_other("golden/tiny/v3", NULL, &drafting, " there and ");
    check_other(TINY, &(vb_model_options){.precision = "bf16"}, &drafting, "precision is f32 there and bf16 here");
    check_other(TINY, &(vb_model_options){.conventions = "gate=bf16"}, &drafting,
                "conventions is the defaults there and gate=bf16 here");
    small.context = 10;
    REFUSED(vb_session_load(&s, model, &small, file, NULL, &err), VB_BAD_ARGUMENT, "holds 11 tokens, the context 10");
    same.context = 11;
    OK(vb_session_load(&s, model, &same, file, NULL, &err));
    vb_session_close(s);
    copy_checkpoint(changed, TINY); /* one number of one vector; then of a matrix, where it may go unseen, but not all
                                       of it */
    break_tensor(changed, "model.norm.weight", 3, 1, 1);
    check_other(changed, NULL, &drafting, "weights is ");
    remove_dir(changed);
    copy_checkpoint(changed, TINY);
    break_tensor(changed, "lm_head.weight", 0, 128 * 64, 1);
    check_other(changed, NULL, &drafting, "weights is ");
    remove_dir(changed);
    copy_checkpoint(changed, TINY); /* the same files elsewhere are the same model */
    vb_model *m = open_model(changed);
    OK(vb_session_load(&s, m, &drafting, file, NULL, &err));
    vb_session_close(s);
    vb_model_close(m);
    remove_dir(changed);
}

/* convention yarn=max-len: angles depend on the context, so a cache does. */
TEST(a_context_that_changes_rope_is_refused)
{
    vb_model *m = NULL;
    vb_session *s = NULL;
    vb_session_options o = {.context = 40, .threads = 1};
    OK(vb_model_open(&m, "golden/tiny/v2", &(vb_model_options){.conventions = "yarn=max-len"}, &err));
    save_some(m, &o, 9, 2);
    o.context = 64; /* original_max_position_embeddings */
    OK(vb_session_load(&s, m, &o, file, NULL, &err));
    vb_session_close(s);
    o.context = 65;
    REFUSED(vb_session_load(&s, m, &o, file, NULL, &err), VB_BAD_ARGUMENT, "YaRN in force is no there and yes here");
    vb_model_close(m);
}

/* ---- how a file comes into being ---- */

static int count_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int stop_at_once(void *context, size_t done, size_t total)
{
    (void)context;
    return done <= total;
}

TEST(a_file_is_there_when_it_is_whole_and_replaces_nothing_unasked)
{
    vb_file_options stop = {.replace = 1, .progress = stop_at_once}, replace = {.replace = 1};
    vb_session *s = some_session(model, &drafting, 5, 1), *t = NULL;
    char *bytes, link[160];
    size_t size, empty;
    write_text(dir, "session", "mine");
    int files = count_files();
    REFUSED(vb_session_save(s, file, NULL, &err), VB_IO, "it exists");
    REFUSED(vb_session_save(s, file, &stop, &err), VB_STOPPED, "stopped");
    assert_int_equal(count_files(), files);
    OK(vb_read_file(NULL, file, &bytes, &size, &err));
    assert_string_equal(bytes, "mine");
    vb_free(NULL, bytes);
    OK(vb_session_save(s, file, &replace, &err));
    assert_int_equal(count_files(), files);
    REFUSED(vb_session_load(&t, model, &drafting, file, &stop, &err), VB_STOPPED, "stopped");
    assert_null(t);
    OK(vb_session_load(&t, model, &drafting, file, NULL, &err));
    vb_session_close(t);
    snprintf(link, sizeof link, "%s/link", dir);
    assert_int_equal(symlink("session", link), 0);
    REFUSED(vb_session_save(s, link, &replace, &err), VB_IO, "no file that could be replaced");
    REFUSED(vb_session_save(s, dir, &replace, &err), VB_IO, "no file that could be replaced");
    REFUSED(vb_session_save(s, "/nowhere/session", NULL, &err), VB_IO, "No such file");
    vb_session_close(s);
    OK(vb_session_open(&s, model, &drafting, &err));
    REFUSED(vb_session_save(s, other, &replace, &err), VB_BAD_ARGUMENT, "the session is empty");
    REFUSED(vb_prefill(s, &err), VB_BAD_ARGUMENT, "the prompt is empty");
    vb_tokens(s, &empty);
    assert_int_equal(empty, 0);
    vb_session_close(s);
}

TEST(a_file_tells_what_it_is)
{
    vb_session_info i;
    save_some(model, &drafting, 9, 2);
    OK(vb_session_info_read(&i, file, 1, NULL, &err));
    assert_int_equal(i.version, 1);
    assert_int_equal(i.tokens, 11);
    assert_int_equal(i.computed, 10);
    assert_int_equal(i.context, 24);
    assert_string_equal(i.checkpoint, TINY);
    assert_string_equal(i.architecture, "DeepseekV3ForCausalLM");
    assert_string_equal(i.precision, "f32");
    assert_string_equal(i.prefill, "contract");
    assert_string_equal(i.draft, "mtp-vanilla");
    assert_true(i.with_hidden && i.drafter_bytes > 0);
}

/* A file of version 1 that an earlier build has written goes on as it did then. */
TEST(the_golden_file_is_read_and_goes_on_as_it_did)
{
    static struct record plain, loaded;
    vb_session *s = NULL;
    size_t count;
    OK(vb_session_load(&s, model,
                       &(vb_session_options){.context = 40, .threads = 1, .drafting.method = "mtp-eagle",
                                             .drafting.tokens = 3},
                       GOLDEN, NULL, &err));
    const int32_t *tokens = vb_tokens(s, &count);
    assert_int_equal(count, 12);
    run_plain(model, NULL, tokens, count, 20, &plain);
    generate(s, 20, &loaded);
    check_same("the golden file", &plain, &loaded);
    vb_session_close(s);
}

/* ---- memory ---- */

TEST(every_allocation_that_fails_is_told_and_nothing_is_lost)
{
    struct counted c = {.fail = -1};
    vb_model_options mo = {.allocator = {counted_alloc, counted_free, &c}};
    vb_file_options replace = {.replace = 1};
    vb_session *s = some_session(model, &drafting, 9, 2), *t;
    vb_model *m = NULL;
    long save_requests, load_requests, alive;
    OK(vb_session_save(s, file, &replace, &err));
    vb_session_close(s);
    OK(vb_model_open(&m, TINY, &mo, &err));
    alive = c.alive;
    c.requests = 0;
    OK(vb_session_load(&t, m, &drafting, file, NULL, &err));
    load_requests = c.requests;
    c.requests = 0;
    OK(vb_session_save(t, other, &replace, &err));
    save_requests = c.requests;
    long with_session = c.alive;
    assert_true(save_requests >= 3 && load_requests > 30);
    for (long i = 0; i < save_requests; i++) {
        c.requests = 0, c.fail = i;
        REFUSED(vb_session_save(t, other, &replace, &err), VB_NO_MEMORY, "no memory");
        assert_int_equal(c.alive, with_session);
    }
    c.fail = -1;
    vb_session_close(t);
    assert_int_equal(c.alive, alive);
    for (long i = 0; i < load_requests; i++) {
        c.requests = 0, c.fail = i;
        REFUSED(vb_session_load(&t, m, &drafting, file, NULL, &err), VB_NO_MEMORY, "no memory");
        assert_int_equal(c.alive, alive);
    }
    c.fail = -1;
    vb_model_close(m);
    assert_int_equal(c.alive, 0);
}

/* The same tokens give the same file, whoever computed them: any thread count, instruction set, chunk. */
TEST(a_file_does_not_depend_on_who_wrote_it)
{
    char *first = NULL, *written;
    size_t size, written_size;
    for (size_t i = 0; isas_here()[i]; i++)
        for (int32_t threads = 1; threads < 4; threads++) {
            vb_session_options o = {.context = 60, .exact_threads = 1, .threads = threads, .isa = isas_here()[i],
                                    .prefill_chunk = 40 / threads, .drafting.method = "mtp-eagle",
                                    .drafting.tokens = 2};
            save_some(model, &o, 30, 6);
            OK(vb_read_file(NULL, file, &written, &written_size, &err));
            if (!first) {
                first = written, size = written_size;
                continue;
            }
            assert_int_equal(size, written_size);
            assert_memory_equal(first, written, size);
            vb_free(NULL, written);
        }
    vb_free(NULL, first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checksum_is_crc_64_xz),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_file_with_any_byte_changed_is_refused),
        cmocka_unit_test(what_is_wrong_with_a_file_is_said),
        cmocka_unit_test(a_file_whose_checksums_fit_does_no_harm),
        cmocka_unit_test(a_session_of_another_model_or_other_options_is_refused_by_what_differs),
        cmocka_unit_test(a_context_that_changes_rope_is_refused),
        cmocka_unit_test(a_file_is_there_when_it_is_whole_and_replaces_nothing_unasked),
        cmocka_unit_test(a_file_tells_what_it_is),
        cmocka_unit_test(a_file_does_not_depend_on_who_wrote_it),
        cmocka_unit_test(the_golden_file_is_read_and_goes_on_as_it_did),
        cmocka_unit_test(every_allocation_that_fails_is_told_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
