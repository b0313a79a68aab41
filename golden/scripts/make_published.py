#!/usr/bin/env python3
"""Makes golden/published/: stand-ins for files that others published, which the repository does not hold.

    pip install tokenizers && python3 golden/scripts/make_published.py      (from the root of the repository)

configs.json      {name: config.json}: the keys and values of published models, as far as they describe the model
tensors.tsv       names, types and shapes of DeepSeek-R1's 91,991 tensors; {0-2} stands for the numbers 0, 1 and 2
NAME/             tokenizers with DeepSeek's cuts, added tokens and decoder, and a vocabulary of our own; vectors.json
                  has [text, ids with special tokens recognised, ids with special tokens as text or null when equal],
                  truth: the ids are those of Hugging Face's `tokenizers` (0.23 when this was written)
tests/engine/test_config_published.c, test_model.c and test_tokenizer.c read these files, and the published ones too where
they are.
"""
import json
import pathlib
import random
import re

from make_tokenizer_vectors import BORDERS, PROSE, V3 as CUTS_V3, split, texts

OUT = pathlib.Path(__file__).resolve().parent.parent / "published"

# ---- configurations ----------------------------------------------------------------------------------------------------


def yarn(factor, mscale, fast=32, slow=1):
    return {"beta_fast": fast, "beta_slow": slow, "factor": factor, "mscale": mscale, "mscale_all_dim": mscale,
            "original_max_position_embeddings": 4096, "type": "yarn"}


FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
TRAINING = {"aux_loss_alpha": 0.001, "pretraining_tp": 1, "seq_aux": True}

V3 = {"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
      "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
      "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
      "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
      "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
      "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": FP8, "rms_norm_eps": 1e-06,
      "rope_scaling": yarn(40, 1.0), "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
      "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "use_cache": True,
      "v_head_dim": 128, "vocab_size": 129280}


def but(base, without=(), **members):
    return {key: value for key, value in (base | members).items() if key not in without}


V2_5 = but(V3, ["quantization_config", "num_nextn_predict_layers"], **TRAINING, architectures=["DeepseekV2ForCausalLM"],
           model_type="deepseek_v2", bos_token_id=100000, eos_token_id=100001, first_k_dense_replace=1, hidden_size=5120,
           intermediate_size=12288, moe_intermediate_size=1536, n_routed_experts=160, n_shared_experts=2, norm_topk_prob=False,
           num_experts_per_tok=6, num_hidden_layers=60, routed_scaling_factor=16.0, scoring_func="softmax", topk_group=3,
           topk_method="group_limited_greedy", vocab_size=102400)
V2_LITE = but(V2_5, hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408, n_group=1, n_routed_experts=64,
              num_attention_heads=16, num_hidden_layers=27, num_key_value_heads=16, q_lora_rank=None,
              rope_scaling=yarn(40, 0.707), routed_scaling_factor=1.0, topk_group=1, topk_method="greedy")
MOONLIGHT = but(V2_LITE, ["rope_scaling"], architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3",
                bos_token_id=163584, eos_token_id=163586, intermediate_size=11264, max_position_embeddings=8192,
                norm_topk_prob=True, num_nextn_predict_layers=0, rms_norm_eps=1e-05, rope_theta=50000.0,
                routed_scaling_factor=2.446, scoring_func="sigmoid", topk_method="noaux_tc", vocab_size=163840)
KIMI_K2 = but(V3, ["ep_size"], **TRAINING, model_type="kimi_k2", bos_token_id=163584, eos_token_id=163585,
              first_k_dense_replace=1, max_position_embeddings=131072, n_group=1, n_routed_experts=384, num_attention_heads=64,
              num_key_value_heads=64, num_nextn_predict_layers=0, rope_theta=50000.0, rope_scaling=yarn(32.0, 1.0, 1.0, 1.0),
              routed_scaling_factor=2.827, topk_group=1, vocab_size=163840)
