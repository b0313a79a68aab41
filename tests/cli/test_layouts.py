#!/usr/bin/env python3
"""test_layouts.py VERBATIM: tiny checkpoints in the layouts of published files give the bits of the same weights in the usual layout.

Needs nothing but Python: files are cut up and put together as bytes."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import traceback

VERBATIM = sys.argv[1]
TINY = "golden/tiny/"


def read(path):
    """name -> [dtype, shape, bytes], of all shards"""
    out = {}
    for file in sorted(os.listdir(path)):
        if file.endswith(".safetensors"):
            with open(os.path.join(path, file), "rb") as f:
                header, data = json.loads(f.read(struct.unpack("<Q", f.read(8))[0])), f.read()
            out.update({n: [t["dtype"], t["shape"], data[slice(*t["data_offsets"])]] for n, t in header.items() if n[0] != "_"})
    return out


def write(path, tensors, config):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


def config_of(path):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def run(path, *more):
    return subprocess.run([VERBATIM, *more[:1], path, *more[1:]], capture_output=True, text=True, timeout=300)


def fingerprints(path):
    """of two runs, the second with drafts if the model has modules"""
    out = []
    for options in (["--precision", "f32"], ["--precision", "bf16", "--draft-tokens", "2"]):
        ran = run(path, "generate", "--tokens", "5,6,7,70,9,33,17", "-n", "40", "--ignore-eos", "--json", *options)
        assert ran.returncode == 0, ran.stderr
        out.append(json.loads(ran.stdout)["fingerprint"])
    return out


def refused(path, sentence):
    ran = run(path, "inspect")
    assert ran.returncode != 0 and sentence in ran.stderr and ran.stderr.count("\n") == 1, ran.stderr


def fused(tensors, experts):
    """the experts of each layer as transformers stores them: gate_up_proj [E, 2i, d] and down_proj [E, d, i]"""
    out = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." not in name:
            out[name] = tensor
        elif ".experts.0.gate_proj.weight" in name:
            stem, suffix = name.split("0.gate_proj.weight")
            of = lambda e, part: tensors[f"{stem}{e}.{part}_proj.weight{suffix}"]
            dtype, (i, d), _ = of(0, "gate")
            both = b"".join(of(e, part)[2] for e in range(experts) for part in ("gate", "up"))
            out[stem + "gate_up_proj" + suffix] = [dtype, [experts, 2 * i, d], both]
            out[stem + "down_proj" + suffix] = [dtype, [experts, d, i], b"".join(of(e, "down")[2] for e in range(experts))]
    return out


def mistral_small():
    """Mistral Small 4 as transformers saves it: a model of images and text, fused experts"""
    config = config_of(TINY + "mistral4")
    inner = {k: v for k, v in config.items() if k != "architectures"}
    tensors = {n if n.startswith("lm_head") else n.replace("model.", "model.language_model.", 1): t
               for n, t in fused(read(TINY + "mistral4"), config["n_routed_experts"]).items()}
    tensors["model.vision_tower.patch_conv.weight"] = ["BF16", [2, 3], bytes(12)]
    tensors["model.multi_modal_projector.norm.weight"] = ["BF16", [4], bytes(8)]
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": inner,
             "vision_config": {"model_type": "pixtral"}, "image_token_id": 10}
    return tensors, outer


def a_language_model_inside_a_larger_one():
    with tempfile.TemporaryDirectory() as path:
        tensors, config = mistral_small()
        write(path, tensors, config)
        assert fingerprints(path) == fingerprints(TINY + "mistral4")
        ran = run(path, "inspect")
        assert "vision tower" in ran.stdout, ran.stdout
        ran = run(path, "dump", "--reference", "--tokens", "5,6,7", "-o", path + "/d.safetensors")
        assert ran.returncode == 0, ran.stderr
        write(path, tensors, {k: v for k, v in config.items() if k != "text_config"})
        refused(path, "text_config is missing, wanted an object")
        inner = dict(config["text_config"], model_type="ministral3")
        write(path, tensors, dict(config, text_config=inner))
        refused(path, 'model_type "ministral3" is not supported')
        odd = dict(tensors)
        name = next(n for n in tensors if n.endswith("gate_up_proj"))
        odd[name] = ["BF16", [8 * 24, 64], tensors[name][2]]
        write(path, odd, config)
        refused(path, "has 2 dimensions, wanted [experts, rows, columns]")
        odd[name] = ["BF16", [4, 48, 64], tensors[name][2]]
        write(path, odd, config)
        refused(path, "experts.0.gate_proj.weight is [24,64], config.json says [12,64]")
    with tempfile.TemporaryDirectory() as path:  # Kimi-K2.5's prefixes, around a model with FP8 weights and an MTP layer
        inner = config_of(TINY + "v3")
        tensors = {("language_model." if n[0] in "ml" else "") + n: t for n, t in read(TINY + "v3").items()}
        tensors["vision_tower.encoder.final_layernorm.weight"] = ["F32", [1], bytes(4)]
        tensors["mm_projector.proj.0.bias"] = ["F32", [1], bytes(4)]
        outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "vision_config": {},
                 "quantization_config": inner.pop("quantization_config"), "text_config": inner}
        write(path, tensors, outer)
        assert fingerprints(path) == fingerprints(TINY + "v3")


def number_of_e4m3(code):
    sign, exponent, mantissa = 1 - 2 * (code >> 7), code >> 3 & 15, code & 7
    return sign * (mantissa / 8 * 2.0 ** -6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def bf16(x):
    return struct.pack("<f", x)[2:]  # exact for what is converted here


def fp8_with_one_scale_for_each_matrix():
    """Mistral's FP8 files. Codes times a power of two are exact in BF16, so there is a BF16 checkpoint of the same numbers."""
    plain, config = read(TINY + "mistral4"), config_of(TINY + "mistral4")
    coded, same, values = {}, {}, [bf16(number_of_e4m3(code) * 2.0 ** -9) for code in range(256)]
    for n, (name, (dtype, shape, data)) in enumerate(plain.items()):
        if not name.endswith("_proj.weight") and "proj_with_mqa" not in name:
            coded[name] = same[name] = [dtype, shape, data]
            continue
        codes = bytes((data[i] if data[i] & 0x7f != 0x7f else 3) for i in range(0, len(data), 2))
        scalar = [["F32", [], struct.pack("<f", 2.0 ** -9)], ["BF16", [], bf16(2.0 ** -9)]][n % 2]
        if ".mlp.experts." in name:
            scalar = ["F32", [], scalar[2] if n % 2 == 0 else struct.pack("<f", 2.0 ** -9)]
        coded[name] = ["F8_E4M3", shape, codes]
        coded[name + "_scale_inv"] = scalar
        coded[name.replace(".weight", ".activation_scale")] = ["F32", [], struct.pack("<f", 1.0)]
        same[name] = ["BF16", shape, b"".join(values[c] for c in codes)]
    fp8 = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as exact:
        write(exact, same, config)
        write(path, coded, dict(config, quantization_config=fp8))
        wanted = fingerprints(exact)
        assert fingerprints(path) == wanted
        ran = run(path, "inspect")
        assert "a scale of activations" in ran.stdout, ran.stdout
        experts = config["n_routed_experts"]
        one = {n: t for n, t in coded.items() if ".mlp.experts." not in n or (n.endswith(".weight"))}
        one = fused(one, experts)
        for layer in range(config["num_hidden_layers"]):  # as transformers fuses them: one scale for gate and up of an expert
            stem = f"model.layers.{layer}.mlp.experts."
            for part in ("gate_up_proj", "down_proj"):
                one[f"{stem}{part}_scale_inv"] = ["F32", [experts, 1, 1], experts * struct.pack("<f", 2.0 ** -9)]
                one[f"{stem}{part}_activation_scale"] = ["F32", [experts], experts * struct.pack("<f", 1.0)]
        write(path, one, dict(config, quantization_config=fp8))
        assert fingerprints(path) == wanted
        write(path, coded, dict(config, quantization_config=dict(fp8, weight_block_size=[128, 128])))
        refused(path, 'quantization_config.activation_scheme "static" is not supported, only dynamic')


def main():
    failed = 0
    tests = [a_language_model_inside_a_larger_one, fp8_with_one_scale_for_each_matrix]
    for test in tests:
        try:
            test()
            print(f"[       OK ] {test.__name__}", flush=True)
        except Exception:  # of whatever kind: the others shall run, too
            failed += 1
            traceback.print_exc()
            print(f"[  FAILED  ] {test.__name__}", flush=True)
    print(f"[  PASSED  ] {len(tests) - failed} test(s).")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
