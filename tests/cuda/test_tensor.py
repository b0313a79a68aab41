#!/usr/bin/env python3
"""test_tensor.py VERBATIM [TEST]: precision tensor, on a GPU that is an emulator (tests/cuda/fake_driver.c). VERBATIM is build/tests/cuda/verbatim."""
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import command  # noqa: E402
from command import generated, logits_of, output, rms_distance  # noqa: E402
from running import run_tests  # noqa: E402

V3 = "golden/tiny/v3"
TALE = "golden/tale"
TENSOR = ["--precision", "tensor", "--device", "cuda"]
PROMPT = ["--tokens", "5,6,7,8,9,5,6,7"]


def refused(part, *arguments, code=2, **how):
    command.refused(part, *arguments, codes=[code], **how)


def what_cannot_be_used_is_said_in_one_sentence():
    generate = ["generate", V3, *PROMPT, "-n", "2"]
    refused("precision tensor computes on a GPU, and there is none; device cuda gives the model one", *generate, "--precision", "tensor")
    refused("there is none: the driver of NVIDIA GPUs does not work: no CUDA-capable device is detected", *generate, "--precision", "tensor", "--device", "auto", gpu="none")
    refused("an emulated GPU has none", *generate, *TENSOR, code=1, gpu="turing")
    refused("has no memory for passes", *generate, "--precision", "tensor", "--device", "auto", "--gpu-layers", "1", "-c", "40", code=1, gpu="memory:300000")
    refused("has no memory for 1 layers", *generate, "--precision", "tensor", "--device", "auto", "--gpu-layers", "1", code=1, gpu="memory:120000")
    refused("dump sees values that the CPU computes", "dump", V3, "--tokens", "5,6", "-n", "1", "-o", "/tmp/x", *TENSOR)
    refused("but the CPU computes prefill expanded", *generate, *TENSOR, "--prefill", "expanded")
    for command in (["conventions", V3, *PROMPT, "--device", "cuda"], ["inspect", V3]):
        refused("computes on the CPU, and --precision tensor is for a GPU", *command, "--precision", "tensor")
    with tempfile.TemporaryDirectory() as folder:
        refused("with forced or recorded routes", *generate, *TENSOR, "--routes-out", f"{folder}/r.json")
        output(*generate, *TENSOR, "--save-session", f"{folder}/s")
        refused("precision is tensor there and bf16 here", "generate", V3, "--session", f"{folder}/s", "-n", "2", "--precision", "bf16", "--device", "cuda")
        refused("tensor cores is an emulated GPU, layers from 0, attention from 0, output head there and an emulated GPU, layers from 2", "generate", V3, "--session",
                f"{folder}/s", "-n", "2", *TENSOR, "--gpu-layers", "1")


def what_the_cpu_would_compute_is_an_error():
    """A cache that does not fit, and forced routes in a batch: otherwise the bits would depend on the memory, and on neighbours."""
    few = ["verify", "golden/tiny/moonlight", *PROMPT, "-n", "12", *TENSOR, "--gpu-layers", "all", "-c", "240"]
    refused("which precision tensor wants there; offload fewer layers, or take a shorter context", *few, code=1, gpu="memory:3500000")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "texts")
        path.write_text(json.dumps({"prompt": [5, 6], "response": [7, 8]}) + "\n")
        score = ["score", V3, "--file", str(path), "-o", f"{folder}/out", *TENSOR]
        refused("with forced or recorded routes", *score, "--routes")
        refused("but the CPU computes prefill expanded", *score, "--prefill", "expanded")


def bench_and_verify_compute_what_generate_does():
    for only in ("pass", "prefill,generate"):
        said = json.loads(output("bench", "golden/tiny/moonlight", "--only", only, "--rounds", "1", "-n", "2", "-c", "18", "--threads", "1", *TENSOR, "--json"))
        assert all(row["seconds"] > 0 for row in said["rows"] if "seconds" in row) and said["rows"], said
    some = ["golden/tiny/moonlight", *PROMPT, "-n", "4", *TENSOR, "--gpu-layers", "2"]
    said = json.loads(output("verify", *some, "--json", "--draft", "ngram", "--threads", "1", "--isa", "scalar"))
    assert said["equal"] and {row["fingerprint"] for row in said["rows"]} == {generated(*some)["fingerprint"]}, said


