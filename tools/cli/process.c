/* tools/cli/process.c -- prepares the process before the command begins, and ends it when it cannot continue. */
#include "tools/cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int json_wanted; /* nonzero: errors are printed as JSON objects on stdout */
static int is_rank;
static const char *rank_name = "";

void cli_name_rank(const char *name)
{
    is_rank = 1;
    rank_name = name ? name : "";
}

/* The terminals of a launcher do not control its processes. */
int cli_terminal(int fd) { return isatty(fd) && (!is_rank || tcgetpgrp(fd) >= 0); }

/* Prints an error message without memory of its own. One system call writes it, so that the messages of several ranks
 * do not mix. `file` is the file that the message is about, or "". */
static void say(const char *file, const char *message)
{
    const char *parts[] = {"verbatim: ", rank_name, file, message, "\n"};
    struct iovec pieces[5];
    for (int i = 0; i < 5; i++)
        pieces[i] = (struct iovec){(char *)parts[i], strlen(parts[i])};
    (void)!writev(STDERR_FILENO, pieces, 5);
}

void *cli_must(void *block)
{
    if (block)
        return block;
    cli_remove_parts();
    static const char as_json[] = "{\"error\": \"no memory\"}\n";
    if (json_wanted)
        (void)!write(STDOUT_FILENO, as_json, sizeof as_json - 1);
    else
        say("", "no memory");
    _exit(EXIT_OTHER);
}

/* If memory is missing, functions such as json_pack return NULL, as they do for other errors. So the process ends here
 * instead. */
static void *json_memory(size_t size) { return cli_must(malloc(size ? size : 1)); }

/* A new file gets the lowest free descriptor. If descriptor 2 were closed, that file would receive the error messages.
 * So descriptors 0 to 2 are connected to /dev/null if they are closed. They are opened in the wrong direction, so that
 * reading 0 and writing 1 and 2 fail, as on a closed descriptor. */
static void open_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
            _exit(EXIT_OTHER);
}

/* ---- a mapped file that is cut short ----------------------------------------------------------------------------- */

/* Reads a hexadecimal number, and moves *text behind it. */
static uintptr_t hexadecimal(const char **text)
{
    uintptr_t n = 0;
    for (;; ++*text) {
        char ch = **text;
        int digit = ch >= '0' && ch <= '9' ? ch - '0' : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
        if (digit < 0)
            return n;
        n = n * 16 + (uintptr_t)digit;
    }
}

/* Returns the path in a line of /proc/self/maps if the range in this line contains the address, else NULL. Example of a
 * line: "7f00-7f10 r--p 00000000 08:01 123   /a/path". */
static const char *path_if_there(const char *line, uintptr_t address)
{
    uintptr_t begin = hexadecimal(&line);
    if (*line++ != '-' || address < begin || address >= hexadecimal(&line))
        return NULL;
    return strchr(line, '/');
}

/* Finds the file that is mapped at an address. Uses system calls only, because it runs in a signal handler. */
static const char *mapped_there(uintptr_t address, char line[4096])
{
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    const char *path = NULL;
    size_t used = 0;
    for (char ch; fd >= 0 && !path && read(fd, &ch, 1) == 1;) {
        if (ch != '\n') {
            used += used < 4095 ? (line[used] = ch, 1) : 0;
            continue;
        }
        line[used] = '\0';
        used = 0;
        path = path_if_there(line, address);
    }
    if (fd >= 0)
        close(fd);
    return path;
}

static void bus_error(int number, siginfo_t *info, void *unused)
{
    static char line[4096];
    const char *path = info->si_code == BUS_ADRERR ? mapped_there((uintptr_t)info->si_addr, line) : NULL;
    (void)unused;
    if (!path) { /* not an error of a mapped file: after the return, the default action follows */
        signal(number, SIG_DFL);
        return;
    }
    cli_remove_parts();
    say(path, ": it was cut short, or could not be read, while it was in use");
    _exit(EXIT_OTHER);
}

/* ---- the beginning ----------------------------------------------------------------------------------------------- */

void cli_begin(void)
{
    open_descriptors();
    struct sigaction action = {.sa_sigaction = bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* writing to a closed pipe is then an ordinary error */
    json_set_alloc_funcs(json_memory, free);
}

void cli_say_json(void) { json_wanted = 1; }
