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


def weights():
    """Every tensor of the checkpoint, BF16 or F32, as float32."""
    tensors = {}
    for path in MODEL.glob("*.safetensors"):
        raw = path.read_bytes()
        begin = 8 + int.from_bytes(raw[:8], "little")
        for name, t in json.loads(raw[8:begin]).items():
            if name != "__metadata__":
                data = raw[begin + t["data_offsets"][0] : begin + t["data_offsets"][1]]
                if t["dtype"] == "BF16":
                    values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
                else:
                    values = np.frombuffer(data, np.float32)
                tensors[name] = values.reshape(t["shape"])
    return tensors


def my_rmsnorm(x, w, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def my_linear(x, w):
    return x @ w.T


def my_router(logits, bias, groups, kept_groups, chosen):
    """noaux_tc of DeepSeek-V3: the experts with the largest biased scores within the best groups, in ascending order."""
    scores = 1 / (1 + np.exp(-logits)) + bias
    in_groups = scores.reshape(len(scores), groups, -1)
    best = np.argsort(-np.sort(in_groups, axis=-1)[..., -2:].sum(-1), axis=-1, kind="stable")[:, :kept_groups]
    masked = np.full_like(in_groups, -np.inf)
    for row, group in enumerate(best):
        masked[row, group] = in_groups[row, group]
    return np.sort(np.argsort(-masked.reshape(scores.shape), axis=-1, kind="stable")[:, :chosen], axis=-1)


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
def test_q_a_proj(taps, w, layer):
    name = "model.layers.%d." % layer
    mine = my_linear(taps[name + "input_layernorm.output"], w[name + "self_attn.q_a_proj.weight"])
    np.testing.assert_allclose(mine, taps[name + "self_attn.q_a_proj.output"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", MOE_LAYERS)
def test_router(taps, w, layer):
    name = "model.layers.%d.mlp.gate" % layer
    mine = my_router(taps[name + ".output"], w[name + ".e_score_correction_bias"], CONFIG["n_group"], CONFIG["topk_group"],
                     CONFIG["num_experts_per_tok"])
    np.testing.assert_array_equal(mine, np.sort(taps[name + ".experts"], axis=-1))


def test_greedy_text_from_logits(oracle):
    """Decoding, one token at a time, as a backend does it: here with the oracle's logits, where yours would stand."""
    tokens = list(TOKENS)
    for _ in range(8):
        tokens.append(int(oracle.logits(tokens)[-1].argmax()))
    assert tokens[len(TOKENS) :] == oracle.generate(TOKENS, 8, draft="mtp-eagle", ignore_eos=True).tokens
