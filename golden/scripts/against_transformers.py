#!/usr/bin/env python3
"""Hugging Face transformers as a witness: the same weights, dequantized to float64, through its classes.

    against_transformers.py [NAME ...]      writes golden/truth/NAME.transformers.{safetensors,json}

Three runs of each checkpoint:
  as is               a float64 model; angles, RMSNorm, softmax and router are float32 inside its classes all the same
  widened             the same code with float32 made to mean float64 while it runs: what is left is the formula
  widened but angles  widened, but for the rotary embedding: what is left is the convention rope-angle = f32
Every tensor of the checkpoint must find its place in the class and the other way round; only the MTP copies of
embed_tokens and shared_head.head, which the class takes from the main model, must instead equal the main ones.

The MTP modules are transformers' MtpModel (`generate(use_mtp=True)`): every depth a module and a cache of its own,
which is mtp-vanilla; mtp-eagle is its module 0, called again with one more row. It puts row i of depth k at position
i+k+1 where the default here is i (convention draft-position): a constant shift within one cache, equal but for
rounding.

With an indexer, NumPy follows the classes' conventions: indexer-codes=none, and each draft step chooses positions
(mtp-set=own). torch.topk does not define which of several equal scores it keeps; it is replaced by a stable sort.
"""
import argparse
import contextlib
import json
import os
import platform

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, modeling_layers, modeling_rope_utils
from transformers.cache_utils import MtpCache
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.deepseek_v32 import modeling_deepseek_v32
from transformers.models.glm4_moe_lite import modeling_glm4_moe_lite
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa
from transformers.models.mistral4 import modeling_mistral4
from transformers.models.youtu import modeling_youtu

import make_tiny
import make_truth
from forward import DEFAULTS, Model, read_safetensors, read_weights

TINY, TRUTH, K = make_truth.TINY, make_truth.TRUTH, make_truth.K
MODULES = (modeling_deepseek_v2, modeling_deepseek_v3, modeling_glm4_moe_lite, modeling_deepseek_v32, modeling_glm_moe_dsa,
           modeling_mistral4, modeling_youtu, modeling_layers, modeling_rope_utils)
INDEXERS = (modeling_deepseek_v32.DeepseekV32Indexer, modeling_glm_moe_dsa.GlmMoeDsaIndexer)


class Widened:
    """stands for the name `torch` in a module: float32 is float64"""
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


NARROW = torch.Tensor.float


@contextlib.contextmanager
def widened(wanted):
    """float32 means float64 (or, inside another `with`, float32 again) in the classes of transformers"""
    def put(name, to_float):
        for module in MODULES:
            if hasattr(module, "torch"):
                module.torch = name
        torch.Tensor.float = to_float

    before = modeling_rope_utils.torch, torch.Tensor.float
    put(*((Widened(), torch.Tensor.double) if wanted else (torch, NARROW)))
    try:
        yield
    finally:
        put(*before)


def topk(x, k, dim=-1, largest=True, sorted=True):
    """torch.topk, which may keep any of several equal numbers; this one keeps those with the lowest indices"""
    assert largest and dim == -1
    values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
    return torch.return_types.topk((values[..., :k], indices[..., :k]))


TORCH_TOPK = torch.Tensor.topk


class Positions:
    """records what the indexers of a model choose: by layer, [rows, index_topk] ascending, places after a row's own left out"""

    def __init__(self, model):
        self.sets = {}
        for module in model.modules():
            if isinstance(module, INDEXERS):
                module.register_forward_hook(self.keep)

    def keep(self, module, _inputs, output):
        rows = [sorted(t for t in row if t <= s) for s, row in enumerate(output[0].tolist())]
        width = module.index_topk
        self.sets[f"sets.{module.layer_idx}"] = np.array([row + [-1] * (width - len(row)) for row in rows], np.int64)


class NarrowAngles(torch.nn.Module):
    """a rotary embedding whose angles stay float32 in a widened run"""

    def __init__(self, kind, config):
        super().__init__()
        with widened(False):
            self.inner = kind(config)

    def forward(self, x, position_ids):
        with widened(False):
            return self.inner(x, position_ids)


