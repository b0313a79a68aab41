#!/usr/bin/env python3
"""test_cublas.py VERBATIM [TEST]: the command with --prefill cublas, on a GPU that is an emulator, whose library multiplies in plain C.

VERBATIM is build/tests/cuda/verbatim; beside it are the driver and the library that are none (fake_driver.c, fake_cublas.c). The library ends the program if a
handle was not destroyed."""
import ctypes.util
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import command  # noqa: E402
from command import HERE, generated, logits_of, output, rms_distance, run  # noqa: E402
from running import run_tests  # noqa: E402

LIBRARIES = ["libcublas.so.13", "libcublas.so.12", "libcublas.so.11"]
TALE, V3 = "golden/tale", "golden/tiny/v3-mtp3"
CUBLAS = ["--device", "cuda", "--prefill", "cublas"]
PROMPT = ["--tokens", ",".join(str(5 + 7 * i % 50) for i in range(40))]


def refused(part, *arguments, code=1, **how):
    command.refused(part, *arguments, codes=[code], **how)


def what_cannot_be_used_is_said_in_one_sentence():
    generate = ["generate", TALE, "--tokens", "5,6", "-n", "2"]
    refused("prefill cublas computes on a GPU, and the model has none; --device cuda gives it one", *generate, "--prefill", "cublas", code=2)
    refused("prefill chunk is 64; with prefill cublas it is 512", *generate, *CUBLAS, "--prefill-chunk", "64", code=2)
    refused("unknown prefill cubla; known are contract, expanded, onednn and cublas", *generate, "--prefill", "cubla", code=2)
    refused("libcublas.so.13 does not work: the library was not initialized", *generate, *CUBLAS, cublas="create")
    refused("an emulated GPU has no memory for cuBLAS", *generate, *CUBLAS, "-c", "4", gpu="memory:40000000")
    refused("verbatim score does not have --prefill cublas", "score", TALE, "--file", "/dev/null", "-o", "/tmp/x", *CUBLAS, code=2)
    refused("--prompts and --prefill cublas do not go together", "generate", TALE, "--prompts", "/dev/null", *CUBLAS, code=2)
    refused("dump sees values that the CPU computes", "dump", TALE, "--tokens", "5,6", "-n", "1", "-o", "/tmp/x", *CUBLAS, code=2)
    with tempfile.TemporaryDirectory() as folder:
        refused("with forced or recorded routes", *generate, *CUBLAS, "--routes-out", f"{folder}/r.json", code=2)
        os.symlink(f"{HERE}/libcuda.so.1", f"{folder}/libcuda.so.1")
        if not any(ctypes.util.find_library("cublas") or glob.glob(f"/usr/local/cuda*/lib64/{name}") for name in LIBRARIES):
            refused("cuBLAS is not installed: libcublas.so.13, .12 and .11 are missing", *generate, *CUBLAS, libraries=folder)
        for name in LIBRARIES:  # some other library with this name
            os.symlink(f"{HERE}/libcuda.so.1", f"{folder}/{name}")
        refused("libcublas.so.11 is too old: it has no function cublasCreate_v2", *generate, *CUBLAS, libraries=folder)
        os.remove(f"{folder}/{LIBRARIES[1]}")
        shutil.copy(f"{HERE}/{LIBRARIES[0]}", f"{folder}/{LIBRARIES[1]}")  # an older one that works
        assert generated(*generate[1:], *CUBLAS, libraries=folder)["fingerprint"] == generated(*generate[1:], *CUBLAS)["fingerprint"]


def a_product_that_fails_ends_the_run():
    """In the first and in a later layer, in experts, and in the rows of a module. Never a token from garbage."""
    arguments = [V3, *PROMPT, "-n", "3", "--draft", "mtp-eagle"]
    whole = output("generate", *arguments, *CUBLAS, cublas="gemm:100000")
    for product in [0, 5, 20, 40]:
        ran = run("generate", *arguments, *CUBLAS, cublas=f"gemm:{product}")
        assert ran.returncode == 1 and "cuBLAS failed: the function failed to launch on the GPU" in ran.stderr, f"product {product}: {ran.returncode} {ran.stderr}"
        assert whole.startswith(ran.stdout.rstrip("\n")), f"product {product}: {ran.stdout!r}"


def drafts_change_no_bit():
    """A prompt of two chunks, of 512 rows and of 8."""
    long = ["--tokens", ",".join(str(5 + 7 * i % 50) for i in range(520))]
    for model, prompt, draft in [(V3, PROMPT, "mtp-eagle"), (TALE, long, "mtp-vanilla"), (TALE, PROMPT, "ngram")]:
        plain = generated(model, *prompt, "-n", "8", *CUBLAS)
        drafted = generated(model, *prompt, "-n", "8", *CUBLAS, "--draft", draft)
        contract = generated(model, *prompt, "-n", "8")
        assert plain["fingerprint"] == drafted["fingerprint"] != contract["fingerprint"], f"{model} {draft}: {plain} {drafted} {contract}"
    said = json.loads(output("verify", V3, *PROMPT, "-n", "4", *CUBLAS, "--json", "--draft", "mtp-eagle", "--draft-tokens", "2"))
    assert said["equal"] and said["prefill"] == "cublas", said
    assert len({row["gpu_layers"] for row in said["rows"]}) == 1 and {row["chunk"] for row in said["rows"]} == {512}, said
    said = output("verify", V3, "--tokens", "5,6", "-n", "2", *CUBLAS, "--draft", "mtp-eagle", "--draft-tokens", "1", "--threads", "1")
    assert "identical, bit for bit; with --prefill cublas chunks are 512 and were not varied; the bits depend on --gpu-layers, which were not varied" in said, said


