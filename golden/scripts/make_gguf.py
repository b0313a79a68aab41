#!/usr/bin/python3
"""Writes golden/gguf/tiny.gguf: a whole model (deepseek2, three layers, the last an MTP layer) with a tokenizer, so small
that most of it is header; with --quantized the same of rows of 32 numbers, in blocks of them; and with --indexer the same with
sparse attention (glm-dsa; the second layer has no indexer) and fused experts. They are what tests/fuzz/fuzz_gguf.c mutates. Needs
nothing but Python.

    golden/scripts/make_gguf.py golden/gguf/tiny.gguf
    golden/scripts/make_gguf.py golden/gguf/tiny-quantized.gguf --quantized
    golden/scripts/make_gguf.py golden/gguf/tiny-indexer.gguf --indexer
"""
import random
import struct
import sys

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
QUANTIZED, INDEXER = "--quantized" in sys.argv, "--indexer" in sys.argv
# the letters of docs/SEMANTICS.md; W: value, I: width of every layer
D, V, H, C, N, R, W, E, I = (32, 16, 1, 32, 32, 2, 32, 4, 32) if QUANTIZED else (8, 16, 2, 6, 4, 2, 4, 4, 4)
OF = "glm-dsa." if INDEXER else "deepseek2."
INDEX_HEADS, INDEX_DIM, INDEX_TOPK = 2, 128, 3


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def item(kind, x):
    if kind == STRING:
        return text(x)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], x)


def key(name, kind, x):
    if isinstance(x, list):
        return text(name) + struct.pack("<IIQ", ARRAY, kind, len(x)) + b"".join(item(kind, y) for y in x)
    return text(name) + struct.pack("<I", kind) + item(kind, x)


TOKENS = ["<bos>", "<eos>", "a", "b", "c", "t", "h", "e", "\u0120", "\u010a", "th", "the", "<think>", ".", "1", "[PAD15]"]
KINDS = [3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 5]
KEYS = [
    key("general.architecture", STRING, OF[:-1]), key("general.alignment", U32, 32),
    key(OF + "vocab_size", U32, V), key(OF + "context_length", U32, 64), key(OF + "embedding_length", U32, D),
    key(OF + "block_count", U32, 3), key(OF + "nextn_predict_layers", U32, 1), key(OF + "feed_forward_length", U32, I),
    key(OF + "attention.head_count", U32, H), key(OF + "attention.head_count_kv", U32, 1),
    key(OF + "attention.key_length", U32, C + R), key(OF + "attention.value_length", U32, C),
    key(OF + "attention.key_length_mla", U32, N + R), key(OF + "attention.value_length_mla", U32, W),
    key(OF + "attention.q_lora_rank", U32, C), key(OF + "attention.kv_lora_rank", U32, C),
    key(OF + "attention.layer_norm_rms_epsilon", F32, 1e-6), key(OF + "rope.dimension_count", U32, R),
    key(OF + "rope.freq_base", F32, 10000.0), key(OF + "leading_dense_block_count", U32, 1),
    key(OF + "expert_feed_forward_length", U32, I), key(OF + "expert_count", U32, E), key(OF + "expert_used_count", U32, 2),
    key(OF + "expert_shared_count", U32, 1), key(OF + "expert_group_count", U32, 2),
    key(OF + "expert_group_used_count", U32, 1), key(OF + "expert_weights_scale", F32, 2.5),
    key(OF + "expert_weights_norm", BOOL, True), key(OF + "expert_gating_func", U32, 2),
    key(OF + "rope.scaling.type", STRING, "yarn"), key(OF + "rope.scaling.factor", F32, 4.0),
    key(OF + "rope.scaling.original_context_length", U32, 16), key(OF + "rope.scaling.yarn_log_multiplier", F32, 0.0707),
    key("tokenizer.ggml.model", STRING, "gpt2"), key("tokenizer.ggml.pre", STRING, "deepseek-v3"),
    key("tokenizer.ggml.tokens", STRING, TOKENS), key("tokenizer.ggml.token_type", I32, KINDS),
    key("tokenizer.ggml.merges", STRING, ["t h", "th e"]), key("tokenizer.ggml.bos_token_id", U32, 0),
    key("tokenizer.ggml.eos_token_id", U32, 1), key("tokenizer.ggml.add_bos_token", BOOL, True),
]

