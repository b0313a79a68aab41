/* tests/support/engine_support.h -- for tests of the engine: models, prompts, recorded runs, comparisons of two runs,
 * and checkpoints changed for a test. Test programs run in the root of the repository. */
#ifndef VB_TEST_ENGINE_SUPPORT_H
#define VB_TEST_ENGINE_SUPPORT_H

#include "engine/session/session.h"
#include "tests/support/files.h"
#include "tests/support/random.h"
#include "tests/support/test.h"
#include "tests/support/turn.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The call must return 0; else its error message fails the test. The call may use the variable `err`. */
#define OK(call)                                           \
    do {                                                   \
        vb_error err = {0};                                \
        if (call)                                          \
            fail_msg("%s:%d: %s", __FILE__, __LINE__, err.message); \
    } while (0)

/* The call must return the error `wanted` with a message of one line that contains `part`. The call may use `err`. */
#define REFUSED(call, wanted, part)                                                                               \
    do {                                                                                                          \
        vb_error err = {0};                                                                                       \
        int code_ = (call);                                                                                       \
        if (code_ != (wanted) || err.code != code_ || !strstr(err.message, (part)))                               \
            fail_msg("%s:%d: code %d, \"%s\"; wanted %d and \"%s\"", __FILE__, __LINE__, code_, err.message, (wanted), \
                     (part));                                                                                     \
        if (strchr(err.message, '\n'))                                                                            \
            fail_msg("%s:%d: more than a sentence: %s", __FILE__, __LINE__, err.message);                         \
    } while (0)

/* A draft method that uses MTP modules: mtp-vanilla for even i, mtp-eagle for odd i. */
const char *mtp_method(size_t i);

/* The directory of the head of golden/tiny/v3 for this draft method: eagle, eagle3 or parallel-heads; NULL for other
 * methods. */
const char *head_of(const char *method);

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* open_model opens the model in `dir`, and open_tiny the model in golden/tiny/NAME. An error fails the test. */
vb_model *open_model(const char *dir);
vb_model *open_tiny(const char *name);
/* Opens the model in `dir` with a cache type. */
vb_model *open_cached(const char *dir, const char *cache_type);

/* Whether the bundled model golden/tale is there. If it is missing, prints once that tests are skipped. */
int have_tale(void);

/* Writes n tokens of the model's vocabulary; the same seed gives the same tokens. */
void random_tokens(const vb_model *m, uint64_t seed, int32_t *tokens, size_t n);

/* The names of the instruction sets that this machine has, best first; NULL ends the list. */
const char *const *isas_here(void);

/* ---- runs -------------------------------------------------------------------------------------------------------- */

#define MOST_TOLD 1400 /* tokens in a record */

/* The tokens of a run. For each token, the record has a hash of the logits from which it was chosen, its index in the
 * timeline, and its depth if it was a draft (as in vb_event). */
struct record {
    int32_t token[MOST_TOLD];
    uint64_t row[MOST_TOLD];
    size_t index[MOST_TOLD];
    int depth[MOST_TOLD];
    size_t n, V, stop_after; /* stop_after: the number of tokens after which the callback stops the run; 0: it never
                                does */
    vb_result result;
};

/* The callback that fills a record (the context). Returns 1 when the run has to stop. */
int record_event(void *context, const vb_event *e);

/* Empties the record, and returns options for a run of n tokens. The run fills the record. End tokens don't end the
 * run. */
vb_generate_options recording(struct record *r, const vb_session *s, size_t n);

/* Continues the session by n tokens and records them. End tokens don't end the run. */
void generate(vb_session *s, size_t n, struct record *r);

/* Returns a new session that holds the prompt. */
vb_session *open_session(const vb_model *m, const vb_session_options *o, const int32_t *prompt, size_t n);

/* Removes the first i tokens from a record. */
void drop(struct record *r, size_t i);

/* ---- sessions that share passes ---- */

/* Like vb_generate for each of these sessions (at most 64), but in one batch. The batch has the options of the first
 * session. Returns the first error. */
int generate_together(vb_session *const *sessions, size_t count, const vb_generate_options *options, vb_result *results,
                      vb_error *err);

/* Records n tokens after the prompt in a new session. */
void run(const vb_model *m, const vb_session_options *o, const int32_t *prompt, size_t count, size_t n,
         struct record *r);

/* Like run, but without drafts, on one thread and with the best instruction set. Tests compare other runs with this
 * run: the bits must be equal. */
void run_plain(const vb_model *m, const vb_sampling *sampling, const int32_t *prompt, size_t count, size_t n,
               struct record *r);

/* The first `n` tokens of a and b must be equal, and the logits from which they were chosen must be equal too. `what`
 * names the case in the message. check_same compares all tokens and logits, and also the fingerprints of the runs. */
void check_same_prefix(const char *what, const struct record *a, const struct record *b, size_t n);
void check_same(const char *what, const struct record *a, const struct record *b);

/* ---- drafters made by tests -------------------------------------------------------------------------------------- */

/* Functions for a drafter_type: no_rewind returns 0, so that no earlier rows are computed again, and close_nothing does
 * nothing. */
size_t no_rewind(const struct drafter *d);
void close_nothing(struct drafter *d);

/* Sets the drafter of a session that was opened without one. The test keeps ownership of the drafter. K: the largest
 * number of drafts. */
void give_drafter(vb_session *s, const struct drafter_type *type, void *drafter, int K);

/* ---- checkpoints changed for a test ------------------------------------------------------------------------------ */

/* Makes a new directory and copies the files of a checkpoint into it. */
void copy_checkpoint(char dir[64], const char *from);

/* Overwrites elements [first, first + n) of a tensor with NaN, or with infinity. Exactly one file in DIR must have the
 * tensor. */
void break_tensor(const char *dir, const char *name, size_t first, size_t n, int infinite);

#endif