def only_the_prompt_is_computed_otherwise():
    """A prompt of one token has a row, which the library computes; the tokens after it follow from its bits alone. With all layers on the CPU, nothing changes."""
    contract = generated(V3, *PROMPT, "-n", "6")["fingerprint"]
    assert generated(V3, *PROMPT, "-n", "6", *CUBLAS, "--gpu-layers", "0")["fingerprint"] == contract
    some = {generated(V3, *PROMPT, "-n", "6", *CUBLAS, "--gpu-layers", layers)["fingerprint"] for layers in ("1", "2", "all")}
    assert len(some) > 1 and contract not in some, some
    dense = [TALE, *PROMPT, "-n", "4", "--precision", "q8"]  # without the experts, all matrices on the GPU are quantized
    assert generated(*dense, *CUBLAS, "--gpu-experts", "off")["fingerprint"] == generated(*dense)["fingerprint"]
    quantized = ["golden/gguf/tiny-quantized.gguf", "--tokens", "5,6,7,8,9,5,6,7"]  # all its matrices are
    assert generated(*quantized, "-n", "4", *CUBLAS)["fingerprint"] == generated(*quantized, "-n", "4")["fingerprint"]


def logits_are_as_near_as_those_of_precision_bf16():
    """Each rounding of --prefill cublas is one of --precision bf16 too, if the weights are BF16: the inputs of linear layers are rounded to BF16. It has fewer of
    them (W_uk, W_uv, the head). So the logits are no farther from the exact ones, up to chance: 8 times the RMS difference, as in `verbatim diff --scores`."""
    with tempfile.TemporaryDirectory() as folder:
        of = {}
        for name, more in [("exact", []), ("bf16", ["--precision", "bf16"]), ("cublas", CUBLAS)]:
            output("logits", TALE, *PROMPT, "-o", f"{folder}/{name}", *more)
            of[name] = logits_of(f"{folder}/{name}")
        cost, bound = rms_distance(of["cublas"], of["exact"]), rms_distance(of["bf16"], of["exact"])
        assert 0 < cost <= 8 * bound, f"{cost} and {bound}"
        losses = [json.loads(output("eval", TALE, *PROMPT, "--json", *more))["main_loss"] for more in ([], CUBLAS)]
        assert 0 < abs(losses[0] - losses[1]) < 0.01 * losses[0], losses
    for model in glob.glob("golden/tiny/*"):  # all kinds of layers and of weights
        if os.path.isdir(model):
            tokens = generated(model, "--tokens", "5,6,7,8,9", "-n", "2", *CUBLAS)["tokens"]
            assert len(tokens) == 2, model


def a_session_file_says_how_its_prompt_was_computed():
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/session"
        whole = generated(V3, *PROMPT, "-n", "9", *CUBLAS)
        first = generated(V3, *PROMPT, "-n", "4", *CUBLAS, "--save-session", file)
        for again in (CUBLAS, [], ["--device", "cuda"]):  # generated tokens need no library
            shutil.copy(file, f"{file}.copy")
            assert first["tokens"] + generated(V3, "--session", f"{file}.copy", "-n", "5", *again)["tokens"] == whole["tokens"], again
        output("generate", V3, *PROMPT, "-n", "0", *CUBLAS, "--save-session", f"{file}.0")
        refused("was saved with prefill cublas, with rows of the prompt still due; here it is contract", "generate", V3, "--session", f"{file}.0", "-n", "2", code=2)
        assert generated(V3, "--session", f"{file}.0", "-n", "9", *CUBLAS)["fingerprint"] == whole["fingerprint"]


def functions_and_numbers_are_those_of_the_header():
    folders = [folder for folder in ["/usr/include", *sorted(glob.glob("/usr/local/cuda*/include"))] if os.path.exists(f"{folder}/cublas_v2.h")]
    if not folders:
        print("skipped: there is no cublas_v2.h")
    for folder in folders:
        ran = subprocess.run(["cc", "-std=c11", "-fsyntax-only", "-iquote", ".", "-isystem", folder, "tests/cuda/cublas_header.c"], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr


TESTS = [what_cannot_be_used_is_said_in_one_sentence, a_product_that_fails_ends_the_run, drafts_change_no_bit, only_the_prompt_is_computed_otherwise,
         logits_are_as_near_as_those_of_precision_bf16, a_session_file_says_how_its_prompt_was_computed, functions_and_numbers_are_those_of_the_header]

if __name__ == "__main__":
    sys.exit(run_tests(TESTS))
