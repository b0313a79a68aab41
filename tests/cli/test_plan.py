#!/usr/bin/env python3
"""test_plan.py VERBATIM [TEST]: what `verbatim plan` prints, against the tensors of tiny checkpoints and against numbers derived here.

Needs nothing but Python. Shares, gathers and times are computed once more, from docs/RANKS.md."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

from running import run_tests

VERBATIM = sys.argv[1]
TINY = "golden/tiny/"
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}
BY_HEADS = ("q_b_proj", "q_proj", "kv_b_proj")
BY_ROWS = ("o_proj", "gate_proj", "up_proj", "down_proj", "lm_head", "head", "eh_proj")


def run(*arguments):
    return subprocess.run([VERBATIM, "plan", *arguments], capture_output=True, text=True, timeout=300)


def plan(*arguments):
    ran = run(*arguments, "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def config_of(path):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def tensors_of(path):
    out = {}
    for file in os.listdir(path):
        if file.endswith(".safetensors"):
            with open(os.path.join(path, file), "rb") as f:
                header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            out.update({n: (t["dtype"], t["shape"]) for n, t in header.items() if n[0] != "_"})
    return out


def share(weights, rank, count, unit):
    """The number of rows, of `count`, that a rank has. Shares consist of whole units."""
    units, total = -(-count // unit), sum(weights)
    ends = [min(count, units * sum(weights[:r]) // total * unit) for r in (rank, rank + 1)]
    return ends[1] - ends[0]


def head_unit(v):
    return next(u for u in (1, 2, 4, 8, 16, 32) if u * v % 32 == 0)


def memory(path, weights, rank, drafts):
    """Bytes of a rank's own rows, of the tensors that every rank has, and of all FP8 scales (of which a rank has a share)."""
    config, own, whole, scales = config_of(path), 0, 0, 0
    for name, (dtype, shape) in tensors_of(path).items():
        parts = name.split(".")
        layer = int(parts[2]) if parts[1] == "layers" else -1
        if layer > config["num_hidden_layers"] or (layer == config["num_hidden_layers"] and not drafts) or name.endswith("inv_freq"):
            continue
        size = math.prod(shape) * (4 if len(shape) == 1 else WIDTHS[dtype])
        matrix = parts[-2]
        if name.endswith("_scale_inv"):
            scales += size
        elif matrix in BY_HEADS:
            H = config["num_attention_heads"]
            own += size // H * share(weights, rank, H, head_unit(config["v_head_dim"]))
        elif matrix in BY_ROWS:
            own += size // shape[0] * share(weights, rank, shape[0], 32)
        else:
            whole += size
    return own, whole, scales


