#!/usr/bin/env python3
"""test_device.py VERBATIM [TEST]: the command with --device cuda, on a GPU that is an emulator (tests/cuda/fake_driver.c).

VERBATIM is build/tests/cuda/verbatim, beside the fake driver libcuda.so.1. What it prints is compared with what it prints without a GPU."""
import contextlib
import ctypes.util
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import command  # noqa: E402
from command import HERE, VERBATIM, output, run  # noqa: E402
from running import run_tests  # noqa: E402

TALE = "golden/tale"
REAL_DRIVER = ctypes.util.find_library("cuda") is not None
PROMPT = ["--tokens", "5,6,7,8,9,5,6,7"]
FEW = ["--rounds", "1", "-n", "2", "-c", "18", "--threads", "1", "--device", "cuda"]


def refused(part, *arguments, **how):
    command.refused(part, "generate", "golden/tiny/v3", *PROMPT, "-n", "4", *arguments, codes=[1, 2], **how)


def what_cannot_be_used_is_said_in_one_sentence():
    if not REAL_DRIVER:
        refused("libcuda.so.1 is missing", "--device", "cuda", libraries="")
    refused("no CUDA-capable device", "--device", "cuda", gpu="none")
    refused("cannot run the kernels: the provided PTX was compiled with an unsupported toolchain. (its driver is for CUDA 11.4)", "--device", "cuda", gpu="old")
    refused("there is no GPU number 3; the driver has 1", "--device", "cuda:3")
    refused("unknown device cudas", "--device", "cudas")
    refused("--gpu-layers is x, wanted a number, all or auto", "--device", "cuda", "--gpu-layers", "x")
    refused("--gpu-experts is maybe, wanted on or off", "--device", "cuda", "--gpu-experts", "maybe")
    refused("--gpu-layers is for --device cuda", "--gpu-layers", "3")
    refused("has no memory for", "--device", "cuda", "--gpu-layers", "all", gpu="memory:20000")


def auto_goes_on_without_a_gpu():
    wanted = json.loads(output("generate", "golden/tiny/v3", *PROMPT, "-n", "4", "--json"))["fingerprint"]
    for gpu, driver in [("none", True), (None, True)] if REAL_DRIVER else [("none", True), (None, False), (None, True)]:
        ran = run("generate", "golden/tiny/v3", *PROMPT, "-n", "4", "--json", "--device", "auto", gpu=gpu, libraries=HERE if driver else "")
        assert ran.returncode == 0 and json.loads(ran.stdout)["fingerprint"] == wanted, ran.stderr
        assert ("the CPU computes everything" in ran.stderr) == (gpu == "none" or not driver), ran.stderr


def memory_that_others_have_taken_makes_the_plan_smaller():
    """The driver says that 4 GB are free, and then gives less. What remains is for the CPU."""
    arguments, layers = ["generate", TALE, "--tokens", "5,6", "--prefill-chunk", "2", "-n", "2", "-c", "8", "--json"], []
    wanted = json.loads(output(*arguments))["fingerprint"]
    for given in 24000000, 16000000, 10000000, 3000000:
        ran = run(*arguments, "--device", "cuda", "--stats", gpu=f"taken:{given}")
        assert ran.returncode == 0 and json.loads(ran.stdout)["fingerprint"] == wanted, f"{given}: {ran.stdout} {ran.stderr}"
        layers.append(int(re.search(r"(\d+) of 16 layers", ran.stderr)[1]))
    assert layers == sorted(layers, reverse=True) and layers[0] == 16 and layers[-1] == 0 and len(set(layers)) > 2, layers
    refused("has no memory for", "--device", "cuda", "--gpu-layers", "all", gpu="taken:20000")
    ran = run(*arguments, "--device", "auto", "--gpu-layers", "all", gpu="taken:20000")
    assert ran.returncode == 0 and json.loads(ran.stdout)["fingerprint"] == wanted, ran.stderr
    assert "the CPU computes everything" in ran.stderr and "has no memory for" in ran.stderr, ran.stderr


