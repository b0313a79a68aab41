/* tools/main.c -- the `verbatim` command in one process; tools/mpi/mpi.c starts it in several. */
#include "tools/cli/cli.h"

int main(int argc, char **argv) { return cli_main(argc, argv, NULL, 1); }
