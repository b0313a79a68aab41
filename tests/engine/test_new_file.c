/* tests/engine/test_new_file.c -- a file of somebody else that appears while ours is written is never replaced,
 * whatever kinds of rename the file system has. The linker wraps renameat2 and link. */
#include "tests/support/engine_support.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/new_file.h"
#include "tests/support/files.h"
#include "tests/support/temp_dir.h"

enum { ALL_RENAMES, NO_FLAGS, NO_FLAGS_AND_NO_LINKS, FILE_SYSTEMS };
static int file_system;

int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __real_link(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    if (file_system != ALL_RENAMES && flags)
        return errno = EINVAL, -1;
    return __real_renameat2(from_dir, from, to_dir, to, flags);
}

int __wrap_link(const char *from, const char *to)
{
    return file_system == NO_FLAGS_AND_NO_LINKS ? (errno = EPERM, -1) : __real_link(from, to);
}

static const char theirs[] = "somebody else's", ours[] = "ours";

static void write_ours(const struct new_file *f) { assert_int_equal(write(f->fd, ours, sizeof ours), sizeof ours); }

/* What is at `path` must be these bytes, and the directory must have no other file. */
static void expect_alone(const char *path, const char *text, size_t size)
{
    char bytes[64];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, sizeof bytes, file), size);
    fclose(file);
    assert_memory_equal(bytes, text, size);
    unlink(path);
    assert_int_equal(rmdir(dir), 0); /* it is empty */
    assert_int_equal(mkdir(dir, 0700), 0);
}

TEST(a_file_that_appears_meanwhile_is_kept)
{
    for (file_system = 0; file_system < FILE_SYSTEMS; file_system++) {
        struct new_file f;
        char path[96];
        snprintf(path, sizeof path, "%s/file", dir);
        OK(new_file_begin(&f, path, 0, NULL, &err));
        write_ours(&f);
        write_file(dir, "file", theirs, sizeof theirs);
        REFUSED(new_file_end(&f, VB_OK, &err), VB_IO, "file");
        expect_alone(path, theirs, sizeof theirs);
    }
}

TEST(a_new_file_gets_its_name_and_replaces_only_when_asked)
{
    for (file_system = 0; file_system < FILE_SYSTEMS; file_system++)
        for (int replace = 0; replace < 2; replace++)
            for (int named_early = 0; named_early < 2; named_early++) {
                struct new_file f;
                char path[96];
                snprintf(path, sizeof path, "%s/file", dir);
                if (replace)
                    write_file(dir, "file", theirs, sizeof theirs);
                OK(new_file_begin(&f, path, replace, NULL, &err));
                write_ours(&f);
                if (named_early)
                    OK(new_file_name(&f, 1, &err));
                OK(new_file_end(&f, VB_OK, &err));
                expect_alone(path, ours, sizeof ours);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_that_appears_meanwhile_is_kept, make_test_dir, remove_test_dir),
        cmocka_unit_test_setup_teardown(a_new_file_gets_its_name_and_replaces_only_when_asked, make_test_dir,
                                        remove_test_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