def a_session_that_does_not_fit_is_computed_by_the_cpu_with_auto():
    """The weights fit, and the lists of cache rows of passes of 512 rows over 1280 tokens (2.6 MB) do not."""
    arguments = ["generate", "golden/tiny/v3", *PROMPT, "-n", "4", "-c", "1280", "--prefill-chunk", "512", "--json", "--gpu-layers", "all"]
    wanted = json.loads(output(*arguments[:-2]))["fingerprint"]
    refused("has no memory for passes of 512 rows", *arguments[6:10], *arguments[11:], "--device", "cuda", gpu="memory:2000000")
    for memory, says in [(2000000, True), (64000000, False)]:
        ran = run(*arguments, "--device", "auto", "--stats", gpu=f"memory:{memory}")
        assert ran.returncode == 0 and json.loads(ran.stdout)["fingerprint"] == wanted, ran.stderr
        assert "layers, attention of" in ran.stderr and ("had no memory for the cache or the passes" in ran.stderr) == says, f"{memory}: {ran.stderr}"
    ran = run(*arguments, "--device", "auto", "--prefill", "cublas", gpu="memory:2000000")
    assert ran.returncode == 1 and "it has no memory for the passes of this session" in json.loads(ran.stdout)["error"], ran.stdout


def a_gpu_that_fails_ends_the_run():
    """At each of some launches: loading, the prompt, a draft, a token. Never a token from garbage."""
    arguments = ["generate", "golden/tiny/v3", *PROMPT, "-n", "6", "--draft", "mtp-eagle"]
    whole = output(*arguments)
    for launch in [0, 1, 7, 30, 100, 200]:
        ran = run(*arguments, "--device", "cuda", gpu=f"launch:{launch}")
        assert ran.returncode == 1 and "failed: unspecified launch failure" in ran.stderr, f"launch {launch}: {ran.returncode} {ran.stderr}"
        assert whole.startswith(ran.stdout.rstrip("\n")), f"launch {launch}: {ran.stdout!r} is no beginning of {whole!r}"


def generate_has_the_bits_of_the_cpu():
    for model, more in [("golden/tiny/v3-mtp3", []), ("golden/tiny/glm5", []), ("golden/gguf/tiny-quantized.gguf", []), (TALE, ["--precision", "q8"])]:
        wanted = json.loads(output("generate", model, *PROMPT, "-n", "10", "--json", *more))
        for split in [["all"], ["1"], ["auto", "--gpu-experts", "off"]]:
            got = json.loads(output("generate", model, *PROMPT, "-n", "10", "--json", *more, "--device", "cuda", "--gpu-layers", *split))
            assert got["fingerprint"] == wanted["fingerprint"] and got["tokens"] == wanted["tokens"], f"{model} {split}"


def a_session_moves_between_cpu_and_gpu():
    """v32 sees more tokens than its indexer keeps, so it also needs the index cache of the file."""
    cases = [(["--device", "cuda"], []), ([], ["--device", "cuda"]), (["--device", "cuda", "--gpu-layers", "1"], ["--device", "cuda"])]
    with tempfile.TemporaryDirectory() as folder:
        for model, prompt in [("golden/tiny/v3", PROMPT), ("golden/tiny/v32", ["--tokens", PROMPT[1] + ",7,8,9,10,11,12,13,14,15"])]:
            for save, load in cases:
                file, wanted_file = f"{folder}/session", f"{folder}/wanted"
                output("generate", model, *prompt, "-n", "5", "--save-session", file, "--json", *save)
                got = json.loads(output("generate", model, "--session", file, "-n", "5", "--json", *load))
                output("generate", model, *prompt, "-n", "5", "--save-session", wanted_file, "--json")
                wanted = json.loads(output("generate", model, "--session", wanted_file, "-n", "5", "--json"))
                assert pathlib.Path(file).read_bytes() == pathlib.Path(wanted_file).read_bytes(), "the files differ"
                assert got["fingerprint"] == wanted["fingerprint"]
                os.remove(file)
                os.remove(wanted_file)