def memory_is_that_of_the_tensors():
    for tiny in sorted(os.listdir(TINY)):
        path = TINY + tiny
        if not os.path.isdir(path):
            continue
        config = config_of(path)
        modules = any(n.endswith("eh_proj.weight") for n in tensors_of(path))
        for weights in ([1], [1, 1], [2, 1, 1], [1] * 5):
            for drafts in range(1 + modules):
                p = plan(path, "--ranks-weights", ",".join(map(str, weights)), "--draft-tokens", str(drafts), "--context", "20")
                assert len(p["ranks"]) == len(weights) and not p["types_assumed"]
                for rank, found in enumerate(p["ranks"]):
                    own, whole, scales = memory(path, weights, rank, drafts)
                    assert own <= found["own_bytes"] and whole <= found["whole_bytes"], (path, weights, rank, own, whole, found)
                    assert found["own_bytes"] - own + found["whole_bytes"] - whole <= scales, (path, weights, rank, own, whole, found)
                    assert found["bytes"] == found["own_bytes"] + found["whole_bytes"] + found["cache_bytes"]
                    row = -(-(config["kv_lora_rank"] + config["qk_rope_head_dim"]) // 32) * 32 * 4  # padded to whole chunks
                    if not config.get("index_topk"):
                        assert found["cache_bytes"] == 20 * row * (config["num_hidden_layers"] + drafts), (path, found)


def chunks(n):
    return -(-n // 32) * 32


def bytes_per_token(path):
    c = config_of(path)
    total = 0
    for layer in range(c["num_hidden_layers"]):
        moe = c.get("n_routed_experts") and layer >= c.get("first_k_dense_replace", 0)
        h = c["num_experts_per_tok"] * chunks(c["moe_intermediate_size"]) + chunks((c.get("n_shared_experts") or 0) * c["moe_intermediate_size"]) if moe else \
            chunks(c["intermediate_size"])
        total += 4 * (chunks(c["num_attention_heads"] * c["v_head_dim"]) + 2 * c["hidden_size"] + h)
    return total


def gathers_are_those_of_the_layers():
    for tiny in ("v3", "v3-mtp3", "glm", "moonlight", "v2", "v32", "glm5"):
        p, c = plan(TINY + tiny, "--ranks", "3", "--context", "20"), config_of(TINY + tiny)
        assert p["layers"] == {"gathers": 4 * c["num_hidden_layers"], "gathered_bytes": bytes_per_token(TINY + tiny)}, (tiny, p["layers"])
        assert p["token"]["gathers"] == 4 * c["num_hidden_layers"] + 1
        assert p["token"]["gathered_bytes"] == bytes_per_token(TINY + tiny) + 4 * c["vocab_size"]
        alone = plan(TINY + tiny, "--context", "20")
        assert alone["token"]["gathers"] == alone["token"]["gathered_bytes"] == alone["token"]["received_bytes"] == 0
        modules = plan(TINY + tiny, "--ranks", "3", "--context", "20", "--draft-tokens", "3")
        assert modules["drafting"]["gathers"] == (0 if tiny in ("moonlight", "v2") else 3 * 6)  # eh_proj, the layer, the head
        assert modules["verifying"]["gathered_bytes"] == 4 * p["token"]["gathered_bytes"]


def published(directory, name, **keys):
    with open("golden/published/configs.json", encoding="utf-8") as f:
        config = {**json.load(f)[name], **keys}
    path = os.path.join(directory, name + " changed" if keys else name)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    return path


def near(a, b):
    return abs(a - b) <= 1e-8 * abs(b)


def times_follow_from_bytes_and_the_machine():
    with tempfile.TemporaryDirectory() as directory:
        v3 = published(directory, "DeepSeek-V3")
        p = plan(v3, "--ranks-weights", "2,1,1", "--bandwidth", "200,100,100", "--net", "10", "--latency", "30", "--draft-tokens", "2", "--acceptance", "0.8,0.5")
        slowest, t = 0, p["token"]
        assert [r["received_bytes"] * 4 for r in p["ranks"]] == [part * t["gathered_bytes"] for part in (2, 3, 3)], p["ranks"]
        for rank, found in enumerate(p["ranks"]):
            seconds = found["read_bytes"] / ([200, 100, 100][rank] * 1e9) + found["received_bytes"] / 10e9 + 245 * 30e-6
            slowest = max(slowest, seconds)
        assert near(t["seconds"], slowest) and near(t["tokens_per_second"], 1 / slowest) and t["bound_by"] == "memory", t
        assert near(t["seconds"], t["memory_seconds"] + t["network_seconds"] + t["latency_seconds"])
        r, v, d = p["round"], p["verifying"], p["drafting"]
        assert near(r["tokens"], 2.3) and near(r["tokens_per_second"], 2.3 / r["seconds"])
        assert r["gathers"] == 245 + 2 * 6 and r["read_bytes"] == v["read_bytes"] + d["read_bytes"]
        # 3 rows choose 256 (1 - (31/32)^3) experts in each of 58 layers; a row alone chooses 8
        experts = 58 * (256 * (1 - (31 / 32) ** 3) - 8) * 3 * 7168 * 2048 * (1 + 4 / 128 ** 2) / 2
        assert near(v["read_bytes"] - p["ranks"][v["rank"]]["read_bytes"], experts if v["rank"] == 0 else experts / 2), (v, experts)
        assert plan(v3, "--ranks", "4", "--bandwidth", "1000", "--net", "0.01", "--latency", "1")["token"]["bound_by"] == "network"
        assert plan(v3, "--ranks", "4", "--bandwidth", "1000", "--net", "100", "--latency", "500")["token"]["bound_by"] == "latency"
        one = plan(v3, "--bandwidth", "100", "--draft-tokens", "3", "--acceptance", "0.8")
        assert near(one["round"]["tokens"], 1 + 0.8 + 0.64 + 0.512) and one["token"]["network_seconds"] == one["token"]["latency_seconds"] == 0


def types_may_be_chosen_without_weights():
    with tempfile.TemporaryDirectory() as directory:
        assert set(plan(published(directory, "Kimi-K2.5"))["types"]) == {"BF16", "I4"}
        v3 = published(directory, "DeepSeek-V3")
        assert set(plan(v3)["types"]) == {"BF16", "F8_E4M3"} and set(plan(v3, "--weights", "bf16")["types"]) == {"BF16"}
        mlps = 3 * 3 * 7168 * 18432 + 58 * (257 * 3 * 7168 * 2048)  # numbers in the MLPs of V3, and in its routed experts
        routed = 58 * 256 * 3 * 7168 * 2048
        for weights, name, size in (("int4", "I4", routed * (1 / 2 + 2 / 32)), ("nvfp4", "F4", mlps * (1 / 2 + 1 / 16)), ("mxfp4", "F4", mlps * (1 / 2 + 1 / 32))):
            types = plan(v3, "--weights", weights)["types"]
            assert set(types) == {"BF16", name} and types[name] == size, (weights, types, size)
        assert set(plan(v3, "--weights", "int8")["types"]) == {"BF16", "I8"}
        quark = {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}
        for weights, said in (("nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}), ("mxfp4", {"quant_method": "quark", "global_quant_config": quark})):
            path = published(directory, "DeepSeek-V3", quantization_config=said)
            assert plan(path)["types"] == plan(v3, "--weights", weights)["types"], weights
        for weights, precision in (("q4_0", "f32"), ("fp8", "q4"), ("bf16", "q4")):  # the same weights in memory: stored so, or quantized when the model is opened
            types = plan(v3, "--weights", weights, "--precision", precision)["types"]
            assert set(types) == {"BF16", "Q4_0"} and types == plan(v3, "--precision", "q4")["types"], types
        text = run(v3, "--ranks", "4", "--precision", "bf16").stdout
        assert "types assumed" in text and "8.263" in text and "245" in text, text


def gguf_files_are_planned_as_they_store_weights():
    """`quantize` and --precision make the same blocks; but in GGUF files, routers and weights_proj of indexers are F32, not BF16."""
    with tempfile.TemporaryDirectory() as directory:
        for tiny, precision in (("glm5", "q8"), ("mistral4", "q4")):
            path = os.path.join(directory, tiny + ".gguf")
            subprocess.run([VERBATIM, "quantize", TINY + tiny, "--type", precision + "_0", "-o", path], check=True, capture_output=True)
            file, made = plan(path, "--ranks", "3"), plan(TINY + tiny, "--ranks", "3", "--precision", precision)
            assert not file["types_assumed"] and file["types"][precision.upper() + "_0"] == made["types"][precision.upper() + "_0"]
            for a, b in zip(file["ranks"], made["ranks"]):
                assert a["own_bytes"] == b["own_bytes"] and a["whole_bytes"] - b["whole_bytes"] == file["types"]["F32"] // 2, (a, b)
            assert file["token"]["gathered_bytes"] == made["token"]["gathered_bytes"] <= plan(TINY + tiny, "--ranks", "3")["token"]["gathered_bytes"]


MACHINES = {"A": "--ranks 2 --bandwidth 400 --net 50 --latency 5", "B": "--ranks 4 --bandwidth 400 --net 12.5 --latency 20",
            "C": "--ranks 16 --bandwidth 80 --net 1.25 --latency 60"}


def example(directory, model, options, machines):
    """a row of the table of examples"""
    p = plan(published(directory, model), *options.split(), *MACHINES[machines].split())
    drafts = plan(published(directory, model), *options.split(), *MACHINES[machines].split(), "--draft-tokens", "1", "--acceptance", "0.85")
    return [f"{max(r['bytes'] for r in p['ranks']) / 1e9:.0f}", f"{p['token']['tokens_per_second']:.1f}",
            f"{drafts['round']['tokens_per_second']:.1f}" if drafts["drafting"]["gathers"] else "-", p["token"]["bound_by"]]


def examples_of_the_documents_are_what_is_printed():
    with open("docs/RANKS.md", encoding="utf-8") as f:
        lines = f.read().split("\n")
    for name, options in MACHINES.items():
        assert any(line.startswith(f"- {name}: `{options}`") for line in lines), options
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.count("|") == 8]
    rows = [row for row in rows if row[2] in MACHINES]
    assert len(rows) >= 12
    with tempfile.TemporaryDirectory() as directory:
        for row in rows:
            wanted = example(directory, row[0], row[1].strip("`"), row[2])
            assert row[3:] == wanted, (row, wanted)


def wrong_options_are_refused_in_a_sentence():
    with tempfile.TemporaryDirectory() as directory:
        v3, tiny = published(directory, "DeepSeek-V3"), TINY + "v3"
        with open(os.path.join(directory, "no config"), "w", encoding="utf-8") as f:
            f.write("[1]")
        with open(os.path.join(directory, "gguf"), "wb") as f:
            f.write(b"GGUF")
        os.mkdir(os.path.join(directory, "empty"))
        timed = ["--ranks", "2", "--bandwidth", "1", "--net", "1", "--latency", "1"]
        for arguments, code, sentence in [
                ([tiny, "--ranks", "0"], 2, "--ranks is 0, wanted an integer from 1 to 1024"),
                ([tiny, "--ranks", "2", "--ranks-weights", "1,1,1"], 2, "--ranks is 2, and --ranks-weights has 3 numbers"),
                ([tiny, "--ranks-weights", "1,0"], 2, "--ranks-weights is 1,0, wanted numbers above 0"),
                ([tiny, "--ranks-weights", "1,"], 2, "--ranks-weights is 1,, wanted numbers above 0"),
                ([tiny, "--ranks-weights", "1,0.5"], 2, "--ranks-weights is 1,0.5, wanted integers of at most 1000000"),
                ([tiny, "--ranks-weights", ",".join(["1"] * 1025)], 2, "wanted at most 1024 numbers"),
                ([tiny, "--bandwidth", "many"], 2, "--bandwidth is many, wanted numbers above 0"),
                ([tiny, "--bandwidth", "inf"], 2, "--bandwidth is inf, wanted numbers above 0"),
                ([tiny, "--bandwidth", "1,2"], 2, "--bandwidth has 2 numbers, wanted one, or one for each of 1 ranks"),
                ([tiny, "--net", "1"], 2, "--net wants --bandwidth: without it, no times are computed"),
                ([tiny, "--latency", "0"], 2, "--latency wants --bandwidth"),
                ([tiny, "--acceptance", "0.5"], 2, "--acceptance wants --bandwidth"),
                ([tiny, "--ranks", "2", "--bandwidth", "1"], 2, "--net is missing or 0: 2 ranks wait for each other's bytes"),
                ([tiny, "--ranks", "2", "--bandwidth", "1", "--net", "1"], 2, "--latency is missing or 0"),
                ([tiny, *timed, "--draft-tokens", "1"], 2, "--draft-tokens wants --acceptance"),
                ([tiny, *timed, "--draft-tokens", "auto"], 2, "--draft-tokens is auto, wanted an integer from 0 to 15"),
                ([tiny, *timed, "--draft-tokens", "3", "--acceptance", "0.5,0.4"], 2, "--draft-tokens is 3, and --acceptance has 2 numbers"),
                ([tiny, *timed, "--acceptance", "0.5,0.6"], 2, "wanted numbers of at most 1, none larger than the one before"),
                ([tiny, *timed, "--acceptance", "1.1"], 2, "wanted numbers of at most 1"),
                ([tiny, "--context", "1000000"], 2, "--context is 1000000, max_position_embeddings is "),
                ([tiny, "--weights", "q4_0"], 2, "its weights have types, and the type q4_0 is given"),
                ([v3, "--weights", "q5"], 2, "the type of the weights is q5, wanted f32, bf16, fp8, int8, int4, nvfp4, mxfp4, q8_0 or q4_0"),
                ([v3, "--precision", "f8"], 2, "f8"),
                ([v3, "--cache-type", "q4"], 2, "q4"),
                ([os.path.join(directory, "no config")], 1, "it is not an object"),
                ([os.path.join(directory, "gguf")], 1, "gguf"),
                ([os.path.join(directory, "empty")], 1, "config.json"),
                ([os.path.join(directory, "nothing")], 1, "nothing"),
                ([], 2, "MODEL is missing")]:
            ran = run(*arguments)
            assert ran.returncode == code and sentence in ran.stderr and ran.stderr.count("\n") == 1 and not ran.stdout, (arguments, ran.returncode, ran.stderr)


if __name__ == "__main__":
    sys.exit(run_tests([memory_is_that_of_the_tensors, gathers_are_those_of_the_layers, times_follow_from_bytes_and_the_machine,
                        types_may_be_chosen_without_weights, gguf_files_are_planned_as_they_store_weights,
                        examples_of_the_documents_are_what_is_printed, wrong_options_are_refused_in_a_sentence]))
