#!/usr/bin/env python3
"""Do the tests notice mistakes? Makes those of mistakes.txt, one after the other, in copies of the tree.

    mistakes.py [--build BUILD] [--jobs N] [NAME...]    every mistake, or these alone; BUILD holds what `make mistakes` builds
    mistakes.py --check                                 only see whether every substitution finds its text, once
    mistakes.py --share N                               one of N shares of the list; each commit has another share's turn
    mistakes.py --tests-pass                            does not try the tests without a mistake: `make test` runs them beside it

A copy starts with the objects of BUILD. For each mistake its text is substituted, what depends on it is built again, and the
named tests run: each must fail, and fail by saying so, not by a crash; a test of GPU kernels may also end because
tests/cuda/watch.h saw what it looks for. Without the mistake it must pass. Then the text is taken
back. N copies (2 unless told) do this side by side. A test that passes and says what this CPU cannot show is skipped.
"""
import argparse
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = pathlib.Path("tests/mistakes/mistakes.txt")
SOURCES = ["numbers", "engine", "ops", "simd", "reference", "tests", "tools", "Makefile"]  # copied; the rest is linked
HANGS = 900  # seconds: no test takes nearly as long, however busy the machine is


class Mistake:
    def __init__(self, name, where):
        self.name = name
        self.where = where
        self.substitutions = []  # (file, old text, new text)
        self.tests = []  # (command, test)


def read_list(path):
    mistakes, file, old, new, errors = [], None, [], [], []

    def end_of_substitution():
        if old:
            mistakes[-1].substitutions.append((file, "\n".join(old), "\n".join(new)))
        old.clear()
        new.clear()

    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{LIST}:{number}"
        word, _, rest = line.partition(" ")
        if word != "+" and not (word == "-" and not new):
            end_of_substitution()
        if not line.strip() or line.startswith("#"):
            continue
        if word == "mistake" and re.fullmatch(r"[a-z0-9_]+: .+", rest):
            if any(m.name == rest.split(":")[0] for m in mistakes):
                errors.append(f"{where}: a mistake of this name is above")
            mistakes.append(Mistake(rest.split(":")[0], where))
            file = None
        elif word == "file" and mistakes:
            file = rest.strip()
        elif word == "-" and file and rest.strip():
            old.append(rest)
        elif word == "+" and old:
            new.append(rest)
        elif word == "test" and mistakes and re.fullmatch(r"\w[^:]*: \w+", rest):
            mistakes[-1].tests.append(tuple(rest.split(": ")))
        else:
            errors.append(f"{where}: this line has no meaning here: {line}")
    end_of_substitution()
    for m in mistakes:
        if not m.substitutions or not m.tests:
            errors.append(f"{m.where}: {m.name} needs a substitution and a test")
    return mistakes, errors


def pattern(text):
    return re.compile(r"\s+".join(re.escape(word) for word in text.split()))


