"""verbatim/_c.py and _functions.py say what verbatim.h says: fields by name and order from its text, sizes and kinds from a compiler."""

import ctypes as C
import os
import re
import subprocess

import pytest
from conftest import ROOT
from verbatim import _c, _functions

HEADER = ROOT / "engine" / "verbatim.h"
PARTS = [HEADER, *sorted(HEADER.parent.glob("verbatim_*.h"))]  # in the order in which HEADER includes them
TEXT = re.sub(r"/\*.*?\*/", "", "".join(part.read_text() for part in PARTS), flags=re.S)
KINDS = {C.c_int: "i4", C.c_uint: "u4", C.c_uint64: "u8", C.c_float: "f4", C.c_double: "f8"}
PROGRAM = """
#include <stdio.h>
#include "%s"
#define KIND(x) _Generic((x), int: "i4", unsigned: "u4", unsigned long: "u8", unsigned long long: "u8", float: "f4", \\
                         double: "f8", default: "")
#define FIELD(s, f) printf(#s " " #f " %%zu %%zu %%s\\n", offsetof(s, f), sizeof ((s *)0)->f, KIND(((s *)0)->f));
int main(void)
{
%s
}
"""


def header_structs():
    """{struct: its fields}, in the header's order."""
    structs = {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", TEXT, flags=re.S):
        fields = []
        for declaration in filter(None, map(str.strip, body.split(";"))):
            pointer = re.match(r".*?\(\*(\w+)\)", declaration, flags=re.S)
            if pointer:
                fields.append(pointer[1])
            else:
                fields += [re.search(r"(\w+)\s*(\[.*\])?$", part.strip())[1] for part in declaration.split(",")]
        structs[name] = fields
    return structs


def test_structs_and_fields_are_those_of_the_header_in_its_order():
    ours = {s.__name__: [name for name, _ in s._fields_] for s in _c.STRUCTS}
    theirs = header_structs()
    assert list(ours) == list(theirs), "STRUCTS lacks %s" % sorted(set(theirs) - set(ours))
    for name in theirs:
        lacking = [field for field in theirs[name] if field not in ours[name]]
        assert ours[name] == theirs[name], "%s: _c.py lacks %s, or has another order than verbatim.h" % (name, lacking)


def test_sizes_offsets_and_kinds_are_those_of_a_compiler(tmp_path):
    lines, wanted = [], []
    for s in _c.STRUCTS:
        lines.append('printf("%s %%zu\\n", sizeof(%s));' % (s.__name__, s.__name__))
        wanted.append("%s %d" % (s.__name__, C.sizeof(s)))
        for name, kind in s._fields_:
            field = getattr(s, name)
            lines.append("FIELD(%s, %s)" % (s.__name__, name))
            wanted.append("%s %s %d %d %s" % (s.__name__, name, field.offset, field.size, KINDS.get(kind, "")))
    for enum, prefix in (_c.Code, "VB_"), (_c.Finish, "VB_FINISH_"), (_c.Reject, "VB_REJECT_"):
        for member in enum:
            lines.append('printf("%s%s %%d\\n", %s%s);' % (prefix, member.name, prefix, member.name))
            wanted.append("%s%s %d" % (prefix, member.name, member))
    lines.append('printf("VB_MAX_DRAFT %d\\n", VB_MAX_DRAFT);')
    wanted.append("VB_MAX_DRAFT %d" % _c.MAX_DRAFT)
    lines.append('printf("VB_MAX_NODES %d\\n", VB_MAX_NODES);')
    wanted.append("VB_MAX_NODES %d" % _c.MAX_NODES)
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(PROGRAM % (HEADER, "\n".join(lines)))
    subprocess.run([os.environ.get("CC", "gcc"), "-std=c11", "-o", program, source], check=True)
    said = subprocess.run([program], check=True, stdout=subprocess.PIPE).stdout.decode().splitlines()
    assert [line.rstrip() for line in wanted] == [line.rstrip() for line in said]


@pytest.mark.parametrize("enum, prefix, name", [(_c.Code, "VB_", "vb_code"), (_c.Finish, "VB_FINISH_", "vb_finish"),
                                                (_c.Reject, "VB_REJECT_", "vb_reject")])
def test_enums_are_complete(enum, prefix, name):
    body = re.search(r"enum %s \{(.*?)\}" % name, TEXT, flags=re.S)[1]
    assert [prefix + member.name for member in enum] == [part.split("=")[0].strip() for part in body.split(",") if part.strip()]


def test_functions_are_those_of_the_header():
    """Their names, how many arguments they take, and whether they return something."""
    theirs = {}
    for result, name, arguments in re.findall(r"^((?:const )?\w+ \**)(vb_\w+)\(([^;]*)\);", TEXT, flags=re.M):
        theirs[name] = (result.strip() != "void", 0 if arguments == "void" else arguments.count(",") + 1)
    assert {name: (result is not None, len(arguments)) for name, (result, arguments) in _functions.FUNCTIONS.items()} == theirs


def test_version_is_that_of_the_header():
    assert _c.VERSION == re.search(r'#define VB_VERSION "(.*)"', TEXT)[1]