if INDEXER:
    KEYS += [key(OF + "attention.indexer.head_count", U32, INDEX_HEADS), key(OF + "attention.indexer.key_length", U32, INDEX_DIM),
             key(OF + "attention.indexer.top_k", U32, INDEX_TOPK), key(OF + "attention.indexer.types", BOOL, [True, False]),
             key("verbatim.index_share_for_mtp_iteration", BOOL, True)]

BF16, F16, F = 30, 1, 0
TENSORS = [("token_embd.weight", BF16, (V, D)), ("output.weight", F16, (V, D)), ("output_norm.weight", F, (D,))]
for b in range(3):
    p = f"blk.{b}."
    TENSORS += [
        (p + "attn_norm.weight", F, (D,)), (p + "ffn_norm.weight", F, (D,)), (p + "attn_q_a.weight", BF16, (C, D)),
        (p + "attn_q_a_norm.weight", F, (C,)), (p + "attn_q_b.weight", BF16, (H * (N + R), C)),
        (p + "attn_kv_a_mqa.weight", BF16, (C + R, D)), (p + "attn_kv_a_norm.weight", F, (C,)),
        (p + "attn_output.weight", BF16, (D, H * W))]
    if b == 1:
        TENSORS += [(p + "attn_kv_b.weight", BF16, (H * (N + W), C))]
    else:
        TENSORS += [(p + "attn_k_b.weight", BF16, (H, C, N)), (p + "attn_v_b.weight", BF16 if b else F16, (H, W, C))]
    if INDEXER and b != 1:
        TENSORS += [(p + "indexer.attn_q_b.weight", BF16, (INDEX_HEADS * INDEX_DIM, C)), (p + "indexer.attn_k.weight", BF16, (INDEX_DIM, D)),
                    (p + "indexer.k_norm.weight", F, (INDEX_DIM,)), (p + "indexer.k_norm.bias", F, (INDEX_DIM,)),
                    (p + "indexer.proj.weight", F, (INDEX_HEADS, D))]
    if b == 0:
        TENSORS += [(p + "ffn_gate.weight", BF16, (I, D)), (p + "ffn_up.weight", BF16, (I, D)),
                    (p + "ffn_down.weight", BF16, (D, I))]
        continue
    TENSORS += [(p + "ffn_gate_inp.weight", F, (E, D)), (p + "exp_probs_b.bias", F, (E,))]
    for kind, lead in (("exps", (E,)), ("shexp", ())):
        if INDEXER and lead:
            TENSORS += [(p + "ffn_gate_up_exps.weight", BF16, (E, 2 * I, D)), (p + "ffn_down_exps.weight", BF16, (E, D, I))]
            continue
        TENSORS += [(p + f"ffn_gate_{kind}.weight", BF16, lead + (I, D)), (p + f"ffn_up_{kind}.weight", BF16, lead + (I, D)),
                    (p + f"ffn_down_{kind}.weight", BF16, lead + (D, I))]
TENSORS += [("blk.2.nextn." + n, F, (D,)) for n in ("enorm.weight", "hnorm.weight", "shared_head_norm.weight")]
TENSORS += [("blk.2.nextn.eh_proj.weight", BF16, (D, 2 * D))]


BLOCKS = {8: 34, 2: 18, 6: 22, 7: 24}  # Q8_0, Q4_0, Q5_0, Q5_1: bytes of 32 numbers


def quantized():
    """BF16 becomes one of four types, the next one each time; one attn_k_b stays."""
    for i, (name, kind, shape) in enumerate(TENSORS):
        yield name, (8, 2, 6, 7)[i % 4] if kind == BF16 and name != "blk.2.attn_k_b.weight" else kind, shape


def block(rng, kind):
    scales = struct.pack("<e", rng.uniform(0.001, 0.01)) * (2 if kind == 7 else 1)
    return scales + bytes(rng.randrange(256) for _ in range(BLOCKS[kind] - len(scales)))


def main():
    rng = random.Random(1)
    infos, data = b"", b""
    for name, kind, shape in quantized() if QUANTIZED else TENSORS:
        data += b"\0" * (-len(data) % 32)
        infos += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        infos += struct.pack("<IQ", kind, len(data))
        count = 1
        for n in shape:
            count *= n
        for _ in range(count // 32 if kind in BLOCKS else 0):
            data += block(rng, kind)
        for _ in range(0 if kind in BLOCKS else count):
            x = rng.uniform(-1, 1)
            data += struct.pack("<f", x) if kind == F else struct.pack("<e", x) if kind == F16 else struct.pack("<f", x)[2:]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(TENSORS), len(KEYS)) + b"".join(KEYS) + infos
    with open(sys.argv[1], "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)


main()