def merged_experts(weights, prefix, count):
    """experts.E.{gate,up,down}_proj -> the two 3D tensors of the class, under the names without the layer's prefix"""
    out = {}
    for name in [n for n in weights if n.startswith(prefix)]:
        short, parts = name[len(prefix):], name[len(prefix):].split(".")
        if ".experts." not in "." + short:
            out[short] = weights[name]
        elif parts[-4:-1] == ["experts", "0", "gate_proj"]:
            stem = prefix + short[:-len("0.gate_proj.weight")]
            one = [[weights[f"{stem}{e}.{p}_proj.weight"] for p in ("gate", "up", "down")] for e in range(count)]
            out[stem[len(prefix):] + "gate_up_proj"] = np.stack([np.concatenate([g, u]) for g, u, _ in one])
            out[stem[len(prefix):] + "down_proj"] = np.stack([d for _, _, d in one])
    return {k: torch.from_numpy(np.array(v)) for k, v in out.items()}


class Witness:
    """one checkpoint in the classes of transformers"""

    def __init__(self, name, overrides=None, narrow_angles=False, scaled=False):
        """scaled: Mistral 4 with YaRN's m^2, as its class has it since July 2026 (huggingface/transformers#47435); else
        as it was before, and as Mistral's own file says (apply_scale false)"""
        path = os.path.join(TINY, name)
        with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
            given = json.load(f)
        given.update(overrides or {})
        given.pop("quantization_config", None)            # the weights come dequantized
        for key in ("torch_dtype", "dtype", "architectures"):
            given.pop(key, None)
        self.layers, self.modules = given["num_hidden_layers"], given.get("num_nextn_predict_layers", 0)
        self.experts, self.name, self.has_indexer = given.get("n_routed_experts", 0), name, "index_topk" in given
        config = AutoConfig.for_model(given.pop("model_type"), **given)
        config._experts_implementation = "eager"
        torch.set_default_dtype(torch.float64)
        if config.model_type == "mistral4":               # AutoModelForCausalLM does not know it
            self.model = modeling_mistral4.Mistral4ForCausalLM._from_config(config, attn_implementation="eager")
        else:
            self.model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        self.model = self.model.eval().double()
        for layer in self.model.model.layers:
            if config.model_type == "mistral4" and not scaled:
                layer.self_attn.scaling = layer.self_attn.qk_head_dim ** -0.5
        self.weights = read_weights(path, [128, 128])
        first = f"model.layers.{self.layers}."
        later = tuple(f"model.layers.{self.layers + k}." for k in range(self.modules))
        trunk = {n: w for n, w in self.weights.items() if not (later and n.startswith(later))}
        state = merged_experts(trunk, "", self.experts)
        if config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        self.model.load_state_dict(state, strict=True)
        self.positions = Positions(self.model)
        if narrow_angles:
            self.model.model.rotary_emb = NarrowAngles(type(self.model.model.rotary_emb), config)
        if self.modules:
            assert first + "enorm.weight" in self.weights
            self.mtp = self.build_modules(config)

    def build_modules(self, config):
        """K modules; module k has the weights of k mod D"""
        config.num_mtp_layers = K
        if getattr(config, "mlp_layer_types", None):
            config.mtp_mlp_layer_types = ["sparse"] * K
        if self.has_indexer:                               # MtpModel knows no mask of the name "indexed_attention"
            config.mtp_layer_types, types = ["full_attention"] * K, getattr(config, "indexer_types", None)
            config.indexer_types = ["full"] * K
        mtp = modeling_layers.MtpModel(self.model, K).eval().double()
        if self.has_indexer:
            config.indexer_types = types
        for layer in mtp.layers:                           # GLM-5's layers also return positions, which MtpModel does not expect
            layer.mtp_block.register_forward_hook(lambda _m, _i, output: output[0] if isinstance(output, tuple) else output)
        state = {n: t for n, t in mtp.state_dict().items() if not n.startswith("layers.")}        # the main model's
        for k in range(K):
            prefix = f"model.layers.{self.layers + k % self.modules}."
            for name, w in merged_experts(self.weights, prefix, self.experts).items():
                if name == "shared_head.norm.weight":
                    name = "post_norm.weight"
                elif name in ("embed_tokens.weight", "shared_head.head.weight"):
                    main = "model.embed_tokens.weight" if name[0] == "e" else "lm_head.weight"
                    assert torch.equal(w, torch.from_numpy(self.weights[main])), name
                    continue
                elif name not in ("enorm.weight", "hnorm.weight", "eh_proj.weight"):
                    name = "mtp_block." + name
                state[f"layers.{k}.{name}"] = w
        mtp.load_state_dict(state, strict=True)
        return mtp

    def cache(self):
        """every call computes all rows; a cache of MTP layers has no room for an indexer's keys"""
        return None if self.has_indexer else MtpCache(config=self.model.config.get_mtp_config())

    @torch.no_grad()
    def target(self, tokens):
        """logits [n,V], hidden [n,d]"""
        ids = torch.tensor([tokens])
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = self.model(input_ids=ids, use_cache=False).logits
        assert torch.equal(logits, self.model.lm_head(hidden))
        return logits[0].numpy(), hidden

    @torch.no_grad()
    def vanilla(self, tokens):
        """drafts and their logits [K,V]"""
        logits, hidden = self.target(tokens)
        ids = torch.tensor([tokens[1:] + [int(np.argmax(logits[-1]))]])
        drafts, z, _ = self.mtp(input_ids=ids, last_hidden_states=hidden, attention_mask=None,
                                position_ids=torch.arange(1, len(tokens) + 1)[None],
                                mtp_cache=self.cache())
        return drafts[0].tolist(), z[0].numpy()

    @torch.no_grad()
    def eagle(self, tokens):
        logits, hidden = self.target(tokens)
        tok, out = tokens + [int(np.argmax(logits[-1]))], []
        for _ in range(K):
            ids = torch.tensor([tok[1:]])
            g = self.mtp.forward_layer(0, hidden, torch.arange(1, len(tok))[None], self.cache(), input_ids=ids)
            z = self.mtp._project_to_logits(g[:, -1])
            out.append(z[0].numpy())
            tok.append(int(np.argmax(out[-1])))
            hidden = torch.cat([hidden, g[:, -1:]], dim=1)
        return tok[len(tokens) + 1:], np.array(out)


