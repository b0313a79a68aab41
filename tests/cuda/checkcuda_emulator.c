/* tests/cuda/checkcuda_emulator.c -- what the emulator of a device does with a kernel that crashes: the program ends, although a test framework
 * catches signals. If it went on, the next kernel would wait for the end of the one that crashed. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda/checked_device.h"

/* Adds 600 numbers at x + x_shift bytes to 600 numbers. There are 300 numbers at x, which end at an inaccessible page. */
static void add_numbers(size_t x_shift)
{
    struct device *d = open_checked_device();
    float y[600], x[300];
    if (device_add(d, y, sizeof y) || device_add(d, x, sizeof x))
        _exit(1);
    const float *x_there = (const float *)(const void *)((const char *)device_at(d, x) + x_shift);
    device_run(d, add, 3, 1, 1, .y = device_at(d, y), .x = x_there, .n = 600);
}

/* Runs add_numbers in a process whose signals a test framework would catch, as this one's. Returns its status, and what it printed. */
static int crash(size_t x_shift, char *said, size_t size)
{
    int ends[2], status;
    size_t length = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (!child) {
        static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
        for (size_t i = 0; i < COUNT(caught); i++)
            signal(caught[i], _exit);
        dup2(ends[1], STDERR_FILENO);
        add_numbers(x_shift);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; length < size - 1 && (n = read(ends[0], said + length, size - 1 - length)) > 0;)
        length += (size_t)n;
    said[length] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

TEST(a_kernel_that_crashes_ends_the_program_and_is_named)
{
    char said[512];
    if (!is_emulated())
        skip();
    int status = crash(0, said, sizeof said);
    if (!WIFSIGNALED(status) || (WTERMSIG(status) != SIGSEGV && WTERMSIG(status) != SIGBUS) || !strstr(said, "kernel add, block 1, 0, 0, thread 44: "))
        fail_msg("a read behind the end of memory: status %x, \"%s\"", (unsigned)status, said);
    status = crash(2, said, sizeof said);
    if (!WIFSIGNALED(status) || (WTERMSIG(status) != SIGILL && WTERMSIG(status) != SIGTRAP) || !strstr(said, "kernel add, block 0, 0, 0, thread 0: "))
        fail_msg("a read from an address that is not aligned: status %x, \"%s\"", (unsigned)status, said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_kernel_that_crashes_ends_the_program_and_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
