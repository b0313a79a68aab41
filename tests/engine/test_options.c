/* tests/engine/test_options.c -- programs that were compiled with other versions of the public headers. Options may be
 * shorter or longer than the library's, and so may be the structs that it fills. Runs in the repository's root. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/options.h"
#include "tests/support/client.h"

#define MODEL "golden/tiny/v3-mtp3"
#define MORE 64 /* bytes of members that this library does not know */

static const int32_t prompt[] = {5, 6, 7};
static vb_model *model;
static vb_session *session;
static vb_batch *batch;
static vb_quantize *plan;
static vb_trainer *trainer;
static vb_ranks *ranks;

static void gather(void *context, void *buffer, const size_t *offset) { (void)context, (void)buffer, (void)offset; }

static vb_session *new_session(const vb_session_options *o)
{
    vb_session *s;
    ok(vb_session_open(&s, model, o, &err));
    ok(vb_append(s, prompt, COUNT(prompt), &err));
    return s;
}

static int open_all(void **unused)
{
    (void)unused;
    ok(vb_model_open(&model, MODEL, NULL, &err));
    session = new_session(&(vb_session_options){.context = 40, .drafting.method = "mtp-eagle"});
    ok(vb_batch_open(&batch, model, NULL, &err));
    ok(vb_quantize_open(&plan, model, MODEL, &(vb_quantize_options){.type = "f32"}, &err));
    ok(vb_trainer_open(&trainer, model, NULL, &err));
    ok(vb_ranks_open(&ranks, &(vb_ranks_options){.count = 1, .all_gather = gather, .host = "here"}, &err));
    return 0;
}