def distance(a, b):
    """largest difference, relative to the largest magnitude of the reference b"""
    return float(np.abs(a - b).max() / np.abs(b).max())


def compare_sets(witness, tokens, ours, arrays):
    """in how many rows the indexers choose other positions than NumPy's; torch.topk: without this script's rule for equal scores"""
    ours.sets = []
    ours.target(tokens)
    expected, _ = make_truth.chosen_positions(ours, tokens, None)
    chosen = dict(witness.positions.sets)
    torch.Tensor.topk = TORCH_TOPK
    witness.target(tokens)
    undefined, torch.Tensor.topk = witness.positions.sets, topk
    arrays.update(chosen)
    rows = {"this script's rule": chosen, "torch.topk": undefined}
    return {how: int(sum((expected[k] != sets[k]).any(axis=1).sum() for k in expected)) for how, sets in rows.items()}


def compare(name):
    with open(os.path.join(TRUTH, name + ".json"), encoding="utf-8") as f:
        truth = json.load(f)
    sparse = "sets.0" in read_safetensors(os.path.join(TRUTH, name + ".safetensors"))
    conventions = dict(indexer_codes="none", mtp_set="own") if sparse else {}
    tokens, ours = truth["tokens"], Model(os.path.join(TINY, name), **conventions)
    f32 = Model(os.path.join(TINY, name), rope_angle="f32", **conventions)
    logits = {"f64": ours.target(tokens)[0], "f32": f32.target(tokens)[0]}
    told = dict(checkpoint=name, tokens="those of " + name + ".json",
                measure="max|transformers - numpy| / max|numpy|", logits={}, draft_logits={}, drafts_equal={})
    arrays = {}
    for run in ("as is", "widened", "widened but angles"):
        with widened(run != "as is"):
            witness = Witness(name, narrow_angles=run == "widened but angles")
            theirs = witness.target(tokens)[0]
            if sparse:
                told.setdefault("sets", {})[run] = compare_sets(witness, tokens, ours, arrays if run == "as is" else {})
            told["logits"][run] = {"angles " + a: distance(theirs, logits[a]) for a in logits}
            if run == "as is":
                arrays["logits"] = theirs
            for method in make_truth.METHODS if witness.modules and run != "widened but angles" else ():
                look = witness.vanilla if method == "mtp-vanilla" else witness.eagle
                drafts, z = look(tokens)
                expected = ours.draft(tokens, method, K)
                told["draft_logits"][f"{method}, {run}"] = distance(z, expected[2])
                same = [look(tokens[:e["n"]])[0] == (ours.draft(tokens[:e["n"]], method, K)[1] if sparse else e[method]["drafts"])
                        for e in truth["drafts"]]
                told["drafts_equal"][f"{method}, {run}"] = f"{sum(same)} of {len(same)} prompt lengths"
                if run == "as is":
                    arrays[method + ".logits"] = z
    told["versions"] = dict(transformers=transformers.__version__, torch=torch.__version__, numpy=np.__version__,
                            python=platform.python_version())
    make_truth.write_f64(os.path.join(TRUTH, name + ".transformers.safetensors"), arrays,
                         "transformers, as is")
    make_truth.write_compact(os.path.join(TRUTH, name + ".transformers.json"), told)
    print(name, json.dumps({k: told[k] for k in ("logits", "draft_logits", "drafts_equal")}, indent=1))