# this file leaves out what the class has a default for, though the model's own values are others
KIMI_K2_THINKING = but(KIMI_K2, ["attention_bias", "attention_dropout", "bos_token_id", "eos_token_id", "hidden_act",
                                 "initializer_range", "n_group", "norm_topk_prob", "num_nextn_predict_layers",
                                 "quantization_config", "rms_norm_eps", "rope_theta", "rope_scaling", "scoring_func", "topk_group",
                                 "topk_method", *TRAINING], max_position_embeddings=262144)
GLM_FLASH = {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "num_hidden_layers": 47,
             "hidden_size": 2048, "num_attention_heads": 20, "num_key_value_heads": 20, "intermediate_size": 10240,
             "vocab_size": 154880, "max_position_embeddings": 202752, "n_routed_experts": 64, "n_shared_experts": 1,
             "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "first_k_dense_replace": 1, "kv_lora_rank": 512,
             "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
             "routed_scaling_factor": 1.8, "tie_word_embeddings": False}
GLM_FLASH_WHOLE = but(GLM_FLASH, hidden_act="silu", rms_norm_eps=1e-05, attention_dropout=0.0, attention_bias=False,
                      rope_theta=1000000.0, rope_scaling=None, partial_rotary_factor=1.0, norm_topk_prob=True, n_group=1,
                      topk_group=1, topk_method="noaux_tc", dtype="bfloat16", pad_token_id=154820,
                      eos_token_id=[154820, 154827, 154829], num_nextn_predict_layers=1)
GLM_FLASH = but(GLM_FLASH, head_dim=64, torch_dtype="bfloat16", use_cache=True)

# models with an indexer, and what is refused
INDEXER = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}
V4 = but(V3, ["first_k_dense_replace", "intermediate_size", "kv_lora_rank", "moe_layer_freq", "n_group", "qk_nope_head_dim",
              "topk_group", "v_head_dim"],
         architectures=["DeepseekV4ForCausalLM"], model_type="deepseek_v4", compress_ratios=[0, 0, 4, 128, 4, 0],
         compress_rope_theta=160000, expert_dtype="fp4", hc_eps=1e-06, hc_mult=4, hc_sinkhorn_iters=20, head_dim=512,
         hidden_size=4096, num_attention_heads=64, num_experts_per_tok=6, num_hash_layers=3, num_hidden_layers=43,
         num_key_value_heads=1, o_groups=8, o_lora_rank=1024, q_lora_rank=1024, scoring_func="sqrtsoftplus", sliding_window=128,
         swiglu_limit=10.0, **(INDEXER | {"index_topk": 512}))
GLM_5 = but(V3, ["bos_token_id", "quantization_config", "rope_scaling", "rope_theta"], **(INDEXER | {"index_n_heads": 32}),
            architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", eos_token_id=[154820, 154827, 154829],
            hidden_size=6144, intermediate_size=12288, max_position_embeddings=202752, n_group=1, num_attention_heads=64,
            num_hidden_layers=78, num_key_value_heads=64, q_lora_rank=2048, qk_nope_head_dim=192, rms_norm_eps=1e-05,
            rope_parameters={"rope_theta": 1000000, "rope_type": "default"}, topk_group=1, v_head_dim=256, vocab_size=154880,
            indexer_rope_interleave=True)
# the names of all 78 layers say what the two keys of the schedule say
GLM_5_2 = but(GLM_5, rope_parameters={"rope_theta": 8000000, "rope_type": "default"}, max_position_embeddings=1048576,
              index_share_for_mtp_iteration=True, index_topk_pattern=None, index_topk_freq=4, index_skip_topk_offset=3,
              indexer_types=["full" if max(i - 2, 0) % 4 == 0 else "shared" for i in range(78)],
              mlp_layer_types=["dense"] * 3 + ["sparse"] * 75)
MIMO = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_hidden_layers": 36, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 11008, "vocab_size": 151680,
        "rope_theta": 640000, "rms_norm_eps": 1e-05, "attention_bias": True, "num_nextn_predict_layers": 1}
