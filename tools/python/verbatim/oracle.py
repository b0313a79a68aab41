"""The oracle's commands from Python: `verbatim diff`, `score`, `replay` and `dump --reference`. They need the `verbatim` command."""

from __future__ import annotations

import collections.abc
import json
import os
import subprocess
import tempfile

from .server import find_command
from .tensors import Tensors, write_tensors


class CommandError(Exception):
    """What the command refuses, in its own sentence."""


def _arguments(options):
    """arithmetic="bf16" becomes --arithmetic bf16; bits=True becomes --bits. A list gives the option several times, and so does a
    dictionary: gather={"*.o_proj.output": "sum"} becomes --gather '*.o_proj.output=sum'."""
    words = []
    for name, value in options.items():
        values = [f"{key}={how}" for key, how in value.items()] if isinstance(value, dict) else value
        for one in values if isinstance(values, (list, tuple)) else [values]:
            if one is not None and one is not False:
                words += ["--" + name.replace("_", "-")] + ([] if one is True else [str(one)])
    return words


def _run(command, *words, codes=(0,)):
    done = subprocess.run([command or find_command(), *map(os.fspath, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode not in codes:
        text = done.stderr.decode("utf-8", "replace").strip()
        try:  # with --json, the sentence is in an object
            text = json.loads(done.stdout)["error"]
        except (ValueError, KeyError, TypeError):
            pass
        raise CommandError(text.removeprefix("verbatim: "))
    return done.stdout


def _side(path):
    return ",".join(map(os.fspath, path)) if isinstance(path, (list, tuple)) else path


def diff(a, b, *, command=None, **options) -> dict:
    """Compares two dumps, or a dump with a model, and returns the object that `verbatim diff --json` prints. Its "verdict" is "identical",
    "rounding", "tie-flip", "structural" or another of `verbatim diff --help`. Options have the names of the command's; a list or a
    dictionary gives an option several times, as in gather={"*.o_proj.output": "sum"}. A list of dumps is one dump of several ranks.

        verbatim.diff("theirs.safetensors", "golden/tiny/v3", tokens="5,6,7", names="vllm", arithmetic="bf16")

    CommandError: what the command refuses."""
    return json.loads(_run(command, "diff", _side(a), _side(b), "--json", *_arguments(options), codes=(0, 3)))


def assert_matches(dump, model, *, ok=("identical", "rounding"), command=None, **options) -> dict:
    """For pytest: fails if the dump of another backend differs from the model by more than rounding, or if a pattern of `require` matches
    no value that was compared. The message names the first value and number that is wrong. Options are those of `diff`.

        verbatim.assert_matches("theirs.safetensors", "golden/tiny/v3", tokens="5,6,7", require="lm_head.output,*.mlp.gate.experts")"""
    told = diff(dump, model, command=command, **options)
    if told["verdict"] not in ok or told.get("required_missing"):
        raise AssertionError(_message(told))
    return told


def _operators(told):
    """Lines about the operators that are wrong or biased on the dump's own inputs."""
    for one in (told.get("local_a") or {}).get("operators", ()):
        if one["verdict"] in ("structural", "biased"):
            at = one.get("at") or {}
            place = f"index {at.get('index')}, column {at.get('column')} is {at.get('dump')}, expected {at.get('expected')}"
            where = (one.get("bias") or {}).get("where")
            yield f"  {one['tap']} ({one['operator']}) alone: {one['why'] or place}" + (f"; {where}" if where else "")


def _message(told):
    taps = [tap for tap in told["taps"] if tap["verdict"] == told["verdict"]]
    lines = [f"{told['a']['path']} and {told['b']['path']}: {told['verdict']}, {len(taps)} of {len(told['taps'])} values"]
    lines += [f"  {tap['name']}: {tap['why'] or tap['verdict']}" for tap in taps[:5]] if told["verdict"] not in ("identical", "rounding") else []
    lines += [f"  and {len(taps) - 5} more"] if len(lines) > 5 and len(taps) > 5 else []
    operators = list(_operators(told))
    lines += operators[:5] + [f"  and {len(operators) - 5} more operators"] * (len(operators) > 5)
    lines += [f"  required, and not compared: {pattern}" for pattern in told.get("required_missing", ())]
    return "\n".join(lines)


def reference(model, tokens, taps="*", *, command=None, **options) -> dict:
    """Computes tokens with the reference, in double precision, and returns the values whose names match the patterns `taps`, by name, as
    float64 arrays with one row for each token. Options are those of `verbatim dump`, such as convention="..."."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "reference.safetensors")
        _run(command, "dump", model, "--reference", "--tokens", ",".join(map(str, tokens)), "--taps", taps, "-o", path, *_arguments(options))
        with Tensors(path) as tensors:
            return {name: tensors[name] for name in tensors}


def replay(model, operator, inputs, *, command=None, **options) -> dict:
    """Computes one operator of the engine, or of the reference (reference=True), on the given inputs, and returns its results by name, as
    arrays. `inputs`: arrays by their complete names, or the path of a dump. `verbatim replay` lists the operators and their inputs.
    Options are those of `verbatim replay`, such as layer=1, precision="bf16" or temperature=0.7.

        verbatim.replay("DIR", "q_a_proj", {"model.layers.1.input_layernorm.output": x}, layer=1)["model.layers.1.self_attn.q_a_proj.output"]
        verbatim.replay("DIR", "sampling", {"lm_head.output": logits}, temperature=0.7, seed=3)["sampling.token"]"""
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        if isinstance(inputs, collections.abc.Mapping):
            write_tensors(path, inputs)
            inputs = path
        _run(command, "replay", model, operator, "--input", inputs, "-o", out, *_arguments(options))
        with Tensors(out) as tensors:
            return {name: tensors[name].copy() for name in tensors}


def score(model, texts, *, command=None, **options) -> list:
    """Log-probabilities of given tokens. `texts`: one object for each text, with the keys of `verbatim score --help`, such as
    {"prompt": [5, 6], "response": [7, 8]}. Returns one object for each text, in their order. Options are those of
    `verbatim score`, such as logprobs=5 or temperature=0.7."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "texts.jsonl"), os.path.join(folder, "scores.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(text) + "\n" for text in texts)
        _run(command, "score", model, "--file", path, "-o", out, *_arguments(options))
        with open(out, encoding="utf-8") as file:
            return sorted(map(json.loads, file), key=lambda line: line["index"])
