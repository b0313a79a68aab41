/* tests/engine/test_copy_cache.c -- files that keep copies of weights: written once, mapped later, and refused or
 * written again when they are damaged or do not belong to the model. Runs in the repository's root. */
#include "tests/support/engine_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/hash64.h"
#include "engine/model/model_internal.h"
#include "tests/support/files.h"
#include "tests/support/temp_dir.h"

#define EVERY_TYPE "golden/gguf/quantized.gguf"
#define HEADER 4096

/* Opens the model with this directory of copies. */
static vb_model *open_with(const char *path, const char *precision, const char *cache)
{
    vb_model *m = NULL;
    OK(vb_model_open(&m, path, &(vb_model_options){.precision = precision, .repack_cache = cache}, &err));
    return m;
}

/* Opens the model, and expects this result and note (NULL: none). The copies must be those of a model without a
 * cache. */
static void expect(const char *path, const char *precision, int what, const char *says)
{
    vb_model *m = open_with(path, precision, dir), *plain = open_with(path, precision, NULL);
    vb_model_facts facts;
    vb_model_look(m, &facts);
    if (says ? !strstr(facts.repack_cache_note, says) : facts.repack_cache_note[0])
        fail_msg("the note is \"%s\", wanted %s", facts.repack_cache_note, says ? says : "none");
    assert_int_equal(facts.repack_cache, what);
    assert_int_equal(m->copied_bytes, plain->copied_bytes);
    assert_memory_equal(m->copied, plain->copied, plain->copied_bytes);
    for (size_t i = 0; i < m->num_copies; i++)
        assert_ptr_equal(m->copies[i].to->data, (const char *)m->copied + m->copies[i].at);
    vb_model_close(plain);
    vb_model_close(m);
}

/* Returns the number of files in `dir`, and the path of one of them. */
static int files(char path[400])
{
    DIR *d = opendir(dir);
    int count = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.') {
            snprintf(path, 400, "%s/%s", dir, e->d_name);
            count++;
        }
    closedir(d);
    return count;
}

TEST(copies_are_written_once_and_mapped_afterwards)
{
    char path[400];
    struct stat before, after;
    expect(EVERY_TYPE, NULL, 2, NULL);
    assert_int_equal(files(path), 1);
    assert_int_equal(stat(path, &before), 0);
    expect(EVERY_TYPE, NULL, 1, NULL);
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
    expect("golden/tiny/v3-mtp3", "q8", 2, NULL); /* other models and precisions have files of their own */
    expect("golden/tiny/v3-mtp3", "q4", 2, NULL);
    expect("golden/tiny/v3-mtp3", "q8", 1, NULL);
    assert_int_equal(files(path), 3);
    expect("golden/tiny/v3-mtp3", NULL, 0, NULL); /* nothing is copied */
    assert_int_equal(files(path), 3);
}

/* When this fails, old files would be used with their old bytes: increase LAYOUT in engine/model/copy_cache.c, and then
 * change the number here. */
TEST(the_bytes_of_copies_belong_to_the_layout_number)
{
    vb_model *m = open_with(EVERY_TYPE, "q8", NULL);
    assert_int_equal(hash64(1, m->copied, m->copied_bytes), 0x48a4ea9574674270);
    vb_model_close(m);
}

static void flip(const char *path, off_t at)
{
    char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

TEST(damaged_files_are_written_again)
{
    char path[400];
    struct stat st;
    expect(EVERY_TYPE, NULL, 2, NULL);
    assert_int_equal(files(path), 1);
    assert_int_equal(stat(path, &st), 0);
    for (off_t at = 16; at < 56; at += 3) {
        flip(path, at);
        expect(EVERY_TYPE, NULL, 2, ": damaged, it is written again");
    }
    const off_t sizes[] = {st.st_size - 1, HEADER, HEADER - 1, 30, 16, st.st_size + 1};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        assert_int_equal(truncate(path, sizes[i]), 0);
        expect(EVERY_TYPE, NULL, 2, ": damaged, it is written again");
    }
    expect(EVERY_TYPE, NULL, 1, NULL);
    assert_int_equal(files(path), 1);
}

