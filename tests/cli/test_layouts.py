#!/usr/bin/env python3
"""test_layouts.py VERBATIM [TEST]: tiny checkpoints in the layouts of published files give the bits of the usual layout.

Needs nothing but Python: files are cut up and put together as bytes."""
import json
import os
import struct
import subprocess
import sys
import tempfile

from running import run_tests

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
    assert ran.returncode != 0 and sentence in ran.stderr and ran.stderr.count("\n") == 1, f"wanted {sentence!r}, found {ran.stderr!r}"


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
        assert fingerprints(path) == fingerprints(TINY + "mistral4"), "other bits than those of the same weights under the usual names"
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
        assert fingerprints(path) == fingerprints(TINY + "v3"), "other bits than those of the same weights under the usual names"


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
        assert fingerprints(path) == wanted, "other bits than those of the same weights under the usual names"
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
        assert fingerprints(path) == wanted, "other bits than those of the same weights under the usual names"
        write(path, coded, dict(config, quantization_config=dict(fp8, weight_block_size=[128, 128])))
        refused(path, 'quantization_config.activation_scheme "static" is not supported, only dynamic')


def packed_int4(tiny):
    """Matrices packed as Kimi-K2.5's experts, wherever rows are multiples of 32: (packed, F32 of the same numbers, config, its
    quantization_config)"""
    plain, config, random = read(TINY + tiny), config_of(TINY + tiny), 1
    config.pop("quantization_config", None)
    coded, same = {}, {}
    for name, (dtype, shape, data) in plain.items():
        if name.endswith("_scale_inv"):
            continue
        if not name.endswith("proj.weight") and ".wq_b." not in name and ".wk." not in name and "proj_with_mqa" not in name:
            coded[name] = same[name] = [dtype, shape, data]
            continue
        rows, cols = shape
        codes, scales = bytearray(), []
        for byte in data[::len(data) // (rows * cols)]:  # they are random enough
            codes.append((byte ^ byte >> 4) & 15)
        for _ in range(rows * cols // 32 + 1):  # every mantissa, both signs, powers of two from 2^-9 on
            random = random * 1103515245 + 12345 & 0x7fffffff
            scales.append((random >> 8 & 0x1ff) + (118 << 7) | random >> 30 << 15)
        words = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))
        values = [struct.unpack("<f", struct.pack("<I", s << 16))[0] for s in scales]
        numbers = [(c - 8) * values[i // 32] for i, c in enumerate(codes)]
        same[name] = ["F32", shape, struct.pack(f"<{len(numbers)}f", *numbers)]
        if cols % 32:
            coded[name] = same[name]
            continue
        stem = name[:-len(".weight")]
        coded[stem + ".weight_packed"] = ["I32", [rows, cols // 8], words]
        coded[stem + ".weight_scale"] = ["BF16", [rows, cols // 32], struct.pack(f"<{len(scales)}H", *scales)[:-2]]
        wide = random & 1024
        coded[stem + ".weight_shape"] = ["I64" if wide else "I32", [2], struct.pack("<qq" if wide else "<ii", rows, cols)]
    weights = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": 32, "num_bits": 4, "observer": "minmax",
               "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int"}
    group = {"input_activations": None, "output_activations": None, "targets": ["Linear"], "weights": weights}
    int4 = {"config_groups": {"group_0": group}, "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"],
            "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed"}
    return coded, same, config, int4


def changed(int4, *keys, value):
    """int4 with another value at the place that the keys name"""
    copy = json.loads(json.dumps(int4))
    place = copy
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return copy


def reference_numbers(model, folder):
    """The bytes of a reference dump, without the header, which names the model."""
    ran = run(model, "dump", "--reference", "--tokens", "5,6,7", "--force", "-o", folder + "/dump.safetensors")
    assert ran.returncode == 0, ran.stderr
    with open(folder + "/dump.safetensors", "rb") as f:
        file = f.read()
    return file[8 + struct.unpack("<Q", file[:8])[0]:]


def engine_is_reference_in_q8_and_q4(path):
    """In these precisions, `diff` finds no difference between the values of the engine and of the reference."""
    for precision in "q8", "q4":
        for engine, more in ("a", []), ("b", ["--reference"]):
            ran = run(path, "dump", *more, "--tokens", "5,6,7", "--precision", precision, "--force", "-o", f"{path}/{engine}.dump")
            assert ran.returncode == 0, ran.stderr
        ran = run(f"{path}/a.dump", "diff", f"{path}/b.dump")
        assert ran.returncode == 0, precision + "\n" + ran.stdout + ran.stderr


def weights_of_four_bits():
    coded, same, config, int4 = packed_int4("v32")
    with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as exact:
        write(exact, same, config)
        wanted = fingerprints(exact)
        write(path, coded, dict(config, quantization_config=int4))
        assert fingerprints(path) == wanted, "other bits than those of the same numbers in F32"
        ran = run(path, "inspect", "--check")
        assert ran.returncode == 0 and "I4" in ran.stdout and "int4 group_size" in ran.stdout, ran.stdout + ran.stderr
        assert reference_numbers(path, exact) == reference_numbers(exact, exact)
        inner = {"language_model." + n: t for n, t in coded.items()}
        outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "vision_config": {},
                 "text_config": dict(config, quantization_config=int4)}
        write(path, inner, outer)
        assert fingerprints(path) == wanted, "other bits than those of the same weights under the usual names"

        weights = ("config_groups", "group_0", "weights")
        whole = "quantization_config.config_groups.group_0.weights."
        for keys, value, sentence in [
                (("format",), "marlin-24", 'quantization_config.format "marlin-24" is not supported, only pack-quantized, int-quantized, nvfp4-pack-quantized and'),
                (("kv_cache_scheme",), {"num_bits": 8}, "quantization_config.kv_cache_scheme"),
                (("config_groups",), {"group_0": {}, "group_1": {}}, "is not supported, only an object with one group"),
                (("config_groups",), [], "quantization_config.config_groups [] is not supported, only an object with one group"),
                (("config_groups", "group_0"), {}, whole + "num_bits missing is not supported, only 4"),
                (("config_groups", "group_0", "input_activations"), {"num_bits": 8}, "group_0.input_activations"),
                ((*weights, "num_bits"), 8, whole + "num_bits 8 is not supported, only 4"),
                ((*weights, "group_size"), 128, whole + "group_size 128 is not supported, only 32"),
                ((*weights, "strategy"), "channel", whole + 'strategy "channel" is not supported, only group'),
                ((*weights, "type"), "float", whole + 'type "float" is not supported, only int'),
                ((*weights, "symmetric"), False, whole + "symmetric false is not supported, only true"),
                ((*weights, "actorder"), "group", whole + 'actorder "group" is not supported, only null')]:
            write(path, coded, dict(config, quantization_config=changed(int4, *keys, value=value)))
            refused(path, sentence)

        stem = next(n for n in coded if n.endswith("_packed"))[:-len(".weight_packed")]
        rows, words = coded[stem + ".weight_packed"][1]
        scale = coded[stem + ".weight_scale"]
        for name, tensor, sentence in [
                (".weight_packed", ["I32", [words, rows], coded[stem + ".weight_packed"][2]], f".weight is [{words},{8 * rows}], config.json says"),
                (".weight_packed", ["I32", [2 ** 61, 0], b""], f".weight is [{2 ** 61},0], config.json says"),
                (".weight_packed", ["U8", [rows, 4 * words], coded[stem + ".weight_packed"][2]], ".weight_scale is BF16, wanted F8_E4M3"),
                (".weight_scale", None, ".weight_scale is missing"),
                (".weight_scale", ["F16", *scale[1:]], ".weight_scale is F16, wanted BF16"),
                (".weight_scale", ["BF16", [1, *scale[1]], scale[2]], f".weight_scale is [1,{rows},{words // 4}], config.json says"),
                (".weight_shape", None, ".weight_shape is missing"),
                (".weight_shape", ["I32", [2], struct.pack("<ii", rows, words)], f".weight_shape is [{rows},{words}], the packed matrix is"),
                (".weight_shape", ["F32", [2], bytes(8)], ".weight_shape is F32, wanted I32 or I64"),
                (".weight", ["BF16", [rows, 8 * words], bytes(16 * rows * words)], ".weight")]:
            odd = dict(coded)
            odd.pop(stem + name, None)
            if tensor:
                odd[stem + name] = tensor
            write(path, odd, dict(config, quantization_config=int4))
            refused(path, sentence)
        write(path, coded, config)
        refused(path, "has weight_packed, config.json has no quantization_config for it")


def four_bits_as_integers():
    """precision q4 keeps codes and scales, and so does a Q4_0 file if f16 holds every scale"""
    coded, _, config, int4 = packed_int4("mistral4")
    options = ["--tokens", "5,6,7,70,9,33,17", "-n", "40", "--ignore-eos", "--json"]
    with tempfile.TemporaryDirectory() as path:
        write(path, coded, dict(config, quantization_config=int4))
        results = []
        for more in (["--precision", "q4"], ["--precision", "q4", "--repack", "off"], ["--precision", "q4", "--isa", "scalar"],
                     ["--precision", "q8"], ["--precision", "q8", "--repack", "off"], ["--precision", "f32"]):
            ran = run(path, "generate", *options, *more)
            assert ran.returncode == 0, ran.stderr
            results.append(json.loads(ran.stdout)["fingerprint"])
        assert results[0] == results[1] == results[2] and results[3] == results[4] and len(set(results)) == 3, results
        file = path + "/model.gguf"
        ran = run(path, "quantize", "--type", "q4_0", "-o", file)
        assert ran.returncode == 0 and "no f16" not in ran.stdout, ran.stdout + ran.stderr
        ran = run(file, "generate", *options)
        assert ran.returncode == 0 and json.loads(ran.stdout)["fingerprint"] == results[0], ran.stdout + ran.stderr
        engine_is_reference_in_q8_and_q4(path)
        name = next(n for n in coded if n.endswith("experts.1.up_proj.weight_scale"))
        dtype, shape, data = coded[name]
        coded[name] = [dtype, shape, bf16(2.0 ** -40) + data[2:]]
        write(path, coded, dict(config, quantization_config=int4))
        ran = run(path, "quantize", "--type", "q4_0", "-o", file, "--force")
        assert ran.returncode == 0 and "1 of " in ran.stdout and "groups of INT4 weights have a scale that is no f16" in ran.stdout, ran.stdout


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def packed_e2m1(tiny, form):
    """Matrices as published files have them, wherever rows are multiples of 32, and F32 of the same numbers. A double holds every
    product here, and the quotient of two f32 numbers that is rounded to double first is rounded to f32 as without that."""
    plain, config, random = read(TINY + tiny), config_of(TINY + tiny), 7
    config.pop("quantization_config", None)
    coded, same = {}, {}
    for name, (dtype, shape, data) in plain.items():
        if name.endswith("_scale_inv"):
            continue
        if not name.endswith("proj.weight") and ".wq_b." not in name and ".wk." not in name and "proj_with_mqa" not in name or shape[1] % 32:
            coded[name] = same[name] = [dtype, shape, data]
            continue
        (rows, cols), group = shape, 32 if form in ("mxfp4", "quark") else 16
        codes = bytes((b ^ b >> 4) & 15 for b in data[::len(data) // (rows * cols)])
        scales = []
        for _ in range(rows * cols // group):
            random = random * 1103515245 + 12345 & 0x7fffffff
            scales.append((random >> 8) % 5 + 117 if group == 32 else (random >> 8) % 120)
        # as in published files: about the largest weight divided by 6 * 448
        t = f32(0.4 / (6 * 448) * (1 + (random >> 8 & 0xff) / 300))
        t = f32(1 / t) if form == "nvfp4" else t
        values = []
        for s in scales:
            numbers = [n * sign for sign in (1, -1) for n in E2M1]
            if group == 32:
                values.append([n * 2.0 ** (s - 127) for n in numbers])
            elif form == "nvfp4":
                values.append([f32(n * f32(number_of_e4m3(s) / t)) for n in numbers])
            else:
                values.append([f32(n * number_of_e4m3(s) * t) for n in numbers])
        numbers = [values[i // group][c] for i, c in enumerate(codes)]
        same[name] = ["F32", shape, struct.pack(f"<{len(numbers)}f", *numbers)]
        stem, scale_type = name[:-len(".weight")], "F8_E4M3" if group == 16 else "U8" if form == "mxfp4" else "F8_E8M0"
        packed = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, len(codes), 2))
        coded[stem + (".weight_packed" if form in ("nvfp4", "mxfp4") else ".weight")] = ["U8", [rows, cols // 2], packed]
        coded[stem + ".weight_scale"] = [scale_type, [rows, cols // group], bytes(scales)]
        if form == "modelopt":
            coded[stem + ".weight_scale_2"] = ["F32", [], struct.pack("<f", t)]
            coded[stem + ".input_scale"] = ["F32", [], struct.pack("<f", 1.0)]
            coded[stem + ".k_scale"] = ["F32", [], struct.pack("<f", 1.0)]
        if form == "nvfp4":
            coded[stem + ".weight_global_scale"] = ["F32", [1], struct.pack("<f", t)]
            coded[stem + ".input_global_scale"] = ["F32", [1], struct.pack("<f", 1.0)]
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group" if form == "nvfp4" else "group",
               "group_size": 16 if form == "nvfp4" else 32, "dynamic": False}
    group = {"weights": weights, "input_activations": dict(weights, dynamic="local"), "targets": ["Linear"]}
    quantization = {
        "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "ignore": ["lm_head"]},
        "nvfp4": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"group_0": group}},
        "mxfp4": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {"group_0": group}},
        "quark": {"quant_method": "quark", "export": {"pack_method": "reorder"}, "global_quant_config": {"weight": {
            "dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}},
    }[form]
    return coded, same, config, quantization


def floats_of_four_bits():
    """NVFP4 and MXFP4 in the forms of ModelOpt, compressed-tensors and Quark are the same numbers in F32"""
    for form in "modelopt", "nvfp4", "mxfp4", "quark":
        coded, same, config, quantization = packed_e2m1("mistral4", form)
        assert sum("weight_scale" in n for n in coded) > 20, "the checkpoint has too few packed matrices"
        with tempfile.TemporaryDirectory() as path, tempfile.TemporaryDirectory() as exact:
            write(exact, same, config)
            wanted = fingerprints(exact)
            write(path, coded, dict(config, quantization_config=quantization))
            assert fingerprints(path) == wanted, form + ": other bits than those of the same numbers in F32"
            ran = run(path, "inspect", "--check")
            assert ran.returncode == 0 and "F4" in ran.stdout, ran.stdout + ran.stderr
            assert reference_numbers(path, exact) == reference_numbers(exact, exact), form + ": the reference computes with other numbers"
            engine_is_reference_in_q8_and_q4(path)
            if form in ("mxfp4", "quark"):
                mxfp4_files(path, exact)
            if form == "nvfp4":
                ran = run(path, "quantize", "--type", "q8_0", "-o", exact + "/model.gguf")
                assert ran.returncode == 0 and "tensors of NVFP4 weights are quantized again" in ran.stdout, ran.stdout + ran.stderr
            if form == "modelopt":  # with the settings in hf_quant_config.json alone
                write(path, coded, config)
                assert fingerprints(path) == wanted, "other bits than those of the same weights under the usual names"
            damaged_floats_of_four_bits(path, coded, dict(config, quantization_config=quantization), form)


def mxfp4_files(path, folder):
    """quantize keeps the codes and scales, except in W_uk"""
    options = ["--tokens", "5,6,7,70,9,33,17", "-n", "40", "--ignore-eos", "--json"]
    for precision in "q4", "q8":
        ran = run(path, "quantize", "--type", precision + "_0", "-o", folder + "/model.gguf", "--force")
        assert ran.returncode == 0 and "MXFP4" in ran.stdout, ran.stdout + ran.stderr
        wanted, ran = run(path, "generate", *options, "--precision", precision), run(folder + "/model.gguf", "generate", *options)
        assert ran.returncode == 0 and wanted.returncode == 0, ran.stderr + wanted.stderr
        assert json.loads(ran.stdout)["fingerprint"] == json.loads(wanted.stdout)["fingerprint"], "the MXFP4 file has other bits"


def fp8_beside_four_bits(path, coded, config):
    """ModelOpt's mixed files, and Quark's with FP8 attention"""
    name = next(n for n in coded if n.endswith("q_a_proj.weight"))
    rows, cols = coded[name][1][0], 2 * coded[name][1][1]
    fp8 = dict(coded, **{name: ["F8_E4M3", [rows, cols], bytes(rows * cols)], name + "_scale": ["F32", [], struct.pack("<f", 1.0)]})
    write(path, fp8, config)
    refused(path, "q_a_proj.weight is F8_E4M3, config.json has no quantization_config for FP8 weights")


def damaged_floats_of_four_bits(path, coded, config, form):
    stem = next(n for n in coded if n.endswith("weight_scale"))[:-len(".weight_scale")]
    dtype, (rows, groups), scale = coded[stem + ".weight_scale"]
    total = ".weight_global_scale" if form == "nvfp4" else ".weight_scale_2"
    odd = [(".weight_scale", None, ".weight_scale is missing"),
           (".weight_scale", [dtype, [rows, groups // 2], scale[:rows * (groups // 2)]], ".weight_scale is ["),
           (".weight_scale", ["BF16", [rows, groups], 2 * scale], ".weight_scale is BF16, wanted F8_E4M3 (NVFP4), or U8 or F8_E8M0 (MXFP4)")]
    if form in ("modelopt", "nvfp4"):
        odd += [(total, None, ".weight_scale_2 is missing"), (total, ["F32", [2], bytes(8)], "with 8 bytes, wanted one F32 number"),
                (total, ["F32", [1], bytes(4)], total + " is 0, wanted a finite number above 0"),
                (total, ["F32", [1], struct.pack("<f", float("inf"))], total + " is inf, wanted"),
                (total, ["F32", [1], struct.pack("<f", -1.0)], total + " is -1, wanted")]
    for name, tensor, sentence in odd:
        changed_tensors = {n: t for n, t in coded.items() if n != stem + name}
        if tensor:
            changed_tensors[stem + name] = tensor
        write(path, changed_tensors, config)
        refused(path, sentence)
    bad = bytes([127 if dtype == "F8_E4M3" else 255])
    write(path, dict(coded, **{stem + ".weight_scale": [dtype, [rows, groups], scale[:1] + bad + scale[2:]]}), config)
    ran = run(path, "inspect", "--check")
    assert ran.returncode != 0 and ".weight_scale [0,1] is not" in ran.stderr, ran.stderr
    if form in ("mxfp4", "quark"):  # in GGUF, 255 is no NaN
        ran = run(path, "quantize", "--type", "q4_0", "-o", path + "/nan.gguf")
        assert ran.returncode != 0 and "nan, which MXFP4 cannot hold" in ran.stderr, ran.stderr
    if form in ("modelopt", "quark"):
        fp8_beside_four_bits(path, coded, config)
    q = json.loads(json.dumps(config["quantization_config"]))
    if form == "modelopt":
        q["quant_algo"] = "NVFP4_SVD"
    elif form == "quark":
        q["global_quant_config"]["weight"]["group_size"] = 64
    else:
        q["config_groups"]["group_0"]["weights"]["group_size"] = 64
    write(path, coded, dict(config, quantization_config=q))
    refused(path, "is not supported, only")
    if form == "modelopt":
        write(path, coded, dict(config, quantization_config=dict(q, quant_algo="MIXED_PRECISION")))
        refused(path, 'quantization_config.quant_algo "MIXED_PRECISION" is not supported, only NVFP4 and W4A16_NVFP4')


if __name__ == "__main__":
    sys.exit(run_tests([floats_of_four_bits, weights_of_four_bits, four_bits_as_integers, a_language_model_inside_a_larger_one,
                        fp8_with_one_scale_for_each_matrix]))