def a_batch_has_the_bits_of_the_cpu():
    with tempfile.TemporaryDirectory() as folder:
        lines = [{"tokens": [5, 6, 7, 8][:n], "n": 4 + n} for n in (1, 2, 3, 4)]
        prompts = pathlib.Path(folder, "prompts")
        prompts.write_text("".join(json.dumps({"id": str(i), "tokens": line["tokens"], "max_tokens": line["n"]}) + "\n" for i, line in enumerate(lines)))
        answers = []
        for i, device in enumerate([[], ["--device", "cuda"]]):
            out = f"{folder}/out{i}"
            output("generate", "golden/tiny/v3", "--prompts", str(prompts), "-o", out, "--max-sequences", "3", "--draft", "mtp-eagle", *device)
            answers.append(sorted(json.dumps({k: v for k, v in json.loads(line).items() if k in ("id", "fingerprint", "tokens")}, sort_keys=True)
                                  for line in pathlib.Path(out).read_text().splitlines()))
        assert len(answers[0]) == len(lines) and answers[0] == answers[1], answers


def a_draft_model_on_a_gpu_changes_no_bit():
    wanted = json.loads(output("generate", "golden/tiny/v3", *PROMPT, "-n", "10", "--json"))
    drafted = ["--draft", "draft-model", "--draft-model", "golden/tiny/v3", "--device", "cuda"]
    for split in [[], ["--draft-gpu-layers", "1"], ["--draft-gpu-layers", "0", "--gpu-layers", "1"]]:
        ran = run("generate", "golden/tiny/v3", *PROMPT, "-n", "10", "--json", "--stats", *drafted, *split)
        got = json.loads(ran.stdout)
        assert got["fingerprint"] == wanted["fingerprint"] and got["stats"]["accepted"] == got["stats"]["drafted"] > 0, f"{split}: {ran.stdout}"
        layers = {"0": "of the draft model, 0 of 3 layers", "1": "of the draft model, 1 of 3 layers"}.get(split[1] if split else "", "of the draft model, 3 of 3 layers")
        assert layers in ran.stderr, ran.stderr
    for launch in (20, 60, 110):
        ran = run("generate", "golden/tiny/v3", *PROMPT, "-n", "10", *drafted, "--gpu-layers", "0", gpu=f"launch:{launch}")
        assert ran.returncode == 0 and ran.stdout.strip() == ",".join(map(str, wanted["tokens"])), f"launch {launch}: {ran.returncode} {ran.stdout} {ran.stderr}"
        assert "an emulated GPU failed, or had no memory for a session of the draft model: the CPU computed it then" in ran.stderr, ran.stderr
    ran = run("generate", "golden/tiny/v3", *PROMPT, "-n", "10", *drafted[:4], "--device", "auto", "--gpu-layers", "0", gpu="memory:400000")
    assert ran.returncode == 0 and "the draft model: the CPU computed it then" in ran.stderr, ran.stderr
    refused("--draft-gpu-layers is x, wanted a number, all or auto", *drafted, "--draft-gpu-layers", "x")
    refused("--draft-gpu-layers is for --device cuda", *drafted[:4], "--draft-gpu-layers", "1")