# DeepSeek's own scripts have other names for all keys, and no architecture
SCRIPT = {"vocab_size": 129280, "dim": 7168, "inter_dim": 18432, "moe_inter_dim": 2048, "n_layers": 61, "n_dense_layers": 3,
          "n_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1, "n_activated_experts": 8, "n_expert_groups": 8,
          "n_limited_groups": 4, "route_scale": 2.5, "score_func": "sigmoid", "q_lora_rank": 1536, "kv_lora_rank": 512,
          "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "dtype": "fp8"}

INT4 = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "kv_cache_scheme": None,
        "config_groups": {"group_0": {"input_activations": None, "output_activations": None, "targets": ["Linear"],
                                      "weights": {"actorder": None, "block_structure": None, "dynamic": False, "group_size": 32,
                                                  "num_bits": 4, "observer": "minmax", "observer_kwargs": {}, "strategy": "group",
                                                  "symmetric": True, "type": "int"}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]}
CONFIGS = {
    "DeepSeek-V3": V3, "DeepSeek-R1": but(V3, **TRAINING), "DeepSeek-V3 without FP8": but(V3, ["quantization_config"], **TRAINING),
    "DeepSeek-V3.1": but(V3, quantization_config=FP8 | {"scale_fmt": "ue8m0"}),
    "DeepSeek-V2.5": V2_5, "DeepSeek-V2-Lite": V2_LITE, "Moonlight": MOONLIGHT, "Kimi-K2": KIMI_K2,
    "Kimi-K2-Thinking, abridged": KIMI_K2_THINKING, "GLM-4.7-Flash": GLM_FLASH_WHOLE, "GLM-4.7-Flash, abridged": GLM_FLASH,
    "DeepSeek-V3.2": but(V3, **INDEXER, architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32",
                         quantization_config=FP8 | {"scale_fmt": "ue8m0"}),
    "DeepSeek-V4": V4, "GLM-5": GLM_5, "GLM-5.2": GLM_5_2,
    "Kimi-K2.5": {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "bos_token_id": 163584,
                  "text_config": but(KIMI_K2, quantization_config=INT4, max_position_embeddings=262144,
                                     rope_scaling=yarn(64.0, 1.0)), "vision_config": {"vt_num_hidden_layers": 27}},
    "MiMo": MIMO,
    "MiMo-V2": but(MIMO, ["num_nextn_predict_layers"], architectures=["MiMoV2FlashForCausalLM"], model_type="mimo_v2_flash",
                   moe_layer_freq=[0, 1, 1], n_shared_experts=None, routed_scaling_factor=None, attention_bias=False),
    "Qwen3-Next": {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_hidden_layers": 48,
                   "hidden_size": 2048, "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10},
    "GLM-4.7": but(GLM_FLASH, ["kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"],
                   architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", num_hidden_layers=92),
    "DeepSeek's script": SCRIPT,
}

# ---- tensors -----------------------------------------------------------------------------------------------------------


def tensor_lines():
    d, heads, q, kv, nope, rope, v, vocabulary = 7168, 128, 1536, 512, 128, 64, 128, 129280

    def matrix(name, rows, columns, fp8=True):
        yield f"{name}.weight\t{'F8_E4M3' if fp8 else 'BF16'}\t{rows}x{columns}"
        if fp8:
            yield f"{name}.weight_scale_inv\tF32\t{-(-rows // 128)}x{-(-columns // 128)}"

    def mlp(name, width):
        for part in "gate_proj", "up_proj":
            yield from matrix(f"{name}.{part}", width, d)
        yield from matrix(f"{name}.down_proj", d, width)

    yield from matrix("model.embed_tokens", vocabulary, d, False)
    every = "model.layers.{0-61}"
    for norm, width in ("input_layernorm", d), ("post_attention_layernorm", d), ("self_attn.q_a_layernorm", q), ("self_attn.kv_a_layernorm", kv):
        yield f"{every}.{norm}.weight\tBF16\t{width}"
    yield from matrix(every + ".self_attn.q_a_proj", q, d)
    yield from matrix(every + ".self_attn.q_b_proj", heads * (nope + rope), q)
    yield from matrix(every + ".self_attn.kv_a_proj_with_mqa", kv + rope, d)
    yield from matrix(every + ".self_attn.kv_b_proj", heads * (nope + v), kv)
    yield from matrix(every + ".self_attn.o_proj", d, heads * v)
    yield from mlp("model.layers.{0-2}.mlp", 18432)
    moe = "model.layers.{3-61}.mlp"
    yield from matrix(moe + ".gate", 256, d, False)
    yield moe + ".gate.e_score_correction_bias\tF32\t256"
    yield from mlp(moe + ".shared_experts", 2048)
    yield from mlp(moe + ".experts.{0-255}", 2048)
    module = "model.layers.61"
    for norm in "enorm", "hnorm", "shared_head.norm":
        yield f"{module}.{norm}.weight\tBF16\t{d}"
    yield from matrix(module + ".eh_proj", d, 2 * d, False)
    yield from matrix(module + ".embed_tokens", vocabulary, d, False)
    yield from matrix(module + ".shared_head.head", vocabulary, d, False)
    yield f"model.norm.weight\tBF16\t{d}"
    yield from matrix("lm_head", vocabulary, d, False)


# ---- tokenizers --------------------------------------------------------------------------------------------------------

# DeepSeek-V2's letters: those with upper and lower case
LETTERS = ("A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
           "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
           "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
           "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
           "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
           "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
           "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
           "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
           "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
           "\U000118a0-\U000118df\U0001e900-\U0001e943")
CUTS_V2 = ["[\r\n]", "\\s?[" + LETTERS + "]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$",
           "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]


def added(content, special, normalized):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": special}


ENDS = ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]
ROLES = ["<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581end\uff5c>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>",
         "<|EOT|>", "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>", "<\uff5ctool\u2581sep\uff5c>"]


def vocabulary():
    """All bytes and merges across every border: of words, digits, lines and scripts. A cut at a wrong place changes the ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    read = [re.sub("</?think>", "", text) for text in [PROSE] * 3 + texts(11) + texts(12)]  # added tokens are no pieces
    t.train_from_iterator(read, trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, max_token_length=8))
    model = json.loads(t.to_str())["model"]
    # digits as long as a cut allows; a space with the first byte of every letter, and the last byte of each with the first of
    # a Cyrillic one and with a space, so that all of them show whether they belong together
    pieces, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    byte = dict(zip(bytes_in_order(), sorted(pre_tokenizers.ByteLevel.alphabet())))
    more = [("3", "3"), ("33", "3"), ("33", "33"), (byte[10], byte[10])]
    more += [(byte[32], byte[lead]) for lead in (*range(0xc2, 0xf5), *b"!#%+;?@\\^_`|~")]
    more += [(byte[last], byte[next]) for last in range(0x80, 0xc0) for next in (0xd0, 0x20)]
    for left, right in more:
        if left + right not in pieces:
            pieces[left + right] = len(pieces)
            merges.append((left, right))
    return pieces, [" ".join(m) for m in merges]


def bytes_in_order():
    """The bytes whose letters, sorted, make the byte-level alphabet: printable ones are themselves, others follow at U+0100."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    return plain + [b for b in range(256) if b not in plain]


def tokenizer_json(pieces, merges, cuts, front, behind, digits):
    """front: added tokens that are the vocabulary's first; behind: those that follow it."""
    shifted = {token["content"]: i for i, token in enumerate(front)}
    shifted |= {piece: i + len(front) for piece, i in pieces.items()}
    steps = [json.loads(split(cut).__getstate__()) for cut in cuts]
    steps += [{"type": "Digits", "individual_digits": True}] if digits else []
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    tokens = [{"id": i} | token for i, token in enumerate(front)]
    tokens += [{"id": len(shifted) + i} | token for i, token in enumerate(behind)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
            "normalizer": {"type": "Sequence", "normalizers": []},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps + [level | {"add_prefix_space": False, "use_regex": False}]},
            "post_processor": level | {"trim_offsets": False}, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False} | ({} if digits else {"byte_fallback": False}) | {"vocab": shifted, "merges": merges}}


def letter_texts():
    """Each border of LETTERS and its neighbours outside, with a space in front and a letter behind. That one is not Latin, for
    DeepSeek-V2's third cut isolates what is between ":" and "~"."""
    ends = re.findall("(.)-(.)|(.)", LETTERS)
    for low, high, one in ends:
        yield "".join(" " + chr(c) + "\u0436" for c in (ord(low or one) - 1, ord(low or one), ord(high or one), ord(high or one) + 1))


def cases(tokens, seed):
    r = random.Random(seed)
    yield from BORDERS + texts(seed)
    yield " ".join(letter_texts())
    yield from ("33", "333", "3333", "33333 333333\n3333333", "Hello, y'all! \U0001f601 ?\u6211\u60f3\u5728apple\u5de5\u4f5c3333\u5929\uff5e", "\n\n\n \n\t\n", "x \n\n y  ",
                "\u00f7 \n\u00f7 ")
    yield "".join(r.choice(["one two", "<", "\uff5c>", " ", "\n", tokens[0][:3]] + tokens) for _ in range(60))


def write_tokenizer(name, content, add_bos):
    from tokenizers import Tokenizer
    t = Tokenizer.from_str(json.dumps(content))
    lines = []
    for text in cases([token["content"] for token in content["added_tokens"]], len(name)):
        t.encode_special_tokens = False
        ids = t.encode(text, add_special_tokens=False).ids
        t.encode_special_tokens = True
        plain = t.encode(text, add_special_tokens=False).ids
        lines.append(json.dumps([text, ids, plain if plain != ids else None], separators=(",", ":")))
    ends = [{"__type": "AddedToken"} | added(content, False, True) for content in ENDS]
    config = {"add_bos_token": add_bos, "add_eos_token": False, "bos_token": ends[0], "eos_token": ends[1], "pad_token": ends[1],
              "model_max_length": 16384, "unk_token": None, "tokenizer_class": "LlamaTokenizerFast"}
    (OUT / name).mkdir(exist_ok=True)
    (OUT / name / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    (OUT / name / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False) + "\n")
    (OUT / name / "vectors.json").write_text("[" + ",\n".join(lines) + "]\n")


def main():
    OUT.mkdir(exist_ok=True)
    configs = ",\n".join(json.dumps(name) + ": " + json.dumps(config) for name, config in CONFIGS.items())
    (OUT / "configs.json").write_text("{" + configs + "}\n")
    (OUT / "tensors.tsv").write_text("# name\tdtype\tshape; {0-2} stands for 0, 1 and 2\n" + "\n".join(tensor_lines()) + "\n")
    pieces, merges = vocabulary()
    v2 = tokenizer_json(pieces, merges, CUTS_V2, [], [added(c, False, True) for c in ENDS], True)
    front = [added(c, True, False) for c in (*ENDS, "<\uff5c\u2581pad\u2581\uff5c>")]
    roles = [added(c, c == "<|EOT|>", True) for c in ROLES]
    holders = [added(f"<\uff5cplace\u2581holder\u2581no\u2581{i}\uff5c>", True, False) for i in range(4)]
    think = [added(c, False, True) for c in ("<think>", "</think>")]
    write_tokenizer("DeepSeek-V2", v2, True)
    write_tokenizer("DeepSeek-V3", tokenizer_json(pieces, merges, CUTS_V3, front, holders + roles, False), False)
    write_tokenizer("DeepSeek-R1", tokenizer_json(pieces, merges, CUTS_V3, front, holders[:2] + think + roles, False), True)


if __name__ == "__main__":
    main()
