"""examples/test_my_backend.py -- what the pytest of another backend looks like. Here the backend is three operators in NumPy;
put yours in their place.

    make && PYTHONPATH=tools/python python3 -m pytest examples/test_my_backend.py

Each operator is given the oracle's own input and compared with the oracle's output, so that a wrong one is named at once
and its error is not blurred by those before it. Real numbers agree within a bound; choices (experts, tokens) are equal."""

import json
import os
import pathlib

import numpy as np
import pytest
import verbatim

MODEL = pathlib.Path(os.environ.get("MODEL", pathlib.Path(__file__).resolve().parents[1] / "golden" / "tiny" / "v3-mtp3"))
CONFIG = json.loads((MODEL / "config.json").read_text())
TOKENS = [5, 17, 99, 3, 42, 64, 7, 120]
MOE_LAYERS = range(CONFIG["first_k_dense_replace"], CONFIG["num_hidden_layers"])


# ---- the backend ----------------------------------------------------------------------------------------------------------


def decoded(data, dtype):
    """The numbers of a tensor, as float32."""
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "F8_E4M3":  # 1 sign, 4 exponent (bias 7), 3 fraction; no infinities
        code = np.frombuffer(data, np.uint8).astype(np.int32)
        exponent, fraction = code >> 3 & 15, code & 7
        magnitude = np.where(exponent, np.ldexp(1 + fraction / 8, exponent - 7), np.ldexp(fraction / 8, -6))
        return np.where(code & 127 == 127, np.nan, np.where(code >> 7, -magnitude, magnitude)).astype(np.float32)
    return np.frombuffer(data, {"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float32)


def weights():
    """Every tensor of the checkpoint as float32; FP8 matrices are multiplied by the scales of their blocks."""
    tensors = {}
    for path in MODEL.glob("*.safetensors"):
        raw = path.read_bytes()
        begin = 8 + int.from_bytes(raw[:8], "little")
        for name, t in json.loads(raw[8:begin]).items():
            if name != "__metadata__":
                data = raw[begin + t["data_offsets"][0] : begin + t["data_offsets"][1]]
                tensors[name] = decoded(data, t["dtype"]).reshape(t["shape"])
    for name in [name for name in tensors if name.endswith("_scale_inv")]:
        scale, (rows, cols) = tensors.pop(name), CONFIG["quantization_config"]["weight_block_size"]
        w = tensors[name[: -len("_scale_inv")]]
        w *= scale.repeat(rows, axis=0).repeat(cols, axis=1)[: w.shape[0], : w.shape[1]]
    return tensors


def my_rmsnorm(x, w, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def my_linear(x, w):
    return x @ w.T


def my_router(logits, bias):
    """The chosen experts in ascending order. V3 (bias given): sigmoid, and a group is worth its two best experts; V2: softmax, and
    it is worth its best one. A greedy router has no groups."""
    if bias is not None:
        scores, best_of = 1 / (1 + np.exp(-logits)) + bias, 2
    else:
        scores, best_of = np.exp(logits - logits.max(-1, keepdims=True)), 1
        scores /= scores.sum(-1, keepdims=True)
    if CONFIG["topk_method"] != "greedy":
        in_groups = scores.reshape(len(scores), CONFIG["n_group"], -1)
        worth = np.sort(in_groups, axis=-1)[..., -best_of:].sum(-1)
        masked = np.full_like(in_groups, -np.inf)
        for row, groups in enumerate(np.argsort(-worth, axis=-1, kind="stable")[:, : CONFIG["topk_group"]]):
            masked[row, groups] = in_groups[row, groups]
        scores = masked.reshape(scores.shape)
    return np.sort(np.argsort(-scores, axis=-1, kind="stable")[:, : CONFIG["num_experts_per_tok"]], axis=-1)


# ---- its tests ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def oracle():
    with verbatim.Model(MODEL) as model:
        yield model


@pytest.fixture(scope="module")
def taps(oracle):
    return oracle.taps(TOKENS)


@pytest.fixture(scope="module")
def w():
    return weights()


@pytest.mark.parametrize("layer", range(CONFIG["num_hidden_layers"]))
@pytest.mark.parametrize("norm", ["input_layernorm", "post_attention_layernorm"])
def test_rmsnorm(taps, w, layer, norm):
    name = "model.layers.%d.%s" % (layer, norm)
    mine = my_rmsnorm(taps[name + ".input"], w[name + ".weight"], CONFIG["rms_norm_eps"])
    np.testing.assert_allclose(mine, taps[name + ".output"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", range(CONFIG["num_hidden_layers"]))
def test_first_projection_of_the_query(taps, w, layer):
    name = "model.layers.%d." % layer
    projection = name + "self_attn." + ("q_a_proj" if CONFIG.get("q_lora_rank") else "q_proj")
    mine = my_linear(taps[name + "input_layernorm.output"], w[projection + ".weight"])
    np.testing.assert_allclose(mine, taps[projection + ".output"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", MOE_LAYERS)
def test_router(taps, w, layer):
    name = "model.layers.%d.mlp.gate" % layer
    mine = my_router(taps[name + ".output"], w.get(name + ".e_score_correction_bias"))
    np.testing.assert_array_equal(mine, np.sort(taps[name + ".experts"], axis=-1))


def test_greedy_text_from_logits(oracle):
    """Decoding, one token at a time, as a backend does it: here with the oracle's logits, where yours would stand."""
    tokens = list(TOKENS)
    for _ in range(8):
        tokens.append(int(oracle.logits(tokens)[-1].argmax()))
    draft = "mtp-eagle" if oracle.mtp_modules else "ngram"
    assert tokens[len(TOKENS) :] == oracle.generate(TOKENS, 8, draft=draft, ignore_eos=True).tokens
