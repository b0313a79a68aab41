#!/usr/bin/env python3
"""The documents, held against the tree and against the program.

    docs.py [BUILD [ROOT]]     BUILD: where the program is (default build); ROOT: the tree (default: this one)

Every link and anchor resolves. Every file, function, option, command and make target that a document names in backticks exists.
Every rule and every section of docs/SEMANTICS.md that the code cites exists. No public function, command, draft method, convention
and tap is left out. The README keeps to its size. Commands that a page
shows with their output ("    $ COMMAND", as in docs/TOUR.md) print exactly that, and the program in docs/API.md compiles and computes what
the command does. Needs no package.
"""

import glob
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "build").resolve()
ROOT = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else HERE).resolve()

NAMED = ["README.md", "CONTRIBUTING.md"]  # and docs/*.md: what these name must exist. Of the other documents links alone
README_LINES, README_COLUMNS = 150, 120
README_HEADING = 60  # a longer one has swallowed its paragraph
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_]*$")  # DIR, MODEL, K
problems = []


def wrong(path, line, what):
    problems.append(f"{path}:{line}: {what}")


def tracked():
    out = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
    names = out.stdout.split("\n") if out.returncode == 0 else [os.path.relpath(p, ROOT) for p in glob.glob(f"{ROOT}/**/*", recursive=True)]
    return sorted(n for n in names if n and not n.startswith("build") and (ROOT / n).is_file())


# ---- reading Markdown ----


def lines_of(path):
    """(number, line, whether it is code) of each line."""
    fence = False
    before = ""
    code = False
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("```"):
            fence = not fence
            yield number, line, True
            continue
        indented = line.startswith("    ") and (code or not before.strip() or before.startswith("#"))
        code = indented or (code and not line.strip())
        yield number, line, fence or indented
        before = line


def paragraphs(path):
    """(number of the first line, text) of what is no code, so that a span may go on in the next line."""
    first, text = 0, []
    for number, line, code in lines_of(path):
        if code or not line.strip() or re.match(r"#|\||\s*([-*]|\d+\.) ", line):
            if text:
                yield first, " ".join(text)
            text = []
            if code or not line.strip() or line.startswith(("#", "|")):
                if not code and line.strip():
                    yield number, line
                continue
        if not text:
            first = number
        text.append(line.strip())
    if text:
        yield first, " ".join(text)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def headings(path):
    return [re.sub(r"^#+ ", "", line) for _, line, code in lines_of(path) if not code and re.match(r"#+ ", line)]


# ---- links ----


def check_links(documents):
    for path in documents:
        for number, text in paragraphs(path):
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text)):
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                place = (ROOT / path).parent / name if name else ROOT / path
                if not place.exists():
                    wrong(path, number, f"the link {target} leads to no file")
                elif anchor and anchor not in map(slug, headings(os.path.relpath(place.resolve(), ROOT))):
                    wrong(path, number, f"the link {target} leads to no heading of that page")


# ---- names ----


class Tree:
    def __init__(self, files):
        self.files = set(files)
        self.names = {os.path.basename(f) for f in files}
        self.folders = {str(p) for f in files for p in pathlib.PurePath(f).parents}
        sources = [f for f in files if not f.endswith(".md") and (not f.startswith("golden/") or f.startswith("golden/scripts/")) and f != "tests/docs.py"]
        self.text = {}
        for f in sources:
            try:
                self.text[f] = (ROOT / f).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                pass
        every = "\n".join(self.text.values())
        self.words = set(re.findall(r"\w+", every))
        self.all = every
        self.options = set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", every))
        makefiles = "\n".join(t for f, t in self.text.items() if f.endswith(".mk") or f == "Makefile")
        self.targets = {w for line in re.findall(r"^([\w .$()/%-]+?):(?!=)", makefiles, re.M) for w in line.split()}
        self.targets |= {w for line in re.findall(r"^\.PHONY:((?:.|\\\n)*?)$", makefiles, re.M) for w in line.replace("\\", " ").split()}
        self.commands = set(re.findall(r"struct command command_(\w+)\b", every)) | set(re.findall(r'\.name = "(\w+)"', "".join(t for f, t in self.text.items() if f.startswith("tools/")))) | {"help"}

    def is_path(self, name):
        name = name.rstrip("/")
        if "*" in name:
            return bool(glob.glob(str(ROOT / name)))
        return (ROOT / name).exists() or bool(glob.glob(str(ROOT / name) + ".*"))  # ops/rope stands for its .h and .c