static int close_all(void **unused)
{
    (void)unused;
    vb_ranks_close(ranks);
    vb_trainer_close(trainer);
    vb_quantize_close(plan);
    vb_batch_close(batch);
    vb_session_close(session);
    vb_model_close(model);
    return 0;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static int with_model(const void *options)
{
    vb_model *m;
    int code = vb_model_open(&m, MODEL, options, &err);
    vb_model_close(m);
    return code;
}

static int with_offload(const void *options)
{
    return with_model(&(vb_model_options){.offload = options});
}

static int with_session(const void *options)
{
    vb_session *s;
    int code = vb_session_open(&s, model, options, &err);
    vb_session_close(s);
    return code;
}

static int with_generate(const void *options)
{
    vb_result result;
    vb_session *s = new_session(NULL);
    int code = vb_generate(s, options, &result, &err);
    vb_session_close(s);
    return code;
}

static int with_batch(const void *options)
{
    vb_batch *b;
    int code = vb_batch_open(&b, model, options, &err);
    vb_batch_close(b);
    return code;
}

static int with_session_of_batch(const void *options)
{
    return with_batch(&(vb_batch_options){.session = options});
}

static int with_request(const void *options)
{
    int64_t id;
    int code = vb_batch_add(batch, options, &id, &err);
    if (!code)
        vb_batch_cancel(batch, id);
    return code;
}

static int with_generate_of_request(const void *options)
{
    return with_request(&(vb_request){.tokens = prompt, .count = COUNT(prompt), .options = options});
}

static int with_file(const void *options)
{
    vb_session_info info;
    return vb_session_info_read(&info, "golden/session/tiny.session", 0, options, &err);
}

static int with_quantize(const void *options)
{
    vb_quantize *q;
    int code = vb_quantize_open(&q, model, MODEL, options, &err);
    vb_quantize_close(q);
    return code;
}

static int with_ranks(const void *options)
{
    vb_ranks *r;
    int code = vb_ranks_open(&r, options, &err);
    vb_ranks_close(r);
    return code;
}

static int with_trainer(const void *options)
{
    vb_trainer *t;
    int code = vb_trainer_open(&t, model, options, &err);
    vb_trainer_close(t);
    return code;
}

/* A function that takes options, valid options, their size, and their size in version 0.1. */
struct taker {
    const char *name;
    int (*call)(const void *options);
    const void *valid;
    size_t size, first;
};
#define TAKER(function, type, ...) \
    {#function ", " #type, function, &(const type){__VA_ARGS__}, sizeof(type), FIRST_SIZE_OF_##type}

static const struct taker takers[] = {
    TAKER(with_model, vb_model_options, .threads = 1),
    TAKER(with_offload, vb_offload, .device = "cpu"),
    TAKER(with_session, vb_session_options, .context = 40),
    TAKER(with_session_of_batch, vb_session_options, .context = 40),
    TAKER(with_generate, vb_generate_options, .max_tokens = 1),
    TAKER(with_generate_of_request, vb_generate_options, .max_tokens = 1),
    TAKER(with_batch, vb_batch_options, .max_sequences = 2),
    TAKER(with_request, vb_request, .tokens = prompt, .count = COUNT(prompt)),
    TAKER(with_file, vb_file_options, .replace = 1),
    TAKER(with_quantize, vb_quantize_options, .type = "q8_0"),
    TAKER(with_ranks, vb_ranks_options, .count = 1, .all_gather = gather),
    TAKER(with_trainer, vb_trainer_options, .depths = 1),
};

/* Calls with options whose member `size` is this. `last` is the byte behind all members, and behind MORE bytes of 0. */
static int call(const struct taker *t, size_t size, int last)
{
    char *options = calloc(1, t->size + MORE);
    memcpy(options, t->valid, t->size);
    memcpy(options, &size, sizeof size);
    options[t->size + MORE - 1] = (char)last;
    err = (vb_error){0};
    int code = t->call(options);
    free(options);
    return code;
}

static void wants(const struct taker *t, size_t size, int last, int code, const char *message)
{
    int got = call(t, size, last);
    if (got != code || (code && (err.code != code || !strstr(err.message, message))))
        fail_msg("%s, size %zu: code %d, \"%s\"; wanted %d and \"%s\"", t->name, size, got, err.message, code, message);
}

TEST(options_may_have_members_that_the_library_does_not_know_if_they_are_0)
{
    for (size_t i = 0; i < COUNT(takers); i++) {
        const struct taker *t = &takers[i];
        wants(t, 0, 1, VB_OK, "");
        wants(t, t->size, 1, VB_OK, "");
        wants(t, t->size + MORE, 0, VB_OK, "");
        wants(t, t->size + MORE, 1, VB_BAD_ARGUMENT, "a member after them is not 0");
    }
}

TEST(options_of_a_size_that_no_version_has_are_refused)
{
    for (size_t i = 0; i < COUNT(takers); i++) {
        wants(&takers[i], 1, 0, VB_BAD_ARGUMENT, "size is 1, wanted 0 or");
        wants(&takers[i], takers[i].first - 1, 0, VB_BAD_ARGUMENT, "wanted 0 or the size of the struct");
        wants(&takers[i], SIZE_MAX / 3, 0, VB_BAD_ARGUMENT, "wanted 0 or the size of the struct");
    }
}

/* Else a later version could put a member there, which programs of this version have not set. */
TEST(no_options_end_with_padding)
{
    for (size_t i = 0; i < COUNT(takers); i++)
        if (takers[i].first % sizeof(uint64_t) || takers[i].size % sizeof(uint64_t) || takers[i].first > takers[i].size)
            fail_msg("%s: %zu bytes, in version 0.1 %zu", takers[i].name, takers[i].size, takers[i].first);
}

TEST(an_older_program_has_the_defaults_of_newer_members)
{
    struct { size_t size; int32_t old, newer; } to = {7, 7, 7};
    struct { size_t size; int32_t old, behind; } from = {.size = 12, .old = 3, .behind = 9};
    ok(options_copy(&to, sizeof to, 12, &from, "options", &err));
    assert_true(to.size == sizeof to && to.old == 3 && to.newer == 0);
    from.size = 0;
    to.newer = 7;
    ok(options_copy(&to, sizeof to, 12, &from, "options", &err));
    assert_true(to.size == sizeof to && to.old == 3 && to.newer == 0);
    from.size = sizeof from;
    ok(options_copy(&to, sizeof to, 12, &from, "options", &err));
    assert_int_equal(to.newer, 9);
    ok(options_copy(&to, sizeof to, 12, NULL, "options", &err));
    assert_true(to.size == sizeof to && to.old == 0 && to.newer == 0);
}

TEST(members_named_reserved_must_be_0)
{
    vb_session_options o = {.sampling.reserved[7] = 1};
    vb_request q = {.tokens = prompt, .count = COUNT(prompt), .sampling = &o.sampling};
    vb_drafting drafting = {.method = "ngram", .reserved = {1}};
    vb_routes routes = {.reserved = {0, 1}};
    vb_tensor tensor = {.name = "x", .dtype = "F32", .reserved = {1}};
    vb_train_sequence sequence = {.tokens = prompt, .count = COUNT(prompt), .reserved = {1}};
    vb_train_losses losses;
    float number;
    refused(with_session(&o), VB_BAD_ARGUMENT, "vb_sampling.reserved is not 0");
    refused(with_session_of_batch(&o), VB_BAD_ARGUMENT, "vb_sampling.reserved is not 0");
    refused(with_request(&q), VB_BAD_ARGUMENT, "vb_sampling.reserved is not 0");
    o = (vb_session_options){.drafting = drafting};
    q.sampling = NULL;
    q.drafting = &drafting;
    refused(with_session(&o), VB_BAD_ARGUMENT, "vb_drafting.reserved is not 0");
    refused(with_request(&q), VB_BAD_ARGUMENT, "vb_drafting.reserved is not 0");
    refused(vb_draft_check(model, &drafting, &err), VB_BAD_ARGUMENT, "vb_drafting.reserved is not 0");
    assert_int_equal(vb_draft_tokens(model, &drafting), 0);
    o = (vb_session_options){.routes = routes};
    q.drafting = NULL;
    q.routes = &routes;
    refused(with_session(&o), VB_BAD_ARGUMENT, "vb_routes.reserved is not 0");
    refused(with_request(&q), VB_BAD_ARGUMENT, "vb_routes.reserved is not 0");
    refused(vb_tensor_f32(&tensor, 0, 1, &number, &err), VB_BAD_ARGUMENT, "vb_tensor.reserved is not 0");
    refused(vb_tensors_write(-1, "x", &tensor, 1, NULL, NULL, &err), VB_BAD_ARGUMENT, "vb_tensor.reserved is not 0");
    refused(vb_trainer_losses(trainer, &sequence, 1, &losses, &err), VB_BAD_ARGUMENT,
            "vb_train_sequence.reserved is not 0");
}

/* ---- structs that the library fills ------------------------------------------------------------------------------ */

static void fill_placement(void *out, size_t size) { vb_model_placement_sized(model, out, size); }
static void fill_thread_use(void *out, size_t size) { vb_session_threads_sized(session, out, size); }
static void fill_draft_method(void *out, size_t size) { assert_int_equal(vb_draft_methods_sized(1, out, size), 1); }
static void fill_found_method(void *out, size_t size) { ok(vb_draft_method_find_sized(out, size, "ngram", &err)); }
static void fill_model_facts(void *out, size_t size) { vb_model_look_sized(model, out, size); }
static void fill_convention(void *out, size_t size) { assert_int_equal(vb_convention_at_sized(0, out, size), 1); }
static void fill_system(void *out, size_t size) { assert_int_equal(vb_system_at_sized(0, out, size), 1); }
static void fill_batch_state(void *out, size_t size) { vb_batch_look_sized(batch, out, size); }
static void fill_device_facts(void *out, size_t size) { vb_device_look_sized(model, out, size); }
static void fill_rank_facts(void *out, size_t size) { vb_ranks_facts_sized(ranks, out, size); }

static void fill_quantized_tensor(void *out, size_t size)
{
    assert_int_equal(vb_quantize_tensor_sized(plan, 0, out, size), 1);
}

static void fill_train_tensor(void *out, size_t size)
{
    assert_int_equal(vb_trainer_tensor_sized(trainer, 0, out, size), 1);
}

static void fill_losses(void *out, size_t size)
{
    vb_train_sequence sequence = {.tokens = prompt, .count = COUNT(prompt)};
    ok(vb_trainer_losses_sized(trainer, &sequence, 1, out, size, &err));
}

static void fill_gradients(void *out, size_t size)
{
    vb_train_sequence sequence = {.tokens = prompt, .count = COUNT(prompt)};
    ok(vb_trainer_gradients_sized(trainer, &sequence, 1, out, size, &err));
}

static void fill_session_info(void *out, size_t size)
{
    ok(vb_session_info_read_sized(out, size, "golden/session/tiny.session", 0, NULL, &err));
}

static void fill_result(void *out, size_t size)
{
    vb_session *s = new_session(NULL);
    ok(vb_generate_sized(s, &(vb_generate_options){.max_tokens = 2, .ignore_eos = 1}, out, size, &err));
    vb_session_close(s);
}

/* The first `same` bytes are the same in each call; later members may be times. */
static const struct filler {
    const char *name;
    void (*fill)(void *out, size_t size);
    size_t size, same;
} fillers[] = {
    {"vb_placement", fill_placement, sizeof(vb_placement), sizeof(vb_placement)},
    {"vb_thread_use", fill_thread_use, sizeof(vb_thread_use), sizeof(vb_thread_use)},
    {"vb_draft_method", fill_draft_method, sizeof(vb_draft_method), sizeof(vb_draft_method)},
    {"vb_draft_method, found", fill_found_method, sizeof(vb_draft_method), sizeof(vb_draft_method)},
    {"vb_model_facts", fill_model_facts, sizeof(vb_model_facts), sizeof(vb_model_facts)},
    {"vb_convention", fill_convention, sizeof(vb_convention), sizeof(vb_convention)},
    {"vb_system", fill_system, sizeof(vb_system), sizeof(vb_system)},
    {"vb_batch_state", fill_batch_state, sizeof(vb_batch_state), sizeof(vb_batch_state)},
    {"vb_device_facts", fill_device_facts, sizeof(vb_device_facts), sizeof(vb_device_facts)},
    {"vb_rank_facts", fill_rank_facts, sizeof(vb_rank_facts), offsetof(vb_rank_facts, resident_bytes)},
    {"vb_quantized_tensor", fill_quantized_tensor, sizeof(vb_quantized_tensor), sizeof(vb_quantized_tensor)},
    {"vb_train_tensor", fill_train_tensor, sizeof(vb_train_tensor), sizeof(vb_train_tensor)},
    {"vb_train_losses", fill_losses, sizeof(vb_train_losses), sizeof(vb_train_losses)},
    {"vb_train_losses, gradients", fill_gradients, sizeof(vb_train_losses), sizeof(vb_train_losses)},
    {"vb_session_info", fill_session_info, sizeof(vb_session_info), sizeof(vb_session_info)},
    {"vb_result", fill_result, sizeof(vb_result), offsetof(vb_result, prefill_seconds)},
};

TEST(a_struct_that_the_library_fills_may_be_shorter_or_longer)
{
    for (size_t i = 0; i < COUNT(fillers); i++) {
        const struct filler *f = &fillers[i];
        unsigned char *whole = calloc(1, f->size), *other = malloc(f->size + MORE), any = 0;
        f->fill(whole, f->size);
        for (size_t size = f->size / 2; size <= f->size + MORE; size += f->size + MORE - f->size / 2) {
            size_t same = size < f->same ? size : f->same;
            memset(other, 0xaa, f->size + MORE);
            f->fill(other, size);
            if (memcmp(other, whole, same))
                fail_msg("%s of %zu bytes has other contents", f->name, size);
            for (size_t k = size < f->size ? size : f->size; k < f->size + MORE; k++)
                if (other[k] != (k < size ? 0 : 0xaa))
                    fail_msg("%s of %zu bytes: byte %zu is %#x", f->name, size, k, other[k]);
        }
        for (size_t k = 0; k < f->size; k++)
            any |= whole[k];
        if (!any && f->fill != fill_placement && f->fill != fill_device_facts) /* no NUMA nodes, no GPU */
            fail_msg("%s is not filled", f->name);
        free(whole);
        free(other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_may_have_members_that_the_library_does_not_know_if_they_are_0),
        cmocka_unit_test(options_of_a_size_that_no_version_has_are_refused),
        cmocka_unit_test(no_options_end_with_padding),
        cmocka_unit_test(an_older_program_has_the_defaults_of_newer_members),
        cmocka_unit_test(members_named_reserved_must_be_0),
        cmocka_unit_test(a_struct_that_the_library_fills_may_be_shorter_or_longer),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
