/* tests/support/dumps.h -- for tests of `verbatim diff`: two dumps in the directory of the running test, functions that
 * change single numbers of a dump, and checks of what diff reports. */
#ifndef VB_TEST_DUMPS_H
#define VB_TEST_DUMPS_H

#include "tests/support/golden.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny.h"
#include "tests/support/turn.h"

#define TINY "golden/tiny/"
#define TOKENS "5,6,7,70,9,33,17,2,88,41"

extern const char *const names[TINY_COUNT]; /* the checkpoints in golden/tiny */
extern char a[96], b[96];          /* the paths of two dumps in the test's directory; IN_DIR sets them */

int make_dumps_dir(void **unused);

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, make_dumps_dir, remove_test_dir)

/* ---- runs -------------------------------------------------------------------------------------------------------- */

#define DUMP(to, ...)                                                                \
    do {                                                                             \
        struct said dumped = RUN("dump", __VA_ARGS__, "--threads", "1", "--force", "-o", (to)); \
        expect_code(&dumped, 0);                                                     \
        forget(&dumped);                                                             \
    } while (0)

/* Runs `verbatim diff`, which must end with exit code `code`, and returns its JSON output. */
#define DIFF(code, ...) json_of_code(code, (const char *const[]){verbatim, "diff", __VA_ARGS__, "--json", NULL})

/* Returns what diff reports about the tap of this name. The test fails if there is no such tap. */
json_t *tap(const json_t *j, const char *name);

/* The verdict in j must be `verdict`. `what` names the case in the message. */
void expect_verdict(const char *what, const json_t *j, const char *verdict);

#define EXPECT(code, verdict, ...)                         \
    do {                                                   \
        json_t *told = DIFF(code, __VA_ARGS__);            \
        expect_verdict(#__VA_ARGS__, told, verdict);       \
        json_decref(told);                                 \
    } while (0)

/* The verdict must be "structural", and `name` must be the first structural tap. Releases j. */
void expect_structural_at(json_t *j, const char *name);

/* The verdict must be "rounding", and some tap must differ by more than 1 % of its bound, because a bound that is much
 * wider than the differences would show nothing. Prints the largest ratio of a difference to its bound. */
void expect_rounding(const json_t *j, const char *what);

/* ---- changing a dump --------------------------------------------------------------------------------------------- */

struct edited {
    struct golden g;
    const char *path;
};

/* Reads a dump; save() writes it back and closes it. */
struct edited edit(const char *path);
void save(struct edited *e);

/* Returns the numbers of an F32 tensor, which the test may change in place. *count: how many numbers there are. */
float *floats(struct edited *e, const char *name, size_t *count);

/* Returns how many numbers one row of a tensor has: the product of all extents except the first. */
size_t width_of(const struct edited *e, const char *name);

/* Writes the file `path` in the test's directory. */
void write_to(const char *path, const void *bytes, size_t size);

/* Decides about one tensor of a dump: returns 0 to leave it out; else it may change the name (a buffer of 256 bytes)
 * and set *dtype. The numbers of an F32 tensor are converted to F16 or BF16; any other change of dtype is invalid. */
typedef int (*change)(char name[256], const char **dtype);

/* Writes a dump again; `how` decides about each tensor. */
void rewrite(const char *path, change how);

/* Copies a dump, and also its manifest if `with_manifest` is nonzero. */
void copy_dump(const char *from, const char *to, int with_manifest);

/* Deletes the manifest of a dump. */
void forget_manifest(const char *path);

#endif