TEST(what_is_no_file_of_copies_is_left_alone)
{
    char path[400], link[420];
    expect(EVERY_TYPE, NULL, 2, NULL);
    assert_int_equal(files(path), 1);
    flip(path, 3);
    expect(EVERY_TYPE, NULL, 0, ": no file of copied weights, it is left alone");
    flip(path, 3);
    expect(EVERY_TYPE, NULL, 1, NULL);
    snprintf(link, sizeof link, "%s.moved", path);
    assert_int_equal(rename(path, link), 0);
    assert_int_equal(symlink(link, path), 0);
    expect(EVERY_TYPE, NULL, 0, ": no file of copied weights, it is left alone");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(truncate(link, 5), 0);
    assert_int_equal(rename(link, path), 0);
    expect(EVERY_TYPE, NULL, 0, ": no file of copied weights, it is left alone");
    assert_int_equal(files(path), 1);
}

TEST(a_model_whose_file_changed_gets_new_copies)
{
    char from[64], path[96], kept[400], *bytes;
    size_t size;
    make_dir(from);
    snprintf(path, sizeof path, "%s/model.gguf", from);
    OK(vb_read_file(NULL, EVERY_TYPE, &bytes, &size, &err));
    write_file(from, "model.gguf", bytes, size);
    expect(path, NULL, 2, NULL);
    expect(path, NULL, 1, NULL);
    bytes[size / 2] ^= 1; /* one byte of weights: the checksum reads only some of them */
    write_file(from, "model.gguf", bytes, size);
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000, .tv_nsec = 1}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    expect(path, NULL, 2, ": made from other files, it is written again");
    expect(path, NULL, 1, NULL);
    assert_int_equal(files(kept), 1);
    vb_free(NULL, bytes);
    remove_dir(from);
}

TEST(a_directory_that_cannot_be_written_is_told)
{
    char path[400];
    if (!geteuid()) { /* root may write everywhere */
        assert_int_equal(rmdir(dir), 0);
        expect(EVERY_TYPE, NULL, 0, "No such file or directory, it is not kept");
        assert_int_equal(mkdir(dir, 0700), 0);
        return;
    }
    assert_int_equal(chmod(dir, 0500), 0);
    expect(EVERY_TYPE, NULL, 0, "Permission denied, it is not kept");
    assert_int_equal(chmod(dir, 0700), 0);
    assert_int_equal(files(path), 0);
}

TEST(a_directory_that_is_a_file_is_told)
{
    assert_int_equal(rmdir(dir), 0);
    FILE *f = fopen(dir, "w");
    assert_non_null(f);
    fclose(f);
    expect(EVERY_TYPE, NULL, 0, ": Not a directory");
    assert_int_equal(unlink(dir), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
}

TEST(processes_may_write_the_same_file_at_once)
{
    char path[400];
    pid_t child[6];
    for (size_t i = 0; i < COUNT(child); i++)
        if (!(child[i] = fork())) {
            vb_model *m = NULL;
            vb_model_options o = {.precision = "q8", .repack_cache = dir, .threads = 1};
            vb_model_facts facts = {.repack_cache = 0};
            vb_error err;
            if (!vb_model_open(&m, "golden/tiny/v3-mtp3", &o, &err))
                vb_model_look(m, &facts);
            _exit(facts.repack_cache_note[0] || !facts.repack_cache);
        }
    for (size_t i = 0; i < COUNT(child); i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
    }
    assert_int_equal(files(path), 1);
    expect("golden/tiny/v3-mtp3", "q8", 1, NULL);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, make_test_dir, remove_test_dir)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIR(copies_are_written_once_and_mapped_afterwards),
        IN_DIR(the_bytes_of_copies_belong_to_the_layout_number),
        IN_DIR(damaged_files_are_written_again),
        IN_DIR(what_is_no_file_of_copies_is_left_alone),
        IN_DIR(a_model_whose_file_changed_gets_new_copies),
        IN_DIR(a_directory_that_cannot_be_written_is_told),
        IN_DIR(a_directory_that_is_a_file_is_told),
        IN_DIR(processes_may_write_the_same_file_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
