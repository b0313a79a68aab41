#!/usr/bin/env python3
"""The grids of the IQ types in simd/grids.c and reference/grids.c are those of the gguf package.

Runs golden/scripts/make_grids.py --check, and then sees it refuse a copy of the tree in which one number is another. Skipped if
the package is not installed."""
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = pathlib.Path("golden/scripts/make_grids.py")
FILES = [SCRIPT, pathlib.Path("simd/grids.c"), pathlib.Path("reference/grids.c")]


def check(root):
    return subprocess.run([sys.executable, root / SCRIPT, "--check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def main():
    if not importlib.util.find_spec("gguf"):
        print("skipped: the Python package gguf is not installed")
        return 0
    ran = check(ROOT)
    if ran.returncode:
        print(ran.stdout)
        return 1
    for damaged in FILES[1:]:
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for file in FILES:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, root / file)
            text = (root / damaged).read_text()
            at = text.rindex("0x") + 2
            (root / damaged).write_text(text[:at] + ("1" if text[at] == "0" else "0") + text[at + 1:])
            ran = check(root)
            if ran.returncode == 0 or str(damaged) not in ran.stdout:
                print(f"a wrong number in {damaged} is not noticed: {ran.stdout}")
                return 1
    print("[  PASSED  ] 1 test(s).")
    return 0


sys.exit(main())
