#!/usr/bin/env python3
"""The automaton of JSON schemas against the Python package jsonschema, on random schemas and values.

    against_jsonschema.py build/tests/test_schema [SCHEMAS [SEED]]      needs the package jsonschema; `make test` does not run it

Every absent additionalProperties becomes false for the package, as tools/serve/schema.h counts it. Keys ascend in schemas and values,
so that their order is never the reason of a refusal. Whole numbers are written without a point."""
import copy
import json
import random
import subprocess
import sys

import jsonschema

NAMES = ["a", "aa", "ab", "b", "c\"\\", "d", "e\u00e9", "f/g"]
WORDS = ["", "a", "ab", "\u00e9", "\U0001f600x", "\n\"\\", "\u20ac\u20ac\u20ac", "long enough to be too long"]


def constant(r, depth=2):
    kind = r.randrange(8 if depth else 6)
    if kind < 6:
        return [None, r.random() < .5, r.randrange(-99, 99), r.randrange(-999, 999) / 8, r.choice(WORDS), r.choice(WORDS)][kind]
    if kind == 6:
        return [constant(r, depth - 1) for _ in range(r.randrange(3))]
    return {k: constant(r, depth - 1) for k in sorted(r.sample(NAMES, r.randrange(3)))}


def schema(r, depth):
    kind = r.randrange(13 if depth else 8)
    if kind == 0:
        low = r.randrange(4)
        return {"type": "string", **({"minLength": low} if r.random() < .5 else {}), **({"maxLength": low + r.randrange(4)} if r.random() < .5 else {})}
    if kind < 4:
        return {"type": [["integer", "null"], "number", ["boolean", "string"]][kind - 1], "description": "x"}
    if kind == 4:
        return {"enum": [constant(r) for _ in range(1 + r.randrange(5))]}
    if kind == 5:
        return {"const": constant(r)}
    if kind == 6:
        return r.choice([{}, True, {"title": "any"}, False])
    if kind == 7:
        return {"$ref": r.choice(["#/$defs/x", "#/definitions/y~1z", "#"])}
    if kind == 8:
        return {"anyOf": [schema(r, depth - 1) for _ in range(1 + r.randrange(3))]}
    if kind == 9:
        low = r.randrange(3)
        out = {"type": "array", "minItems": low}
        if r.random() < .8:
            out["items"] = schema(r, depth - 1)
        if r.random() < .3:
            out["prefixItems"] = [schema(r, depth - 1) for _ in range(1 + r.randrange(2))]
        if r.random() < .5:
            out["maxItems"] = low + r.randrange(3)
        return out
    names = sorted(r.sample(NAMES, r.randrange(5)))
    out = {"type": "object", "properties": {n: schema(r, depth - 1) for n in names}, "required": [n for n in names if r.random() < .5]}
    if r.random() < .6:
        out["additionalProperties"] = r.choice([False, True, schema(r, depth - 1)])
    return out


def value(r, root, s, depth):
    if depth < 0 or not isinstance(s, dict) or r.random() < .04:
        return constant(r)
    if "$ref" in s:
        at = {"#/$defs/x": lambda: root["$defs"]["x"], "#/definitions/y~1z": lambda: root["definitions"]["y/z"], "#": lambda: root}[s["$ref"]]()
        return value(r, root, at, depth - 1)
    if "anyOf" in s:
        return value(r, root, r.choice(s["anyOf"]), depth - 1)
    if "enum" in s or "const" in s:
        return copy.deepcopy(r.choice(s.get("enum", [s.get("const")])))
    kind = s.get("type")
    kind = r.choice(kind) if isinstance(kind, list) else kind
    if kind == "string":
        return "".join(r.choice("a\u00e9\U0001f600\"\\\n ") for _ in range(s.get("minLength", 0) + r.randrange(3)))
    if kind == "array":
        return [value(r, root, (s.get("prefixItems", []) + [s.get("items", True)] * 9)[i], depth - 1) for i in range(s["minItems"] + r.randrange(3))]
    if kind == "object":
        more = s.get("additionalProperties", False)
        names = [n for n in s["properties"] if n in s["required"] or r.random() < .5]
        if r.random() < (.5 if more else .05):
            names.append("zz")
        return {n: value(r, root, s["properties"].get(n, more), depth - 1) for n in sorted(names) if r.random() < .97}
    return {"integer": r.randrange(-10**6, 10**6), "number": r.randrange(-10**6, 10**6) / 64, "boolean": True, "null": None}.get(kind, constant(r))


def closed(s):
    """The same schema for the package."""
    if not isinstance(s, dict):
        return s
    out = {k: closed(v) if k in ("items", "additionalProperties") else [closed(x) for x in v] if k in ("anyOf", "prefixItems")
           else {n: closed(x) for n, x in v.items()} if k in ("properties", "$defs", "definitions") else v for k, v in s.items()}
    if out.get("type") == "object":
        out.setdefault("additionalProperties", False)
    return out


def plain(v):
    """Whole numbers without a point, in constants too."""
    if isinstance(v, list):
        return [plain(x) for x in v]
    return {k: plain(x) for k, x in v.items()} if isinstance(v, dict) else int(v) if isinstance(v, float) and v == int(v) else v


def main():
    program = subprocess.Popen([sys.argv[1], "--judge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    r = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    counts, bad = {"1": 0, "0": 0, "hopeless": 0, "circle": 0}, 0
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 2000):
        root = schema(r, 3)
        if isinstance(root, bool):
            continue
        root = plain({**root, "$defs": {"x": schema(r, 2)}, "definitions": {"y/z": schema(r, 2)}})
        values = [plain(value(r, root, root, 6)) for _ in range(8)]
        texts = [json.dumps(v, ensure_ascii=False, indent=r.choice([None, 2, 4])) for v in values]
        try:
            judge = jsonschema.Draft202012Validator(closed(root))
            wanted = "".join("1" if judge.is_valid(v) else "0" for v in values)
        except RecursionError: # $ref that leads to itself
            counts["circle"] += 1
            continue
        program.stdin.write(json.dumps({"schema": root, "texts": texts}) + "\n")
        program.stdin.flush()
        found = program.stdout.readline().rstrip("\n")
        if "no value that nests" in found:
            counts["hopeless"] += 1
            found = "0" * len(values)
        for one in wanted:
            counts[one] += 1
        if found != wanted:
            bad += 1
            print(json.dumps(root), found, wanted, *texts, sep="\n  ")
            if bad > 3:
                break
    program.stdin.close()
    print(f"{counts['1']} values accepted, {counts['0']} refused, {counts['hopeless']} schemas without values, "
          f"{counts['circle']} with a circle of $ref left out; {bad} differences")
    return bad > 0 or program.wait() != 0


if __name__ == "__main__":
    sys.exit(main())
