/* tests/cuda/checkcuda_emulator.c -- what the emulator of a device does with a kernel that crashes, or touches what it
 * must not (tests/cuda/watch.h): the program ends, although a test framework catches signals. If it went on, the next
 * kernel would wait for the end of the one that crashed. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/checked_device.h"

enum { NUMBERS = 600, BEFORE_PAGE = 300 };

/* Where `add` reads x, of which it adds 600 numbers to 600 others. */
enum place_of_x {
    BEHIND_MEMORY, /* only 300 numbers are there; an inaccessible page follows */
    NOT_ALIGNED,
    ON_THE_CPU,
    ONE_LATER,     /* x[i] is y[i + 1] */
    BLOCK_LATER    /* x[i] is y[i + 256], which another block changes */
};

static void add_numbers(enum place_of_x place)
{
    struct device *d = open_checked_device();
    static float y[2 * NUMBERS], x[BEFORE_PAGE];
    if (device_add(d, y, sizeof y) || device_add(d, x, sizeof x))
        _exit(1);
    char *there = device_at(d, x);
    float *sums = device_at(d, y);
    const float *places[] = {[BEHIND_MEMORY] = (const float *)(const void *)there,
                             [NOT_ALIGNED] = (const float *)(const void *)(there + 2), [ON_THE_CPU] = y,
                             [ONE_LATER] = sums + 1, [BLOCK_LATER] = sums + THREADS_add};
    device_run(d, add, divide_up(NUMBERS, THREADS_add), 1, 1, .y = sums, .x = places[place], .n = NUMBERS);
}

/* Runs add_numbers in a process whose signals a test framework would catch, as this one's. It must end by a signal,
 * after it has said both sentences. */
static void check_ends(enum place_of_x place, const char *what, const char *where)
{
    char said[512];
    int ends[2], status;
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (!child) {
        static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
        for (size_t i = 0; i < COUNT(caught); i++)
            signal(caught[i], _exit);
        dup2(ends[1], STDERR_FILENO);
        add_numbers(place);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; length < sizeof said - 1 && (n = read(ends[0], said + length, sizeof said - 1 - length)) > 0;)
        length += (size_t)n;
    said[length] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || !strstr(said, what) || !strstr(said, where))
        fail_msg("\"%s\" and \"%s\" are missing: status %x, \"%s\"", what, where, (unsigned)status, said);
}

TEST(a_kernel_that_crashes_ends_the_program_and_is_named)
{
    if (!is_emulated())
        skip();
    check_ends(NOT_ALIGNED, "", "kernel add, block 0, 0, 0, thread 0: ");
}

TEST(a_kernel_that_touches_other_memory_ends_the_program)
{
    if (!is_emulated())
        skip();
    check_ends(BEHIND_MEMORY, "they are no memory of the device", "kernel add, block 1, 0, 0, thread 44: ");
    check_ends(ON_THE_CPU, "they are no memory of the device", "kernel add, block 0, 0, 0, thread 0: ");
}

TEST(threads_that_do_not_wait_for_each_other_end_the_program)
{
    if (!is_emulated())
        skip();
    check_ends(ONE_LATER, "a thread writes 4 bytes",
               "threads of a block have read it, and no barrier is between\nkernel add, block 0, 0, 0, thread 1: ");
    check_ends(BLOCK_LATER, "a thread writes 4 bytes",
               "threads of several blocks have read it, and no barrier is between\nkernel add, block 1, 0, 0, thread "
               "0: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_kernel_that_crashes_ends_the_program_and_is_named),
                                       cmocka_unit_test(a_kernel_that_touches_other_memory_ends_the_program),
                                       cmocka_unit_test(threads_that_do_not_wait_for_each_other_end_the_program)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
