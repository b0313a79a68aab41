#!/usr/bin/env python3
"""Which lines and branches of the library have run? Reads what a build with --coverage has counted (make coverage).

    coverage.py BUILD FOLDER...     the share of each folder; the lines that nothing reached go to BUILD/unreached.txt

A line counts once, wherever it was compiled into; a line of a header that any of its copies reached is reached. Branches are
gcc's: each way out of a condition, loops, && and asserts included, so that an assert that never fails has one that is not taken.
"""
import collections
import json
import pathlib
import subprocess
import sys


def counted(build, folders):
    """gcov's report of each object that has been compiled, also of those that never ran"""
    notes = sorted(str(p) for folder in folders for p in (build / folder).rglob("*.gcno"))
    if not notes:
        sys.exit(f"coverage.py: {build} holds no build with --coverage")
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", *notes]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    for report in done.stdout.splitlines():
        yield from json.loads(report)["files"]


def main(build, *folders):
    build = pathlib.Path(build)
    lines, branches = collections.Counter(), collections.Counter()
    for file in counted(build, folders):
        name = file["file"]
        if not name.startswith(tuple(folder + "/" for folder in folders)):
            continue
        for line in file["lines"]:
            lines[name, line["line_number"]] += line["count"]
            for i, branch in enumerate(line["branches"]):
                branches[name, line["line_number"], line.get("function_name"), i] += branch["count"]

    def share(counts, folder):
        of_folder = [count > 0 for key, count in counts.items() if key[0].startswith(folder)]
        return f"{sum(of_folder):7d} of {len(of_folder):6d} {100 * sum(of_folder) / max(1, len(of_folder)):6.1f} %"

    print(f"{'':26}{'lines reached':>25}{'branches taken':>27}")
    inner = sorted({"/".join(name.split("/")[:-1]) + "/" for name, _ in lines})
    for folder in inner + [""]:
        print(f"{folder or 'all':26}{share(lines, folder)}  {share(branches, folder)}")

    texts = {}
    with open(build / "unreached.txt", "w") as out:
        for (name, number), count in sorted(lines.items()):
            if not count:
                text = texts.setdefault(name, pathlib.Path(name).read_text().splitlines())
                print(f"{name}:{number}: {text[number - 1].strip()}", file=out)
    print(f"the lines that nothing reached: {build}/unreached.txt")


if len(sys.argv) < 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
