"""verbatim.Tensors and write_tensors, against the bytes of the files."""

import json
import pathlib
import struct

import numpy as np
import pytest
import verbatim
from conftest import ROOT

GOLDEN = ROOT / "golden"


def header_of(path):
    raw = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def test_a_checkpoint_is_a_mapping_of_its_tensors():
    header, data = header_of(GOLDEN / "tiny/v3/model.safetensors")
    metadata = header.pop("__metadata__")
    with verbatim.Tensors(GOLDEN / "tiny/v3") as tensors:
        assert list(tensors) == sorted(header) and len(tensors) == len(header) and "model.norm.weight" in tensors and "nobody" not in tensors
        assert tensors.metadata("format") == metadata["format"] and tensors.metadata("nothing") is None
        for name, said in header.items():
            info, raw = tensors.info(name), data[said["data_offsets"][0] : said["data_offsets"][1]]
            assert (info.dtype, list(info.shape), info.bytes, info.file) == (said["dtype"], said["shape"], len(raw), "model.safetensors")
            assert tensors.raw(name) == raw and not info.quantized
            numbers = tensors[name]
            assert list(numbers.shape) == said["shape"]
            if info.dtype == "BF16":
                wanted = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
            elif info.dtype == "F32":
                wanted = np.frombuffer(raw, "<f4")
            else:
                assert info.dtype == "F8_E4M3" and numbers.dtype == np.float32 and np.isfinite(numbers).all()
                continue
            assert numbers.tobytes() == wanted.tobytes()
        head = tensors["lm_head.weight"]
        assert tensors.float32("lm_head.weight", 3, 2).tobytes() == head[3:5].tobytes()
        assert tensors.float32("lm_head.weight", len(head)).size == 0
        with pytest.raises(IndexError, match="rows 3 to"):
            tensors.float32("lm_head.weight", 3, len(head))
        with pytest.raises(KeyError):
            tensors["nobody"]
    with pytest.raises(ValueError, match="closed"):
        tensors["model.norm.weight"]
    with pytest.raises(ValueError, match="closed"):
        tensors.metadata("format")
    assert len(verbatim.Tensors(GOLDEN / "tiny/v3-mtp3")) == 187  # of three files


def test_quantized_tensors_become_numbers():
    tensors = verbatim.Tensors(GOLDEN / "gguf/tiny-quantized.gguf")
    name = next(name for name in tensors if tensors.info(name).quantized)
    assert tensors.info(name).dtype.startswith("Q") and tensors[name].dtype == np.float32 and np.isfinite(tensors[name]).all()


def test_what_was_written_is_read_back(tmp_path):
    values = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array([True, False]), "one": np.int64(-5), "none": np.empty((0, 4), np.float16),
              "columns": np.arange(12, dtype=np.float64).reshape(3, 4)[:, ::2], "big": np.arange(3, dtype=">i4")}
    path = tmp_path / "x.safetensors"
    verbatim.write_tensors(path, values)
    header, _ = header_of(path)
    assert list(header) == list(values)
    tensors = verbatim.Tensors(path)
    for name, value in values.items():
        back = tensors[name]
        assert back.shape == np.shape(value) and back.dtype == np.asarray(value).dtype.newbyteorder("<") and (back == value).all()
    with pytest.raises(FileExistsError):
        verbatim.write_tensors(path, values)
    with pytest.raises(TypeError, match="no type for complex128"):
        verbatim.write_tensors(tmp_path / "y", {"x": np.zeros(2, complex)})
    with pytest.raises(verbatim.VerbatimError, match="name is empty"):
        verbatim.write_tensors(tmp_path / "y", {"": np.zeros(2)})
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(verbatim.VerbatimError, match="cut short") as raised:
        verbatim.Tensors(path)
    assert raised.value.code == verbatim.Code.BAD_CHECKPOINT
