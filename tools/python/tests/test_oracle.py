"""diff, assert_matches, reference, replay and score: what the commands print, as objects."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
import verbatim
from conftest import BUILD, ROOT

COMMAND = str(BUILD / "verbatim")
V3 = ROOT / "golden" / "tiny" / "v3"
TOKENS = [5, 6, 7, 70, 9]
IDS = "5,6,7,70,9"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """A dump of the engine, and the same with one wrong number."""
    folder = tmp_path_factory.mktemp("dumps")
    subprocess.run([COMMAND, "dump", V3, "--tokens", IDS, "-o", folder / "a.safetensors"], check=True, stderr=subprocess.DEVNULL)
    with verbatim.Tensors(folder / "a.safetensors") as tensors:
        values = {name: tensors[name].copy() for name in tensors}
    values["model.layers.1.self_attn.o_proj.output"][2, 3] += 1
    verbatim.write_tensors(folder / "b.safetensors", values)
    return folder


def test_diff_is_what_the_command_prints(dumps):
    told = verbatim.diff(dumps / "a.safetensors", V3, reference=True, runs=2, command=COMMAND)
    text = subprocess.run([COMMAND, "diff", dumps / "a.safetensors", V3, "--reference", "--runs", "2", "--json"], stdout=subprocess.PIPE).stdout
    assert told == json.loads(text) and told["verdict"] == "rounding"
    assert verbatim.diff(dumps / "a.safetensors", V3, runs=0, command=COMMAND)["verdict"] == "identical"
    with pytest.raises(verbatim.CommandError, match="nothing: "):
        verbatim.diff("nothing", V3, command=COMMAND)


def test_assert_matches_names_what_is_wrong(dumps):
    assert verbatim.assert_matches(dumps / "a.safetensors", V3, require="lm_head.output,*.gate.experts", command=COMMAND)["verdict"] == "identical"
    with pytest.raises(AssertionError, match=r"structural.*\n  model.layers.1.self_attn.o_proj.output: index 2, column 3 is 1 away"):
        verbatim.assert_matches(dumps / "b.safetensors", V3, tokens=IDS, command=COMMAND)
    with pytest.raises(AssertionError, match=r"required, and not compared: \*.nothing"):
        verbatim.assert_matches(dumps / "a.safetensors", V3, require="lm_head.output,*.nothing", command=COMMAND)
    with pytest.raises(AssertionError, match="rounding, "):
        verbatim.assert_matches(dumps / "a.safetensors", V3, reference=True, ok=("identical",), command=COMMAND)


def test_assert_matches_names_operators_that_are_biased():
    dump, glm = ROOT / "golden" / "truth" / "glm.hf-dump-bfloat16.safetensors", ROOT / "golden" / "tiny" / "glm"
    with pytest.raises(AssertionError, match=r"biased.*\n(.*\n)*  model.layers.0.self_attn.kv_a_layernorm.output \(kv_a_layernorm\) alone: the slope.* of 7"):
        verbatim.assert_matches(dump, glm, convention="latent-eps=config", local=True, command=COMMAND)


def test_ranks_are_joined(dumps, tmp_path):
    with verbatim.Tensors(dumps / "a.safetensors") as tensors:
        values = {name: tensors[name].copy() for name in tensors if name.endswith(("o_proj.output", "head.output"))}
    for rank in range(2):
        part = {name: x[:, rank::2] if "head" in name else x * np.float32(rank) for name, x in values.items()}
        verbatim.write_tensors(tmp_path / f"rank{rank}.safetensors", part)
    ranks = [tmp_path / "rank0.safetensors", tmp_path / "rank1.safetensors"]
    options = {"tokens": IDS, "taps": ["*.o_proj.output"], "command": COMMAND}
    told = verbatim.assert_matches(tmp_path, V3, gather={"*.o_proj.output": "sum"}, **options)
    assert told == verbatim.diff(tmp_path, V3, gather=["*.o_proj.output=sum"], **options)
    assert verbatim.diff(ranks, V3, gather={"*.o_proj.output": "rank:1"}, layers="0-1", **options)["verdict"] == "identical"
    with pytest.raises(AssertionError, match="structural"):
        verbatim.assert_matches(ranks, V3, gather={"*.o_proj.output": "rank:0"}, **options)


def test_statistics_are_those_of_a_second_implementation(dumps, tmp_path):
    """tools/hooks/dump_stats.py computes in NumPy what `dump --stats` computes; a dump in BF16 has statistics too."""
    ours, theirs, coarse = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl", tmp_path / "coarse.stats.jsonl"
    script = ROOT / "tools" / "hooks" / "dump_stats.py"
    subprocess.run([COMMAND, "dump", V3, "--tokens", IDS, "--stats", "-o", ours], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([sys.executable, script, dumps / "a.safetensors", "-o", theirs], check=True)
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in (ours, theirs)]
    assert len(lines[0]) == len(lines[1]) > 100
    for mine, other in zip(*lines):
        for key, value in mine.items():
            if key in ("min", "max", "mean", "rms", "projections", "top"):
                np.testing.assert_allclose(np.array(value, float), np.array(other[key], float), rtol=1e-8, atol=1e-8)
            else:
                assert np.array_equal(np.float32(value), np.float32(other[key])) if key == "values" else value == other[key], (mine["name"], key)
    assert verbatim.diff(theirs, V3, runs=0, command=COMMAND)["verdict"] == "identical"
    with verbatim.Tensors(dumps / "a.safetensors") as tensors:
        values = {name: tensors[name].copy() for name in ("lm_head.output", "model.layers.1.self_attn.q_b_proj.output")}
    write_bf16(tmp_path / "coarse.safetensors", values)
    subprocess.run([sys.executable, script, tmp_path / "coarse.safetensors", "--tokens", IDS, "-o", coarse], check=True)
    told = verbatim.diff(coarse, dumps / "a.safetensors", command=COMMAND)  # the other side is rounded first
    assert told["verdict"] == "identical" and len(told["taps"]) == 2


def write_bf16(path, values):
    header, data = {}, b""
    for name, x in values.items():
        u = x.view(np.uint32)
        part = ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": x.shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_reference_is_in_double_precision():
    values = verbatim.reference(V3, TOKENS, "lm_head.output,*.q_rope", command=COMMAND)
    with verbatim.Model(V3) as model:
        logits = model.logits(TOKENS)
    assert values["lm_head.output"].dtype == np.float64 and len(values) > 2
    assert not np.array_equal(values["lm_head.output"], logits)
    np.testing.assert_allclose(values["lm_head.output"], logits, rtol=0, atol=1e-5 * np.abs(logits).max())


def test_score_has_the_logits_log_probabilities():
    texts = [{"prompt": TOKENS[:2], "response": TOKENS[2:]}, {"prompt": TOKENS, "id": "all"}]
    lines = verbatim.score(V3, texts, logprobs=2, command=COMMAND)
    with verbatim.Model(V3) as model:
        logits = model.logits(TOKENS).astype(np.float64)
    wanted = [row[token] - np.logaddexp.reduce(row) for row, token in zip(logits, TOKENS[1:])]
    assert [line["index"] for line in lines] == [0, 1] and lines[1]["id"] == "all"
    np.testing.assert_allclose(lines[1]["logprobs"], wanted, rtol=1e-6)
    assert lines[0]["logprobs"] == lines[1]["logprobs"][1:] and len(lines[0]["top"][0]) == 2
    with pytest.raises(verbatim.CommandError, match="line 1"):
        verbatim.score(V3, [{"prompt": [100000]}], command=COMMAND)


def test_replay_has_the_bits_of_the_engine(dumps):
    with verbatim.Model(V3, precision="bf16") as model:
        taps = model.taps(TOKENS)
    x, y = "model.layers.1.input_layernorm.output", "model.layers.1.self_attn.q_a_proj.output"
    alone = verbatim.replay(V3, "q_a_proj", {x: taps[x]}, layer=1, precision="bf16", command=COMMAND)
    assert list(alone) == [y] and alone[y].dtype == np.float32
    np.testing.assert_array_equal(alone[y], taps[y])
    exact = verbatim.replay(V3, "q_a_proj", {x: taps[x]}, layer=1, reference=True, command=COMMAND)[y]
    assert exact.dtype == np.float64 and not np.array_equal(exact, taps[y])
    every = verbatim.replay(V3, "all", dumps / "a.safetensors", command=COMMAND)
    with verbatim.Tensors(dumps / "a.safetensors") as tensors:
        assert len(every) > 100 and set(every) <= set(tensors)
        np.testing.assert_array_equal(every["model.layers.2.mlp.gate.experts"], tensors["model.layers.2.mlp.gate.experts"])
    with pytest.raises(verbatim.CommandError, match="lacks an input|has no model.layers.1"):
        verbatim.replay(V3, "o_proj", {x: taps[x]}, layer=1, command=COMMAND)


@pytest.mark.parametrize("queries", [1, 3])
def test_replayed_attention_takes_few_queries_for_the_last_tokens(queries):
    with verbatim.Model(V3) as model:
        taps = model.taps(TOKENS, "*.1.self_attn.*")
    at = "model.layers.1.self_attn."
    given = {at + name: taps[at + name].reshape(5, -1) for name in ("kv_a_layernorm.output", "k_rope", "q_b_proj.output", "q_rope")}
    given.update({at + name: given[at + name][-queries:] for name in ("q_b_proj.output", "q_rope")})
    said = verbatim.replay(V3, "attention", given, layer=1, command=COMMAND)[at + "o_proj.input"]
    np.testing.assert_array_equal(said, taps[at + "o_proj.input"][-queries:])
    exact = verbatim.replay(V3, "attention", given, layer=1, reference=True, command=COMMAND)[at + "o_proj.input"]
    np.testing.assert_allclose(exact, said, rtol=0, atol=1e-5)


def test_replay_reads_the_forms_of_other_engines():
    """A fused linear layer, RoPE in halves, and a single row [1, heads, numbers]."""
    with verbatim.Model(V3) as model:
        taps = model.taps(TOKENS, "*.1.self_attn.*")
    at = "model.layers.1.self_attn."
    fused = {at + "fused_qkv_a_proj.output": np.hstack([taps[at + "q_a_proj.output"], taps[at + "kv_a_proj_with_mqa.output"]])}
    said = verbatim.replay(V3, "kv_a_layernorm", fused, layer=1, names="vllm", command=COMMAND)
    np.testing.assert_array_equal(said[at + "kv_a_layernorm.output"], taps[at + "kv_a_layernorm.output"])
    given = {at + name: taps[at + name] for name in ("kv_a_layernorm.output", "q_b_proj.output", "q_rope", "k_rope")}
    halves = {name: np.concatenate([x[..., ::2], x[..., 1::2]], axis=-1) if name.endswith("_rope") else x for name, x in given.items()}
    for inputs, layout in (given, None), (halves, "halves"):
        for name in "q_b_proj.output", "q_rope":
            inputs[at + name] = inputs[at + name][-1:]
        said = verbatim.replay(V3, "attention", inputs, layer=1, layout_a=layout, command=COMMAND)
        np.testing.assert_array_equal(said[at + "o_proj.input"], taps[at + "o_proj.input"][-1:])


def test_replayed_sampling_is_that_of_generate():
    options = dict(temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=7, presence_penalty=0.3, frequency_penalty=0.1)
    with verbatim.Model(V3) as model:
        tokens = TOKENS + list(model.generate(TOKENS, 12, ignore_eos=True, **options).tokens)
        logits = model.logits(tokens)
    said = verbatim.replay(V3, "sampling", {"lm_head.output": logits, "tokens": np.array(tokens, np.int32), "prompt": np.array([5], np.int32)},
                           command=COMMAND, **options)
    assert said["sampling.token"][4:-1].tolist() == tokens[5:]
    np.testing.assert_allclose(said["sampling.probabilities"].sum(1), 1, rtol=1e-12)


def test_replayed_rejection_keeps_the_distribution():
    """Many rounds with other seeds: drafts from q, tokens as from p. The seeds are fixed, so the result is always the same."""
    rounds, random = 3000, np.random.default_rng(1)
    z = np.full((2, 160), -30, np.float32)
    z[:, :6] = random.normal(size=(2, 6))
    q = np.zeros(160)
    q[:6] = random.dirichlet(np.ones(6))
    p = np.exp(z[0].astype(np.float64))
    p /= p.sum()
    draft = random.choice(160, size=(rounds, 1), p=q).astype(np.int32)
    said = verbatim.replay(V3, "acceptance", {"lm_head.output": np.tile(z, (rounds, 1, 1)), "draft": draft, "seed": np.arange(rounds, dtype=np.int64),
                                              "draft.probabilities": np.tile(q, (rounds, 1, 1))},
                           acceptance="rejection", temperature=1, command=COMMAND)
    first = said["acceptance.tokens"][:, 0]
    near = 4 / np.sqrt(rounds)
    assert abs(said["acceptance.accepted"].mean() - np.minimum(p, q).sum()) < near
    assert np.abs(np.bincount(first, minlength=160) / rounds - p).max() < near
    assert np.abs(q - p).max() > 2 * near  # else this shows nothing
    np.testing.assert_array_equal(said["acceptance.tokens"][:, 1] >= 0, said["acceptance.accepted"] == 1)
