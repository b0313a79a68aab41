"""python -m verbatim, and the `verbatim` command of the wheel: runs the command."""

import os
import sys

from .server import find_command


def main():
    command = find_command()
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