def check_command(tree, path, number, line):
    """A command line: verbatim COMMAND --option, make target."""
    line = re.sub(r"'[^']*'|\"[^\"]*\"", "''", line).split("      #")[0]
    for command in re.findall(r"(?:^|[ /`])verbatim ([a-z]+)\b", line):
        if command not in tree.commands:
            wrong(path, number, f"there is no command `verbatim {command}`")
    for target in re.findall(r"(?:^|[ `])make ([a-z][\w-]*)", line):
        if target not in tree.targets:
            wrong(path, number, f"there is no target `make {target}`")
    for option in re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", line):
        if option not in tree.options:
            wrong(path, number, f"there is no option {option}")


def check_span(tree, path, number, span):
    check_command(tree, path, number, span)
    for token in re.findall(r"[\w./*{},@-]+", span):
        token = token.strip(".,")
        if "NAME" in token:  # of what the reader will add
            continue
        if "/" in token and re.match(r"(numbers|engine|ops|simd|reference|tools|tests|golden|docs|examples)/", token):
            if not tree.is_path(token):
                wrong(path, number, f"there is no {token}")
        elif re.fullmatch(r"[\w-]+\.(c|h|py|sh|mk|table)", token) and token not in tree.names and token not in tree.all:
            wrong(path, number, f"there is no file {token}")
    if re.match(r"(numbers|engine|ops|simd|reference|tools|tests|golden|docs|examples)/", span):
        return
    for word in re.findall(r"[A-Za-z_]\w{2,}", span):
        if word not in tree.words and not PLACEHOLDER.match(word) and "NAME" not in word:
            wrong(path, number, f"nothing in the tree has the name {word} (in `{span}`)")


# `a`, `b` and `c` in `file`, or in [file](..)
PLACED = re.compile(r"((?:`\w+`(?:,? and |, )?)+) in \[?`?([\w/]+\.[a-z]+)`?\]?(?:\(([^)]*)\))?")


def check_names(tree, documents):
    for path in documents:
        for number, text in paragraphs(path):
            for span in re.findall(r"`([^`]+)`", text):
                check_span(tree, path, number, span)
            for names, shown, link in PLACED.findall(text):
                file = os.path.relpath(((ROOT / path).parent / link).resolve(), ROOT) if link else shown
                if file not in tree.text:
                    continue
                for name in re.findall(r"`(\w+)`", names):
                    if not re.search(rf"\b{name}\b", tree.text[file]):
                        wrong(path, number, f"{file} has no {name}")
        for number, line, code in lines_of(path):
            if code and re.match(r" +(\$ )?(build/verbatim|verbatim|make) ", line):
                check_command(tree, path, number, line)


def check_serve_examples(files):
    """The options that examples/serve gives to `verbatim serve` are in its help."""
    known = set(re.findall(r"--[a-z][\w-]*", subprocess.run([BUILD / "verbatim", "serve", "--help"], capture_output=True, text=True).stdout))
    found = 0
    for path in files:
        if not path.startswith("examples/serve/") or path.endswith((".py", ".md")):
            continue
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").split("\n"), 1):
            for option in re.findall(r"--[a-z][\w-]*", line.partition("verbatim")[2]):
                found += 1
                if option not in known:
                    wrong(path, number, f"`verbatim serve` has no option {option}")
    if found < 6:
        wrong("examples/serve", 1, f"{found} options, which is too few: are they still found?")


# ---- what the code cites ----


def check_citations(tree):
    rules = {int(n) for n in re.findall(r"^## Rule (\d+):", (ROOT / "docs/ARITHMETIC.md").read_text(), re.M)}
    sections = headings("docs/SEMANTICS.md")
    if rules != set(range(1, len(rules) + 1)) or len(rules) < 8:
        wrong("docs/ARITHMETIC.md", 1, f"the rules are {sorted(rules)}, wanted 1 to 8")
    for file, text in tree.text.items():
        for number, line in enumerate(text.split("\n"), 1):
            for rule in re.findall(r"\brules? (\d+)", line):
                if int(rule) not in rules:
                    wrong(file, number, f"docs/ARITHMETIC.md has no rule {rule}")
            for cited in re.findall(r'SEMANTICS(?:\.md)?,? "([^"]+)"', line):
                if cited not in sections:
                    wrong(file, number, f'docs/SEMANTICS.md has no section "{cited}"')
            for name in re.findall(r"\bdocs/\w+\.md\b", line):
                if name not in tree.files:
                    wrong(file, number, f"there is no {name}")


