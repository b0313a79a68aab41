#!/usr/bin/env python3
"""test_layouts_int8.py VERBATIM [TEST]: int8 weights with a scale for each row, in the files of ModelSlim and of compressed-tensors,
are the numbers code * scale, rounded to f32 once."""
import json
import os
import struct
import sys
import tempfile

from running import run_tests
from test_layouts import (TINY, bf16, changed, config_of, engine_is_reference_in_q8_and_q4, f32, fingerprints, read, reference_numbers,
                          refused, run, write)

DESCRIPTION = "quant_model_description.json"
OPTIONS = ["--tokens", "5,6,7,70,9,33,17", "-n", "40", "--ignore-eos", "--json"]


def is_matrix(name):
    return name.endswith("proj.weight") or ".wq_b." in name or ".wk." in name or "proj_with_mqa" in name


def int8_rows(tiny, form, exact_in_f16=False):
    """(coded, F32 of the same numbers, config, description). kv_b_proj and the MTP layer are not quantized, as in the files of vLLM
    Ascend. Scales are F32, or BF16 with compressed-tensors and in old files."""
    plain, config, random = read(TINY + tiny), config_of(TINY + tiny), 3
    config.pop("quantization_config", None)
    coded, same, schemes = {}, {}, {"model_quant_type": "W8A8_DYNAMIC", "version": "1.0.0", "group_size": 0, "metadata": {}}
    mtp = f"model.layers.{config['num_hidden_layers']}."
    for name, (dtype, shape, data) in plain.items():
        if name.endswith("_scale_inv"):
            continue
        if not is_matrix(name):
            coded[name] = same[name] = [dtype, shape, data]
            schemes[name] = "FLOAT"
            continue
        rows, cols = shape
        codes = [(b ^ 0x5a) - 256 if b ^ 0x5a > 127 else b ^ 0x5a for b in data[::len(data) // (rows * cols)]]
        if "kv_b_proj" in name or name.startswith(mtp):
            same[name] = coded[name] = ["BF16", shape, b"".join(bf16(c * 2.0 ** -9) for c in codes)]
            schemes[name] = "FLOAT"
            continue
        scales = []
        for _ in range(rows):
            random = random * 1103515245 + 12345 & 0x7fffffff
            scales.append(f32(2.0 ** -9 * (1 + (random >> 8 & 0x7f) / 128 if form != "modelslim" or exact_in_f16 else 1 + random / 2 ** 31)))
        numbers = [f32(c * scales[i // cols]) for i, c in enumerate(codes)]
        same[name] = ["F32", shape, struct.pack(f"<{len(numbers)}f", *numbers)]
        coded[name] = ["I8", shape, struct.pack(f"<{len(codes)}b", *codes)]
        as_f32 = form == "modelslim"
        dims = [rows] if len(coded) % 2 else [rows, 1]
        coded[name + "_scale"] = ["F32" if as_f32 else "BF16", dims, b"".join(struct.pack("<f", s) if as_f32 else bf16(s) for s in scales)]
        if form != "compressed-tensors":
            coded[name + "_offset"] = ["F32" if as_f32 else "BF16", dims, bytes(rows * (4 if as_f32 else 2))]
        for end in "", "_scale", "_offset":
            schemes[name + end] = "W8A8_DYNAMIC" if len(coded) % 3 else "W8A16"
    return coded, same, config, schemes


def compressed_tensors():
    weights = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8, "observer": "minmax",
               "strategy": "channel", "symmetric": True, "type": "int"}
    group = {"input_activations": dict(weights, dynamic=True, strategy="token"), "output_activations": None, "targets": ["Linear"],
             "weights": weights, "format": "int-quantized"}
    return {"config_groups": {"group_0": group}, "format": "int-quantized", "ignore": ["lm_head"], "kv_cache_scheme": None,
            "quant_method": "compressed-tensors", "quantization_status": "compressed"}


def describe(path, schemes, name=DESCRIPTION):
    with open(os.path.join(path, name), "w", encoding="utf-8") as f:
        json.dump(schemes, f)


def write_shards(path, stem, tensors, config):
    """Two shards and their index, under ModelSlim's names."""
    names, weight_map = sorted(tensors), {}
    for i in range(2):
        part = {n: tensors[n] for n in names[i::2]}
        write(path, part, config)
        file = f"{stem}-0000{i + 1}-of-00002.safetensors"
        os.rename(path + "/model.safetensors", f"{path}/{file}")
        weight_map.update(dict.fromkeys(part, file))
    with open(f"{path}/{stem}.safetensors.index.json", "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": weight_map}, f)


def integers_of_eight_bits():
    """The three forms are the same numbers in F32; the reference agrees in every precision."""
    for form in "modelslim", "old modelslim", "compressed-tensors":
        coded, same, config, schemes = int8_rows("v3-mtp3", form)
        assert sum(t[0] == "I8" for t in coded.values()) > 20, "the checkpoint has too few int8 matrices"
        with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as exact:
            write(exact, same, config)
            wanted = fingerprints(exact)
            if form == "modelslim":
                write(path, coded, config)
                os.rename(path + "/model.safetensors", path + "/quant_model_weights.safetensors")
                describe(path, schemes)
            elif form == "old modelslim":
                write_shards(path, "quant_model_weight_w8a8_dynamic", coded, config)
                describe(path, schemes, "quant_model_description_w8a8_dynamic.json")
            else:
                write(path, coded, dict(config, quantization_config=compressed_tensors()))
            assert fingerprints(path) == wanted, form + ": other bits than those of the same numbers in F32"
            ran = run(path, "inspect", "--check")
            assert ran.returncode == 0 and "I8" in ran.stdout and "int8 scales" in ran.stdout, ran.stdout + ran.stderr
            assert reference_numbers(path, exact) == reference_numbers(exact, exact), form + ": the reference computes with other numbers"
            engine_is_reference_in_q8_and_q4(path)


def codes_of_eight_bits_are_kept():
    """Precision q8 quantizes no weight again, and neither does a Q8_0 file if f16 holds every scale."""
    coded, _, config, schemes = int8_rows("v3-mtp3", "modelslim", exact_in_f16=True)
    with tempfile.TemporaryDirectory() as path:
        write(path, coded, config)
        describe(path, schemes)
        results = []
        for more in (["q8"], ["q8", "--repack", "off"], ["q8", "--isa", "scalar"], ["q8", "--isa", "avx2"], ["q4"], ["f32"]):
            ran = run(path, "generate", *OPTIONS, "--precision", *more)
            if ran.returncode and "avx2" in more and "avx2" in ran.stderr:  # not on this CPU
                continue
            assert ran.returncode == 0, ran.stderr
            results.append(json.loads(ran.stdout)["fingerprint"])
        assert len(set(results[:-2])) == 1 and len(set(results)) == 3, results
        file = path + "/model.gguf"
        ran = run(path, "quantize", "--type", "q8_0", "-o", file)
        assert ran.returncode == 0 and "no f16" not in ran.stdout, ran.stdout + ran.stderr
        ran = run(file, "generate", *OPTIONS)
        assert ran.returncode == 0 and json.loads(ran.stdout)["fingerprint"] == results[0], ran.stdout + ran.stderr
        name = next(n for n in coded if n.endswith("experts.1.up_proj.weight_scale"))
        dtype, shape, data = coded[name]
        coded[name] = [dtype, shape, struct.pack("<f", 2.0 ** -40) + data[4:]]
        write(path, coded, config)
        ran = run(path, "quantize", "--type", "q8_0", "-o", file, "--force")
        assert ran.returncode == 0 and "1 of " in ran.stdout and "rows of int8 weights have a scale that is no f16" in ran.stdout, ran.stdout


def what_is_not_supported():
    coded, _, config, schemes = int8_rows("v3-mtp3", "modelslim")
    stem = next(n for n in coded if n.endswith("q_a_proj.weight"))
    rows, cols = coded[stem][1]
    mtp = f"model.layers.{config['num_hidden_layers']}."
    with tempfile.TemporaryDirectory() as path:
        write(path, coded, config)
        refused(path, "q_a_proj.weight is I8, wanted quant_model_description.json, or a quantization_config of int8 weights in config.json")
        for name, scheme, sentence in [
                (stem, "W8A8", f'{DESCRIPTION}: "{stem}" is "W8A8" (static quantization), which is not supported, only FLOAT, W8A8_DYNAMIC and W8A16'),
                (stem, "W4A8_DYNAMIC", f'"{stem}" is "W4A8_DYNAMIC", which is not supported'),
                (stem + "_packed", "W4A8_DYNAMIC", f'"{stem}_packed" is "W4A8_DYNAMIC", which is not supported'),
                (stem, 8, f'"{stem}" is 8, which is not supported'),
                ("metadata", {"quarot": {"max_tp_size": 4}}, 'metadata.quarot {"max_tp_size":4} is not supported, only null')]:
            describe(path, dict(schemes, **{name: scheme}))
            refused(path, sentence)
        describe(path, dict(schemes, **{"visual.blocks.0.attn.proj.weight": "W8A8", stem.replace("weight", "quant_bias"): "W8A8", "fa_quant_type": "FAQuant"}))
        assert run(path, "inspect").returncode == 0
        describe(path, [])
        refused(path, DESCRIPTION + ": it is not an object")
        with open(os.path.join(path, DESCRIPTION), "w", encoding="utf-8") as f:
            f.write("{")
        refused(path, DESCRIPTION + ": line 1")
        describe(path, schemes)
        scale = coded[stem + "_scale"]
        for name, tensor, sentence in [
                (stem + "_scale", None, "weight_scale is missing"),
                (stem + "_scale", ["F32", [rows, 2], scale[2] * 2], f"weight_scale is [{rows},2], config.json says [{rows},1]"),
                (stem + "_scale", ["F32", [rows - 1], scale[2][4:]], f"weight_scale is [{rows - 1}], config.json says [{rows}]"),
                (stem + "_scale", ["F16", [rows], scale[2][:2 * rows]], "weight_scale is F16, wanted F32 or BF16"),
                (stem + "_offset", ["F32", [rows, 1], bytes(4 * rows - 2) + b"\x80\x3f"],
                 f"weight_offset is not 0 for row {rows - 1}, only symmetric quantization is supported"),
                (stem + "_offset", ["F32", [1], bytes(4)], f"weight_offset is [1], config.json says [{rows}]"),
                (stem.replace("weight", "deq_scale"), ["F32", [rows], bytes(4 * rows)], "deq_scale has no place in the model"),
                (mtp + "rot.weight", ["BF16", [4, 4], bytes(32)], f"wants hidden states that are rotated by {mtp}rot.weight"),
                (stem, ["I8", [rows, cols // 2], coded[stem][2][::2]], f"q_a_proj.weight is [{rows},{cols // 2}], config.json says")]:
            odd = {n: t for n, t in coded.items() if n != name}
            if tensor:
                odd[name] = tensor
            write(path, odd, config)
            refused(path, sentence)
            if "not 0" in sentence:
                ran = run(path, "dump", "--reference", "--tokens", "5", "-o", path + "/d.safetensors")
                assert ran.returncode != 0 and "weight_offset is not 0" in ran.stderr, ran.stderr
        bad = struct.pack("<f", float("inf")) + scale[2][4:]
        write(path, dict(coded, **{stem + "_scale": ["F32", scale[1], bad]}), config)
        ran = run(path, "inspect", "--check")
        assert ran.returncode != 0 and "q_a_proj.weight_scale [0" in ran.stderr and "is not finite" in ran.stderr, ran.stderr
        os.remove(os.path.join(path, DESCRIPTION))
        int8, weights = compressed_tensors(), ("config_groups", "group_0", "weights")
        whole = "quantization_config.config_groups.group_0."
        for keys, value, sentence in [
                ((*weights, "num_bits"), 4, whole + "weights.num_bits 4 is not supported, only 8"),
                ((*weights, "group_size"), 128, whole + "weights.group_size 128 is not supported, only null"),
                ((*weights, "strategy"), "tensor", whole + 'weights.strategy "tensor" is not supported, only channel'),
                ((*weights, "symmetric"), False, whole + "weights.symmetric false is not supported, only true"),
                (("config_groups", "group_0", "input_activations", "dynamic"), False, whole + "input_activations.dynamic false is not supported, only true"),
                (("config_groups", "group_0", "output_activations"), {"num_bits": 8}, whole + "output_activations")]:
            write(path, coded, dict(config, quantization_config=changed(int8, *keys, value=value)))
            refused(path, sentence)


if __name__ == "__main__":
    sys.exit(run_tests([integers_of_eight_bits, codes_of_eight_bits_are_kept, what_is_not_supported]))
