#!/usr/bin/env python3
"""stack_access.py OBJECT...: fails if an inner loop of a tile reads or writes the stack.

OBJECT is made from simd/avx2_tiles.c, or from neon_tiles.c, neon_quantized.c, neon_dotprod.c or neon_i8mm.c. A sum that a
compiler keeps on the stack is stored and loaded in each iteration, and its chain of fmas becomes three times as long. An inner
loop of a tile is a loop that contains a multiplication and no other loop, in a function whose name begins with from_ or panel_.
%rbp or x29 is an address on the stack only in functions that make it their frame pointer.
"""
import platform
import re
import shutil
import subprocess
import sys

TILES = ("from_bf16", "from_f32", "from_packed")
PANELS = ("panel_q8_0", "panel_q4_0", "panel_iq4_nl", "panel_open", "panel_halves", "panel_minimums")


class X86:
    prefix = ""
    jump = re.compile(r"j\w+\s+([0-9a-f]+)")
    multiplication = re.compile(r"vfmadd")
    frame = re.compile(r"mov\s+%rsp,%rbp")
    stack = re.compile(r"\(%rsp")
    stack_or_frame = re.compile(r"\(%r[sb]p")


class Arm64:
    prefix = "" if platform.machine() == "aarch64" else "aarch64-linux-gnu-"
    jump = re.compile(r"(?:b|b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+([0-9a-f]+)\b")
    multiplication = re.compile(r"fmla|sdot|u?smmla|sm(lal|ull)2?\b")
    frame = re.compile(r"(mov|add)\s+x29, sp")
    stack = re.compile(r"\[sp")
    stack_or_frame = re.compile(r"\[(sp|x29)")


def machine_of(path):
    """The kind of CPU that an ELF file is for."""
    with open(path, "rb") as f:
        number = int.from_bytes(f.read(20)[18:], "little")
    return {62: X86, 183: Arm64}[number]


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


def inner_loops(machine, code):
    """Yields the instructions of each loop that contains a multiplication and no other loop."""
    loops = []
    for address, text in code:
        jump = machine.jump.match(text)
        if jump and int(jump[1], 16) <= address:
            loops.append((int(jump[1], 16), address))
    for first, last in loops:
        if any(first <= f and l <= last and (f, l) != (first, last) for f, l in loops):
            continue
        loop = [text for address, text in code if first <= address <= last]
        if any(machine.multiplication.match(text) for text in loop):
            yield loop


def check(path):
    """Returns the number of complaints about an object file."""
    machine, sources = machine_of(path), TILES if "_tiles" in path else PANELS
    dump = subprocess.run([machine.prefix + "objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True)
    bad, seen = 0, set()
    for name, code in functions(dump.stdout):
        if not name.startswith(sources):
            continue
        frame = any(machine.frame.match(text) for _, text in code)
        stack = machine.stack_or_frame if frame else machine.stack
        for loop in inner_loops(machine, code):
            seen.update(source for source in sources if name.startswith(source))
            for text in loop:
                if stack.search(text):
                    print(f"{path}: an inner loop of {name} accesses the stack: {text}")
                    bad += 1
    for source in sources:
        if source not in seen:
            print(f"{path}: no inner loop was found in the tiles whose names begin with {source}")
            bad += 1
    return bad


def main():
    missing = {machine_of(path).prefix + "objdump" for path in sys.argv[1:]}
    missing = sorted(tool for tool in missing if not shutil.which(tool))
    if missing:
        print(f"skipped: {missing[0]} is not installed")
        return 0
    return 1 if sum(check(path) for path in sys.argv[1:]) else 0


sys.exit(main())