def compare_variants():
    """only those that change config.json, or that a class can be told: other conventions are ours"""
    told = {}
    for label, (name, overrides, conventions) in make_truth.VARIANTS.items():
        scaled = conventions == dict(yarn_scale="always")
        if conventions and not scaled:
            continue
        with open(os.path.join(TRUTH, name + ".json"), encoding="utf-8") as f:
            tokens = json.load(f)["tokens"]
        ours = Model(os.path.join(TINY, name), overrides, **conventions).target(tokens)[0][-1]
        with widened(True):
            told[label] = distance(Witness(name, overrides, scaled=scaled).target(tokens)[0][-1], ours)
        print(f"{label}, widened: {told[label]:.2g}")
    make_truth.write_compact(os.path.join(TRUTH, "variants.transformers.json"), told)


def check_defaults():
    """the table in forward.py against the classes, for every key they have"""
    for kind, model_type in (("DeepseekV2ForCausalLM", "deepseek_v2"), ("DeepseekV3ForCausalLM", "deepseek_v3"),
                             ("Glm4MoeLiteForCausalLM", "glm4_moe_lite"), ("DeepseekV32ForCausalLM", "deepseek_v32"),
                             ("GlmMoeDsaForCausalLM", "glm_moe_dsa"), ("Mistral4ForCausalLM", "mistral4"),
                             ("YoutuForCausalLM", "youtu")):
        config = AutoConfig.for_model(model_type)
        for key, ours in DEFAULTS[kind].items():
            theirs = getattr(config, key, "no such key")
            if key == "rope_theta":
                theirs = config.rope_parameters["rope_theta"]
            if theirs != ours:
                print(f"{kind}.{key}: {theirs} there, {ours} here")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help=f"of {', '.join(make_tiny.SHAPES)}; none: all, and the variants")
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.Tensor.topk = topk
    torch.manual_seed(0)                                   # weights are drawn once before they are replaced
    for name in a.names or make_tiny.SHAPES:
        compare(name)
    if not a.names:
        compare_variants()
        check_defaults()


if __name__ == "__main__":
    main()