def check_lists():
    """What there are several of: a page that lists them leaves none out."""
    api = (ROOT / "docs/API.md").read_text()
    parts = "".join(path.read_text() for path in sorted((ROOT / "engine").glob("verbatim*.h")))
    header = re.sub(r"/\*.*?\*/", "", parts, flags=re.S)
    for name in re.findall(r"^(?!typedef)[^\n(]*?\b(vb_\w+)\(", header, re.M):
        if f"`{name}`" not in api and not name.endswith("_sized"): # called by the function without _sized
            wrong("docs/API.md", 1, f"{name} of verbatim.h is not there")
    told = subprocess.run([BUILD / "verbatim", "--help"], capture_output=True, text=True).stdout
    commands = re.findall(r"^  ([a-z]+) +\S", told.partition("Commands:")[2].partition("\n\n")[0], re.M)
    running = (ROOT / "docs/RUNNING.md").read_text()
    for name in commands:
        if f"| `{name}` |" not in running:
            wrong("docs/RUNNING.md", 1, f"the command {name} is not in the table")
    table = json.loads(subprocess.run([BUILD / "verbatim", "conventions", "--json"], capture_output=True, text=True).stdout)
    semantics, oracle = (ROOT / "docs/SEMANTICS.md").read_text(), (ROOT / "docs/ORACLE.md").read_text()
    for row in table["conventions"]:
        line = next((line for line in semantics.split("\n") if line.startswith(f"| `{row['name']}`")), "|||")
        for value in row["values"]:
            if value not in line.split("|")[2]:
                wrong("docs/SEMANTICS.md", 1, f"the value {value} of the convention {row['name']} is not in the table")
    for row in table["systems"]:
        if row["name"] not in oracle:
            wrong("docs/ORACLE.md", 1, f"the system {row['name']} is not listed")
    isa = subprocess.run([BUILD / "verbatim", "generate", ROOT / "golden/tale", "--tokens", "5", "--isa", "?"], capture_output=True, text=True).stderr
    sets = re.findall(r"\w+", isa.partition("known are")[2])
    usage = subprocess.run([BUILD / "verbatim", "generate", "--help"], capture_output=True, text=True).stdout
    for path, text in {"docs/RUNNING.md": running, "tools/cli/options_run.c": usage, "engine/verbatim.h": (ROOT / "engine/verbatim.h").read_text()}.items():
        line = re.search(r"`--isa NAME`[^.]*|--isa NAME[^.]*|\*isa;.*", text)
        for name in sets:
            if not line or not re.search(rf"\b{name}\b", line.group()):
                wrong(path, 1, f"the instruction set {name} is not listed with isa")
    if len(sets) < 5:
        wrong("docs/RUNNING.md", 1, f"`--isa ?` says {isa!r}")
    draft = subprocess.run([BUILD / "verbatim", "generate", ROOT / "golden/tale", "--tokens", "5", "--draft", "?"], capture_output=True, text=True).stderr
    drafting = (ROOT / "docs/DRAFTING.md").read_text()
    methods = re.findall(r"[a-z0-9-]+", draft.partition("known are")[2])
    for name in methods:
        if not re.search(rf"^\|[^|]*`{name}`", drafting, re.M):
            wrong("docs/DRAFTING.md", 1, f"the method {name} is not in the table")
    files = (ROOT / "docs/FILES.md").read_text()
    architectures = re.findall(r'^ +\[\w+\] = \{"(\w+)"', (ROOT / "engine/model/config.c").read_text(), re.M)
    for name in architectures:
        if name not in files:
            wrong("docs/FILES.md", 1, f"the architecture {name} is not listed")
    if len(architectures) < 3:
        wrong("engine/model/config.c", 1, f"{len(architectures)} architectures, which is too few: are they still found?")
    mistakes = len(re.findall(r"^mistake ", (ROOT / "tests/mistakes/mistakes.txt").read_text(), re.M))
    for path in "README.md", "CONTRIBUTING.md":
        counts = re.findall(r"(\d+)\s+known mistakes", (ROOT / path).read_text())
        if counts != [str((mistakes - 1) // 10 * 10)]:
            wrong(path, 1, f"known mistakes: {counts}; tests/mistakes/mistakes.txt has {mistakes}, wanted 'more than' the tens below")
    cases = "".join(path.read_text() for path in (ROOT / "tests/cuda").glob("checkcuda*.[ch]"))
    operators = re.findall(r"^    void \(\*(\w+)\)\(", (ROOT / "ops/operators.h").read_text(), re.M)
    for name in operators:
        if not re.search(rf"op->{name}\b", cases):
            wrong("ops/operators.h", 1, f"tests/cuda/checkcuda_*.c have no case for the operator {name}")
    if len(operators) < 10:
        wrong("ops/operators.h", 1, f"{len(operators)} operators, which is too few: are they still found?")
    if len(methods) < 5:
        wrong("docs/DRAFTING.md", 1, f"`--draft ?` says {draft!r}")
    if len(commands) < 10:
        wrong("docs/RUNNING.md", 1, f"`verbatim --help` lists {len(commands)} commands")


def check_taps():
    """Each named value of a pass has the last part of its name in ORACLE.md."""
    code, oracle = (ROOT / "engine/model/values.c").read_text(), (ROOT / "docs/ORACLE.md").read_text()
    taps = re.findall(r'\] = \{"([^"\n]+)"', code)
    for name in taps:
        if not re.search(rf"\b{re.sub(r'[.](input|output|[EH])$', '', name).removesuffix('.E').rpartition('.')[2]}\b", oracle):
            wrong("docs/ORACLE.md", 1, f"the value {name} of engine/model/values.c is not listed")
    if len(taps) < 20:
        wrong("engine/model/values.c", 1, f"{len(taps)} values, which is too few: are they still found?")


def check_readme():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").rstrip("\n").split("\n")
    if len(lines) > README_LINES:
        wrong("README.md", len(lines), f"{len(lines)} lines, wanted at most {README_LINES}")
    for number, line in enumerate(lines, 1):
        if line.startswith("#") and len(line) > README_HEADING:
            wrong("README.md", number, f"a heading of {len(line)} characters, wanted at most {README_HEADING}")
        if len(line) > README_COLUMNS:
            wrong("README.md", number, f"{len(line)} characters, wanted at most {README_COLUMNS}")


# ---- what commands print ----


def examples(path):
    """(line, command, expected lines) of each `$ command` in the page's code."""
    command = None
    for number, line, code in lines_of(path):
        if code and line.startswith("    $ "):
            if command:
                yield command
            command = (number, line[6:].strip(), [])
        elif code and command and line.strip():
            command[2].append(line[4:].rstrip())
        elif command:
            yield command
            command = None
    if command:
        yield command


def matches(shown, printed):
    """Whether the lines are these, where "..." stands for any number of lines."""
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(matches(shown[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and matches(shown[1:], printed[1:])


def check_examples(path, work, least):
    count = 0
    for number, command, shown in examples(path):
        ran = subprocess.run(shlex.split(command), cwd=work, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        printed = [line.rstrip() for line in ran.stdout.rstrip("\n").split("\n")] if ran.stdout.strip() else []
        count += 1
        if ran.returncode:
            wrong(path, number, f"{command}: exit code {ran.returncode}: {ran.stderr.strip()}")
        elif not matches(shown, printed):
            wrong(path, number, "\n    ".join([f"{command}: printed", *printed, "and not", *shown]))
    if count < least:
        wrong(path, 1, f"{count} commands, which is too few: are they still found?")


def check_program(path, work):
    """The C program on the page gives the fingerprint that the command gives."""
    program = re.search(r"```c\n(.*?)```", (ROOT / path).read_text(), re.S)
    if not program:
        wrong(path, 1, "there is no C program")
        return
    (work / "program.c").write_text(program.group(1))
    compiler = shlex.split(os.environ.get("CC", "cc"))
    built = subprocess.run([*compiler, "-Wall", "-Werror", f"-I{ROOT}/engine", "-o", work / "program", work / "program.c",
                            BUILD / "libverbatim.so.0", f"-Wl,-rpath,{BUILD}"], capture_output=True, text=True)
    if built.returncode:
        wrong(path, 1, f"the C program does not compile:\n{built.stderr}")
        return
    ran = subprocess.run([work / "program"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    said = subprocess.run([BUILD / "verbatim", "generate", "golden/tale", "--tokens", "5,6,7", "-n", "40", "--ignore-eos", "--json"], cwd=ROOT,
                          capture_output=True, text=True, timeout=300)
    if ran.returncode or not ran.stdout.rstrip().endswith(json.loads(said.stdout)["fingerprint"]):
        wrong(path, 1, f"the C program printed {ran.stdout!r} {ran.stderr!r}, and the command {said.stdout}")


def main():
    files = tracked()
    tree = Tree(files)
    every = [f for f in files if f.endswith(".md")]
    named = [f for f in every if f in NAMED or f.startswith("docs/")]
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for name in ("golden", "tools"):
            os.symlink(ROOT / name, work / name)
        os.symlink(BUILD, work / "build")
        checks = {
            "every_link_leads_somewhere": lambda: check_links(every),
            "what_the_documents_name_exists": lambda: check_names(tree, named),
            "the_server_examples_name_options_that_exist": lambda: check_serve_examples(files),
            "what_the_code_cites_exists": lambda: check_citations(tree),
            "lists_leave_nothing_out": check_lists,
            "every_tap_has_its_names": check_taps,
            "the_readme_keeps_to_its_size": check_readme,
            "examples_show_what_their_commands_print": lambda: [check_examples(f, work, 20 if f == "docs/TOUR.md" else 0) for f in named],
            "the_program_in_the_api_page_runs": lambda: check_program("docs/API.md", work),
        }
        failed = 0
        for name, check in checks.items():
            before = len(problems)
            check()
            ok = len(problems) == before
            failed += not ok
            print("\n".join(problems[before:] + [f"[ {'      OK' if ok else ' FAILED '} ] {name}"]))
    print(f"[  PASSED  ] {len(checks) - failed} test(s).")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