def share_of_this_commit(mistakes, shares):
    """Every `shares`-th mistake. The commit decides with which the count begins, so that a run can be repeated."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    commit = int(asked.stdout, 16) if asked.returncode == 0 else 0
    return mistakes[commit % shares::shares]


def find(mistakes):
    """What keeps a substitution from being made: a text that is missing, or there more than once."""
    errors = []
    for m in mistakes:
        for file, old, _ in m.substitutions:
            path = ROOT / file
            count = len(pattern(old).findall(path.read_text())) if path.is_file() else None
            if count != 1:
                found = "there is no such file" if count is None else f"it is there {count} times"
                errors.append(f"{m.where}: {m.name}: the text must be in {file} exactly once, and {found}: {' '.join(old.split())}")
    return errors


def environment():
    """Of a surrounding make only the variables of its command line: its job server is not ours. Tests try all of their cases."""
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "VERBATIM_TURN")}
    _, dashes, variables = os.environ.get("MAKEFLAGS", "").partition("-- ")
    if dashes:
        env["MAKEFLAGS"] = "-- " + variables
    return env


def built_for(commands):
    """What tests need below BUILD: a C program itself, and for a test of the command line build/verbatim, which it runs."""
    programs = {command.split()[0] for command in commands}
    of_command = any(p.endswith(".py") or (ROOT / f"tests/cli/{p}.c").exists() for p in programs)
    return {f"tests/{p}" for p in programs if not p.endswith(".py")} | ({"verbatim"} if of_command else set())


def run_test(tree, build, command, test):
    """(exit status, what the program said)"""
    program, *arguments = command.split()
    words = [program, f"{build}/verbatim", test] if program.endswith(".py") else [f"{build}/tests/{program}", *arguments]
    env = dict(environment(), VERBATIM_TEST=test)
    try:
        done = subprocess.run(words, cwd=tree, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANGS, check=False)
    except subprocess.TimeoutExpired:
        return "none: it hangs", ""
    return done.returncode, done.stdout.decode(errors="replace")


class Copy:
    """A copy of the tree, up to date with its objects, so that a substitution builds again only what depends on it."""

    def __init__(self, tree, build, programs):
        self.tree = tree
        self.build = build
        self.restore = {}  # file: its text, while a substitution is in it
        shutil.rmtree(self.tree, ignore_errors=True)
        self.tree.mkdir(parents=True)
        ignore = shutil.ignore_patterns("__pycache__", "build", "logs")
        for entry in ROOT.iterdir():
            if entry.name in SOURCES and entry.is_dir():
                shutil.copytree(entry, self.tree / entry.name, symlinks=True, ignore=ignore)
            elif entry.name in SOURCES:
                shutil.copy2(entry, self.tree)
            elif not entry.name.startswith((".git", "build")):
                (self.tree / entry.name).symlink_to(entry)
        for path in (ROOT / build).rglob("*"):
            if path.suffix in (".o", ".d", ".a", ".so", ".found") or str(path.relative_to(ROOT / build)) in programs:
                to = self.tree / build / path.relative_to(ROOT / build)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to)

    def make(self, programs):
        """None, or what the compiler said. Warnings of a mistaken text are no errors."""
        command = ["make", "-s", "-j1", f"BUILD={self.build}", "WERROR=", *(f"{self.build}/{p}" for p in programs)]
        done = subprocess.run(command, cwd=self.tree, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
        return done.stdout.decode(errors="replace") if done.returncode else None

    def substitute(self, mistake):
        for file, old, new in mistake.substitutions:
            path = self.tree / file
            text = path.read_text()
            self.restore.setdefault(file, text)
            path.write_text(pattern(old).sub(lambda _, new=new: new, text))

    def take_back(self):
        for file, text in self.restore.items():
            (self.tree / file).write_text(text)  # with a new time: what was built from the mistake is out of date
        self.restore = {}


class Report:
    """Lines from two threads, one at a time; on a terminal also how far they are."""

    def __init__(self, total, tests_pass):
        self.lock = threading.Lock()
        self.total, self.done = total, 0
        self.tests_pass = tests_pass
        self.caught = self.skipped = self.wrong = 0
        self.passed = {}  # (command, test): does it pass without a mistake?
        self.terminal = sys.stderr.isatty()

    def say(self, text):
        if self.terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
        print(text, flush=True)

    def step(self):
        with self.lock:
            self.done += 1
            if self.terminal:
                sys.stderr.write(f"\r\033[K{self.done} of {self.total} mistakes")
                sys.stderr.flush()

    def complain(self, what, log=""):
        with self.lock:
            self.say("".join(f"    {line}\n" for line in log.splitlines()[-60:]) + f"WRONG   {what}")
            self.wrong += 1

    def judge(self, m, command, test, status, log):
        name = command.split()[0]
        skipped = re.findall(r"^skipped: (.*)", log, re.MULTILINE)
        watched = re.search(r"\[ RUN      \] " + test + r"\n(a thread .*)\nkernel .*Aborted", log) if status == -signal.SIGABRT else None
        if status == 0 and skipped:
            with self.lock:
                self.say(f"skipped: {m.name}: {name}: {skipped[-1]}")
                self.skipped += 1
        elif status == 0:
            self.complain(f"{m.name}: {name}: {test} does not notice", log)
        elif not watched and (status != 1 or f"[  FAILED  ] {test}" not in log or "failed with exception" in log or (
                name.endswith(".py") and "AssertionError: " not in log)):
            self.complain(f"{m.name}: {name}: it ended with status {status}, not by {test} failing", log)
        else:
            said = watched or re.search(r"^(?:ERROR: |\[  ERROR   \] --- (?!\[)|AssertionError: )(.*)", log, re.MULTILINE)
            with self.lock:
                self.say(f"caught  {m.name:26} {name}: {test}" + (f"\n            {said.group(1)[:140]}" if said else ""))
                self.caught += 1

    def passes(self, build, command, test):
        """Does the test pass in the tree as it is? Tried once, unless it is said so."""
        with self.lock:
            known = self.tests_pass or self.passed.get((command, test))
        if known is None:
            status, log = run_test(ROOT, build, command, test)
            known = status == 0 and "[  PASSED  ] 1 test(s)" in log
            if not known:
                self.complain(f"{command}: {test} does not pass without a mistake", log)
            with self.lock:
                self.passed[command, test] = known
        return known


def work(copy, groups, report):
    while True:
        try:
            group = groups.get_nowait()
        except queue.Empty:
            return
        for m in group:
            copy.substitute(m)
            log = copy.make(sorted(built_for(command for command, _ in m.tests)))
            if log is not None:
                report.complain(f"{m.name}: the tree with this mistake does not compile", log)
            else:
                for command, test in m.tests:
                    if report.passes(copy.build, command, test):
                        report.judge(m, command, test, *run_test(copy.tree, copy.build, command, test))
            copy.take_back()
            report.step()


def groups_of(mistakes):
    """Those of one file follow each other in one copy, a few at a time: what is taken back is not compiled for itself then."""
    files = {}
    for m in mistakes:
        files.setdefault(m.substitutions[0][0], []).append(m)
    parts = [of_file[i:i + 4] for of_file in files.values() for i in range(0, len(of_file), 4)]
    groups = queue.SimpleQueue()
    for part in sorted(parts, key=lambda p: -sum(len(m.tests) for m in p)):
        groups.put(part)
    return groups


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--programs", action="store_true")  # for the Makefile: what they need below BUILD
    parser.add_argument("--build", default="build")
    parser.add_argument("--copies", type=pathlib.Path, default=ROOT / "build-mistakes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--share", type=int, default=1, metavar="N")
    parser.add_argument("--tests-pass", action="store_true")
    parser.add_argument("--list", type=pathlib.Path, default=ROOT / LIST)
    parser.add_argument("names", nargs="*")
    o = parser.parse_args()
    mistakes, errors = read_list(o.list)
    if o.programs:
        print(*sorted(built_for(command for m in mistakes for command, _ in m.tests)))
        return 0
    errors += find(mistakes)
    errors += [f"{LIST} has no mistake {name}" for name in o.names if name not in [m.name for m in mistakes]]
    if errors:
        print(*errors, sep="\n", file=sys.stderr)
        return 1
    if o.check:
        print(f"{len(mistakes)} mistakes: every text to substitute is there, once")
        return 0
    mistakes = share_of_this_commit([m for m in mistakes if not o.names or m.name in o.names], o.share)
    groups, report = groups_of(mistakes), Report(len(mistakes), o.tests_pass)
    programs = built_for(command for m in mistakes for command, _ in m.tests)

    def worker(number):
        try:
            work(Copy(o.copies / str(number), o.build, programs), groups, report)
        except Exception as e:  # a thread that ends early must not look like success
            report.complain(f"copy {number}: {e!r}")

    threads = [threading.Thread(target=worker, args=(i + 1,)) for i in range(min(o.jobs, groups.qsize()))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    without = "" if o.tests_pass else f", by {sum(report.passed.values())} tests that pass without them"
    report.say(f"[  PASSED  ] {report.caught} test(s): {report.done} mistakes made, {report.skipped} skipped{without}")
    return 1 if report.wrong or report.done != len(mistakes) else 0


sys.exit(main())
