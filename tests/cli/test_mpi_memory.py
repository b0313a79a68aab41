#!/usr/bin/env python3
"""test_mpi_memory.py VERBATIM: each of two ranks, with a file of its own, reads its rows of the experts and no page of the other rank's.

The model's weights are all 0, so the files are sparse and take no space on the disk. The test asks mincore(2) which pages of a file are in
the page cache. In the file, far more bytes than any read-ahead lie before and behind the experts. Runs in the repository's root, with
Python's standard library alone."""

import ctypes
import json
import math
import mmap
import os
import subprocess
import sys
import tempfile

from test_mpi import HERE, command, output

LAYERS, EXPERTS, WIDTH, HIDDEN, HEADS, LATENT, HEAD, VOCAB = 2, 8, 512, 256, 4, 96, 32, 256
CONFIG = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": WIDTH,
          "moe_intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_nextn_predict_layers": 0, "num_attention_heads": HEADS, "q_lora_rank": LATENT,
          "kv_lora_rank": LATENT, "qk_nope_head_dim": HEAD, "qk_rope_head_dim": HEAD, "v_head_dim": HEAD, "n_routed_experts": EXPERTS, "n_shared_experts": 1,
          "num_experts_per_tok": EXPERTS, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
          "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": False}
HEADER = 1 << 16  # bytes before the data
APART = 1 << 30  # bytes of a tensor that no model reads
PLACES = 256  # pages that the fingerprint reads, evenly spread over all matrices
PAGE = mmap.PAGESIZE


def mlp(prefix):
    return [(f"{prefix}.gate_proj.weight", [WIDTH, HIDDEN]), (f"{prefix}.up_proj.weight", [WIDTH, HIDDEN]), (f"{prefix}.down_proj.weight", [HIDDEN, WIDTH])]


def layer(prefix):
    a = f"{prefix}.self_attn"
    return [(f"{prefix}.input_layernorm.weight", [HIDDEN]), (f"{prefix}.post_attention_layernorm.weight", [HIDDEN]), (f"{a}.q_a_proj.weight", [LATENT, HIDDEN]),
            (f"{a}.q_a_layernorm.weight", [LATENT]), (f"{a}.q_b_proj.weight", [HEADS * 2 * HEAD, LATENT]), (f"{a}.kv_a_proj_with_mqa.weight", [LATENT + HEAD, HIDDEN]),
            (f"{a}.kv_a_layernorm.weight", [LATENT]), (f"{a}.kv_b_proj.weight", [HEADS * 2 * HEAD, LATENT]), (f"{a}.o_proj.weight", [HIDDEN, HEADS * HEAD]),
            (f"{prefix}.mlp.gate.weight", [EXPERTS, HIDDEN]), (f"{prefix}.mlp.gate.e_score_correction_bias", [EXPERTS])]


def write_model(folder):
    """Returns where the matrices of experts, also of shared ones, begin and end in the file, and how many bytes all tensors have."""
    layers = [f"model.layers.{i}" for i in range(LAYERS)]
    experts = [t for name in layers for e in ["shared_experts"] + [f"experts.{i}" for i in range(EXPERTS)] for t in mlp(f"{name}.mlp.{e}")]
    apart = [(f"vision_tower.{i}", [APART // 1024, 512]) for i in range(2)]
    outside = [("model.embed_tokens.weight", [VOCAB, HIDDEN]), ("model.norm.weight", [HIDDEN]), ("lm_head.weight", [VOCAB, HIDDEN])]
    header, places, at = {}, [], 0
    for name, shape in [apart[0], *experts, apart[1], *outside, *[t for name in layers for t in layer(name)]]:
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        if (name, shape) in experts:
            places.append((HEADER + at, HEADER + end))
        at = end
    os.mkdir(folder)
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        json.dump(CONFIG, file)
    with open(f"{folder}/model.safetensors", "wb") as file:
        file.write((HEADER - 8).to_bytes(8, "little") + json.dumps(header).encode().ljust(HEADER - 8))
        file.truncate(HEADER + at)
    return places, at


def cached_pages(path):
    """A byte for each page of the file: its lowest bit says whether the page is in the page cache."""
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype, c.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    c.mincore.argtypes, c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p], [ctypes.c_void_p, ctypes.c_size_t]
    size, file = os.path.getsize(path), os.open(path, os.O_RDONLY)
    there, pages = c.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file, 0), ctypes.create_string_buffer((size + PAGE - 1) // PAGE)
    assert there != ctypes.c_void_p(-1).value and not c.mincore(there, size, pages), os.strerror(ctypes.get_errno())
    c.munmap(there, size)
    os.close(file)
    return pages.raw


def count(pages, begin, end):
    return sum(p & 1 for p in pages[begin // PAGE:end // PAGE])


def main():
    with tempfile.TemporaryDirectory() as folder:
        if not HERE or subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout == "tmpfs\n":
            print("skipped: no MPI is there, or files in memory\n[  PASSED  ] 0 test(s).")
            return
        ranks = [f"{folder}/{rank}" for rank in range(2)]
        places, size = [write_model(rank) for rank in ranks][0]
        output(command(HERE[0], [[rank] for rank in ranks], ["generate", ".", "--tokens", "5,6,7", "-n", "2", "--ignore-eos", "--json", "--threads", "1"]))
        looked_at = PLACES * sum(end - begin for begin, end in places) // size + 1
        for rank, path in enumerate(ranks):
            pages = cached_pages(f"{path}/model.safetensors")
            halves = [sum(count(pages, begin + half * (end - begin) // 2, begin + (half + 1) * (end - begin) // 2) for begin, end in places) for half in range(2)]
            all_of_half = sum(end - begin for begin, end in places) // 2 // PAGE
            assert halves[rank] == all_of_half, f"rank {rank} has read {halves[rank]} of its {all_of_half} pages of experts"
            assert halves[1 - rank] <= looked_at, f"rank {rank} has read {halves[1 - rank]} pages of the other rank's experts, wanted at most {looked_at}"
    print("[  PASSED  ] 1 test(s).")


if __name__ == "__main__":
    sys.exit(main())
