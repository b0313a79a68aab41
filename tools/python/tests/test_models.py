"""What a model says of itself, its files and its chat template, beside what the command says."""

import json
import subprocess

import pytest
import verbatim
from conftest import BUILD, ROOT

V3 = ROOT / "golden" / "tiny" / "v3"


def timeless(described):
    return {key: value for key, value in described.items() if key != "copy_seconds"}


def test_describe_is_what_inspect_prints():
    with verbatim.Model(V3, precision="q8") as model:
        said = subprocess.run([str(BUILD / "verbatim"), "inspect", str(V3), "--precision", "q8", "--json"], stdout=subprocess.PIPE, timeout=600)
        assert timeless(model.describe()) == timeless(json.loads(said.stdout))
        model.check()


def test_copies_of_weights_can_be_kept(tmp_path):
    with verbatim.Model(V3, precision="q8") as model:
        plain = list(model.generate([5, 6, 7], 4).tokens)
    for _ in range(2):
        with verbatim.Model(V3, precision="q8", repack_cache=tmp_path) as model:
            assert list(model.generate([5, 6, 7], 4).tokens) == plain
        assert len(list(tmp_path.iterdir())) == 1


def test_fingerprints_name_what_results_depend_on():
    with verbatim.Model(V3) as model, verbatim.Model(V3) as again, verbatim.Model(V3, precision="q8") as other:
        assert model.fingerprint() == again.fingerprint(threads=1) != other.fingerprint()
        assert model.fingerprint(sampled=True) not in (model.fingerprint(), other.fingerprint(sampled=True))
        with pytest.raises(ValueError):
            model.fingerprint(threads=0)
    a, b = (verbatim.Tokenizer(ROOT / "golden" / name) for name in ("tokenizer", "tale"))
    assert len(a.fingerprint()) == 16 and a.fingerprint() != b.fingerprint()


def test_conventions_and_systems_are_those_of_the_command():
    said = json.loads(subprocess.run([str(BUILD / "verbatim"), "conventions", "--json"], stdout=subprocess.PIPE, timeout=600).stdout)
    rows = [c for c in said["conventions"] if c["of"] != "files"]  # the command also lists what it only finds in files
    assert [(c["name"], c["values"]) for c in verbatim.conventions()] == [(c["name"], c["values"]) for c in rows]
    assert [(s["name"], s["conventions"], s["draft"]) for s in verbatim.systems()] == [(s["name"], s["sets"], s["draft"]) for s in said["systems"]]
    assert [c["changes_output"] for c in verbatim.conventions()] == [c["of"] == "target" for c in rows]


def test_a_quantized_file_gives_the_bits_of_precision_q8(tmp_path):
    out = tmp_path / "v3.gguf"
    with verbatim.Model(V3) as model:
        notes = model.quantize(out, "q8_0", threads=1)
        assert all(isinstance(note, str) for note in notes)
        with pytest.raises(FileExistsError):
            model.quantize(out, "q4_0")
        with pytest.raises(verbatim.VerbatimError, match="type is q9"):
            model.quantize(tmp_path / "other.gguf", "q9")
    assert [p.name for p in tmp_path.iterdir()] == ["v3.gguf"]
    with verbatim.Model(out) as file, verbatim.Model(V3, precision="q8") as model:
        assert file.generate([5, 6, 7], 8).fingerprint == model.generate([5, 6, 7], 8).fingerprint
        assert file.describe()["parameters"] == model.describe()["parameters"]


def test_a_chat_template_writes_the_prompt(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ mood }}")
    tokenizer = verbatim.Tokenizer(ROOT / "golden" / "tokenizer")
    template = verbatim.ChatTemplate(tmp_path)
    assert template.source == (tmp_path / "chat_template.jinja").read_text()
    assert template.render([{"role": "user", "content": "Ö €"}], tokenizer, mood="!") == "[user]Ö €!"
    with pytest.raises(verbatim.VerbatimError, match="message 0 is not an object with a role"):
        template.render(["?"], tokenizer)
    with pytest.raises(verbatim.VerbatimError, match="there is no chat template"):
        verbatim.ChatTemplate(ROOT / "golden" / "tokenizer")


def test_special_tokens_are_recognised_or_plain_text():
    tokenizer = verbatim.Tokenizer(ROOT / "golden" / "tokenizer")
    text = tokenizer.decode([tokenizer.bos_token])
    assert tokenizer.encode(text, bos=False) == [tokenizer.bos_token]
    plain = tokenizer.encode(text, bos=False, special=False)
    assert len(plain) > 1 and tokenizer.decode(plain) == text