def drafts_batches_chunks_and_threads_change_no_bit():
    for model, prompt, draft in [(V3, PROMPT, "mtp-eagle"), (TALE, ["--prompt", "Once upon a time"], "mtp-vanilla"), ("golden/tiny/glm5", PROMPT, "ngram")]:
        plain = generated(model, *prompt, "-n", "10", *TENSOR)
        others = [generated(model, *prompt, "-n", "10", *TENSOR, *more) for more in (["--draft", draft], ["--prefill-chunk", "3"], ["--threads", "1"])]
        assert {other["fingerprint"] for other in others} == {plain["fingerprint"]}, f"{model} {draft}: {plain['fingerprint']} {others}"
        assert generated(model, *prompt, "-n", "10", "--precision", "bf16", "--device", "cuda")["fingerprint"] != plain["fingerprint"], model
    said = json.loads(output("verify", V3, *PROMPT, "-n", "4", *TENSOR, "--json", "--draft", "mtp-eagle", "--draft-tokens", "2"))
    assert said["equal"] and len({row["gpu_layers"] for row in said["rows"]}) == 1 and len({row["chunk"] for row in said["rows"]}) > 1, said
    with tempfile.TemporaryDirectory() as folder:
        lines = [{"id": str(n), "tokens": list(range(5, 6 + n)), "max_tokens": 3 + n} for n in range(12)]
        pathlib.Path(folder, "prompts").write_text("".join(json.dumps(line) + "\n" for line in lines))
        output("generate", V3, "--prompts", f"{folder}/prompts", "-o", f"{folder}/out", "--max-sequences", "10", "--draft", "mtp-eagle", *TENSOR)
        for answer in map(json.loads, pathlib.Path(folder, "out").read_text().splitlines()):
            line = lines[int(answer["id"])]
            alone = generated(V3, "--tokens", ",".join(map(str, line["tokens"])), "-n", str(line["max_tokens"]), *TENSOR)
            assert answer["fingerprint"] == alone["fingerprint"], f"{answer} {alone}"


def it_goes_together_with_prefill_cublas_and_with_a_draft_model():
    for more, drafts in ((["--prefill", "cublas"], ["--draft", "mtp-eagle"]), ([], ["--draft", "draft-model", "--draft-model", V3])):
        plain, drafted = (generated(V3, *PROMPT, "-n", "6", *TENSOR, *more, *some)["fingerprint"] for some in ([], drafts))
        assert plain == drafted, f"{more} {drafts}: {plain} {drafted}"


def layers_on_the_cpu_compute_in_precision_bf16():
    bf16 = generated(V3, *PROMPT, "-n", "6", "--precision", "bf16")["fingerprint"]
    assert generated(V3, *PROMPT, "-n", "6", *TENSOR, "--gpu-layers", "0")["fingerprint"] == bf16
    some = {generated(V3, *PROMPT, "-n", "6", *TENSOR, "--gpu-layers", layers)["fingerprint"] for layers in ("1", "2", "all")}
    assert len(some) > 1, some  # some may be bf16: small differences often vanish where the next layer rounds its input to BF16


def logits_are_as_near_as_those_of_precision_bf16():
    """It rounds what precision bf16 rounds. So the logits are no farther from the exact ones, up to chance: 8 times the RMS difference, as in `diff --scores`."""
    with tempfile.TemporaryDirectory() as folder:
        of = {}
        for name, more in [("exact", []), ("bf16", ["--precision", "bf16"]), ("tensor", TENSOR)]:
            output("logits", TALE, *PROMPT, "-o", f"{folder}/{name}", *more)
            of[name] = logits_of(f"{folder}/{name}")
        cost, bound = rms_distance(of["tensor"], of["exact"]), rms_distance(of["bf16"], of["exact"])
        assert 0 < cost <= 8 * bound, f"{cost} and {bound}"
        losses = [json.loads(output("eval", TALE, *PROMPT, "--json", *more))["main_loss"] for more in ([], TENSOR)]
        assert 0 < abs(losses[0] - losses[1]) < 0.01 * losses[0], losses


TESTS = [what_cannot_be_used_is_said_in_one_sentence, what_the_cpu_would_compute_is_an_error, bench_and_verify_compute_what_generate_does, drafts_batches_chunks_and_threads_change_no_bit, it_goes_together_with_prefill_cublas_and_with_a_draft_model,
         layers_on_the_cpu_compute_in_precision_bf16, logits_are_as_near_as_those_of_precision_bf16]

if __name__ == "__main__":
    sys.exit(run_tests(TESTS))