def a_server_whose_gpu_fails_ends():
    """It cannot compute anything any more, and must not try again and again."""
    environment = {**os.environ, "LD_LIBRARY_PATH": HERE, "FAKE_GPU": "launch:60"}
    server = subprocess.Popen([VERBATIM, "serve", "golden/tiny/v3", "--device", "cuda", "-c", "100", "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        address = re.search(r"listening on (\S+)", server.stderr.readline())[1]
        request = urllib.request.Request(f"{address}/v1/completions", b'{"prompt": [5, 6, 7, 8], "max_tokens": 50}', {"Content-Type": "application/json"})
        with contextlib.suppress(OSError, http.client.HTTPException):  # the connection ends
            urllib.request.urlopen(request, timeout=120).read()
        said = server.communicate(timeout=120)[1]
        assert server.returncode == 1 and "failed: unspecified launch failure; the server ends" in said, f"{server.returncode} {said}"
    finally:
        server.kill()


def verify_compares_splits():
    said = json.loads(output("verify", "golden/tiny/v3", "--tokens", "5,6,7", "-n", "3", "--json", "--device", "cuda", "--draft", "mtp-eagle", "--draft-tokens", "2",
                             "--threads", "1", "--isa", "scalar", "--prefill-chunk", "64"))
    layers = {row["gpu_layers"] for row in said["rows"]}
    assert said["equal"] and {0, 1} < layers and len(layers) >= 3, said


def dump_on_a_gpu_is_that_of_the_cpu():
    with tempfile.TemporaryDirectory() as folder:
        for name, device in [("cpu", []), ("gpu", ["--device", "cuda"])]:
            output("dump", "golden/tiny/v3", *PROMPT, "-n", "3", "-o", f"{folder}/{name}", *device)
        output("diff", f"{folder}/cpu", f"{folder}/gpu", "--bits")


def bench_counts_what_the_gpu_reads():
    """Its times are those of the emulator; what is printed must be there, and add up."""

    def about(a, b):
        return abs(a - b) < 1e-6 * abs(b)

    def rows(only, layers, **how):
        said = json.loads(output("bench", "golden/tiny/moonlight", "--only", only, *FEW, "--json", "--gpu-layers", layers, **how))
        return said["gpu"], {row["name"]: row for row in said["rows"]}

    gpu, whole = rows("pass,prefill,generate", "all")
    assert gpu == {"name": "an emulated GPU", "layers": gpu["layers"], "heads": True, "peak_bytes_per_second": 1024e9}, gpu
    assert whole["GPU, copying in its memory"]["per_second"] > 0 and not any("expanded" in name for name in whole), set(whole)
    for row in [whole["1 row after 16"], whole["none"]]:
        assert row["gpu_bytes"] == row["bytes"] and row["of_read"] is None and row["of_fma"] is None, row
        assert about(row["gpu_bytes_per_second"] * row["seconds"], row["gpu_bytes"]) and about(row["of_gpu_peak"] * 1024e9, row["gpu_bytes_per_second"]), row
    _, cpu = rows("pass", "0")
    gpu, part = rows("pass", "1", gpu="silent")
    assert gpu["layers"] == 1 and gpu["peak_bytes_per_second"] is None, gpu
    cpu, part = cpu["1 row after 16"], part["1 row after 16"]
    assert cpu["gpu_bytes"] is None and cpu["of_fma"] > 0 and cpu["bytes"] == part["bytes"] > part["gpu_bytes"] > 0, (cpu, part)
    assert part["of_gpu_peak"] is None and part["of_read"] > 0 and part["of_gpu_copy"] > 0 and about(part["of_ceiling"], part["of_read"] + part["of_gpu_copy"]), part
    text = output("bench", "golden/tiny/moonlight", "--only", "pass", *FEW, gpu="silent")
    assert "its driver does not say the peak of its memory" in text and "% of copying" in text and "% of its peak" not in text, text
    ran = run("bench", "golden/tiny/v3", "--plan", "--device", "cuda")
    assert ran.returncode == 2 and "it does not fit with --device cuda" in ran.stderr, ran.stderr


TESTS = [what_cannot_be_used_is_said_in_one_sentence, auto_goes_on_without_a_gpu, memory_that_others_have_taken_makes_the_plan_smaller,
         a_session_that_does_not_fit_is_computed_by_the_cpu_with_auto, a_gpu_that_fails_ends_the_run, generate_has_the_bits_of_the_cpu,
         a_session_moves_between_cpu_and_gpu, a_batch_has_the_bits_of_the_cpu, a_draft_model_on_a_gpu_changes_no_bit, a_server_whose_gpu_fails_ends, verify_compares_splits, dump_on_a_gpu_is_that_of_the_cpu, bench_counts_what_the_gpu_reads]

if __name__ == "__main__":
    sys.exit(run_tests(TESTS))
