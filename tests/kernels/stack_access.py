#!/usr/bin/env python3
"""stack_access.py OBJECT...: fails if an inner loop of a tile in simd/avx2_tiles.c reads or writes the stack.

A sum that a compiler keeps on the stack is stored and loaded in each iteration, and its chain of fmas becomes three times as
long. An inner loop of a tile is a loop that contains an fma and no other loop, in a function whose name begins with from_.
%rbp is an address on the stack only in functions that make it their frame pointer.
"""
import re
import shutil
import subprocess
import sys

SOURCES = ("from_bf16", "from_f32", "from_packed")


def functions(disassembly):
    """Yields (name, [(address, instruction), ...])."""
    name, code = None, []
    for line in disassembly.splitlines():
        if start := re.match(r"[0-9a-f]+ <(.*)>:", line):
            if name:
                yield name, code
            name, code = start[1], []
        elif instruction := re.match(r"\s+([0-9a-f]+):\s+(.*)", line):
            code.append((int(instruction[1], 16), instruction[2]))
    if name:
        yield name, code


def inner_loops(code):
    """Yields the instructions of each loop that contains an fma and no other loop."""
    loops = []
    for address, text in code:
        jump = re.match(r"j\w+\s+([0-9a-f]+)", text)
        if jump and int(jump[1], 16) <= address:
            loops.append((int(jump[1], 16), address))
    for first, last in loops:
        if any(first <= f and l <= last and (f, l) != (first, last) for f, l in loops):
            continue
        loop = [text for address, text in code if first <= address <= last]
        if any(text.startswith("vfmadd") for text in loop):
            yield loop


def check(path):
    """Returns the number of complaints about an object file."""
    dump = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True)
    bad, seen = 0, set()
    for name, code in functions(dump.stdout):
        if not name.startswith("from_"):
            continue
        frame = any(re.match(r"mov\s+%rsp,%rbp", text) for _, text in code)
        stack = re.compile(r"\(%r[sb]p" if frame else r"\(%rsp")
        for loop in inner_loops(code):
            seen.update(source for source in SOURCES if name.startswith(source))
            for text in loop:
                if stack.search(text):
                    print(f"{path}: an inner loop of {name} accesses the stack: {text}")
                    bad += 1
    for source in SOURCES:
        if source not in seen:
            print(f"{path}: no inner loop was found in the tiles whose names begin with {source}")
            bad += 1
    return bad


def main():
    if not shutil.which("objdump"):
        print("skipped: objdump is not installed")
        return 0
    return 1 if sum(check(path) for path in sys.argv[1:]) else 0


sys.exit(main())
