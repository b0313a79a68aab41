"""What goes wrong: errors of the library, exceptions of callbacks, closed things, a library that is not there."""

import gc
import os
import pickle
import subprocess
import sys

import pytest
import verbatim
from conftest import BUILD, PROMPT, ROOT, path
from verbatim import _call

@pytest.mark.parametrize("call, code, sentence", [
    (lambda m: verbatim.Model("/nowhere"), "IO", "/nowhere/config.json"),
    (lambda m: verbatim.Model(m.path, precision="f13"), "BAD_ARGUMENT", "unknown precision f13"),
    (lambda m: verbatim.Tokenizer(m.path), "IO", "tokenizer.json"),
    (lambda m: m.generate([5, 6, 10**6], 4), "BAD_ARGUMENT", "token 2 is 1000000, outside the vocabulary of "),
    (lambda m: m.logits([-1]), "BAD_ARGUMENT", "token 0 is -1"),
    (lambda m: m.generate([5], 4, draft="mtp-eagle"), "BAD_ARGUMENT", "has no MTP modules"),
    (lambda m: m.generate([5], 4, draft="mtp"), "BAD_ARGUMENT", "unknown draft method mtp"),
    (lambda m: m.generate([5], 4, isa="mmx"), "BAD_ARGUMENT", "unknown instruction set mmx"),
    (lambda m: m.generate([5], 4, temperature=-1), "BAD_ARGUMENT", "temperature"),
    (lambda m: m.mtp_logits([5, 6], 1), "BAD_ARGUMENT", "1 MTP depths"),
    (lambda m: m.logits([5] * 300), "BAD_ARGUMENT", "max_position_embeddings, which is 256"),
    (lambda m: m.session(context=9).truncate(1), "BAD_ARGUMENT", "cannot cut to 1 tokens"),
    (lambda m: m.session(context=9).generate(1), "BAD_ARGUMENT", "the prompt is empty"),
])
def test_errors_are_exceptions_with_the_librarys_sentence(models, call, code, sentence):
    with pytest.raises(verbatim.VerbatimError) as e:
        call(models("tiny/v2"))
    assert e.value.code is verbatim.Code[code] and sentence in str(e.value)
    copy = pickle.loads(pickle.dumps(e.value))
    assert (copy.code, str(copy)) == (e.value.code, str(e.value))


@pytest.mark.parametrize("call", [
    lambda m: m.logits([]), lambda m: m.logits([2**40]), lambda m: m.logits([1.5]), lambda m: m.logits("5,6"),
    lambda m: m.logits([[1, 2]]), lambda m: m.generate([5], -1), lambda m: m.generate([5], 4, seed=-1),
    lambda m: m.generate([5], 4, seed=2**64), lambda m: m.generate([5], 4, threads=0), lambda m: m.generate([5], 4, top_k=2**40),
    lambda m: m.generate([5], 4, temperatur=1), lambda m: m.generate([5], 4, mask=lambda tokens: [True]),
])
def test_what_c_cannot_be_given_is_refused_before(models, call):
    with pytest.raises((ValueError, TypeError)):
        call(models("tiny/v2"))


def test_a_callbacks_exception_comes_out_and_the_session_lives(models):
    model, calls = models("tiny/v3-mtp3"), []

    def bad(*arguments):
        calls.append(arguments)
        raise KeyError("mine")

    for options in dict(on_token=bad), dict(on_tap=bad), dict(mask=bad), dict(on_progress=bad):
        calls.clear()
        with pytest.raises(KeyError, match="mine"):
            model.generate(PROMPT, 30, prefill_chunk=3, **options)
        assert len(calls) == 1
    with model.session(context=64) as session:
        session.append(PROMPT)
        with pytest.raises(KeyError):
            session.evaluate(bad)
        with pytest.raises(KeyError):
            session.generate(9, on_token=bad)
        with pytest.raises(RuntimeError, match="is computing"):
            session.generate(9, on_token=lambda event: session.truncate(1))
        with pytest.raises(verbatim.VerbatimError, match="stopped"):
            session.truncate(len(PROMPT))
            session.evaluate(lambda *row: True)
        session.truncate(len(PROMPT))
        assert session.generate(9).tokens == model.generate(PROMPT, 9).tokens


def test_closed_things_say_so():
    model = verbatim.Model(path("tiny/v3"))
    session = model.session(context=32)
    session.append(PROMPT)
    pointer = model._handle.pointer
    del model
    gc.collect()
    assert session.model._handle.pointer == pointer and len(session.generate(3).tokens) == 3  # a session keeps its model
    session.model.close()
    with pytest.raises(ValueError, match="session is closed"):
        session.generate(3)
    with pytest.raises(ValueError, match="model is closed"):
        session.model.logits(PROMPT)
    session.close()
    session.model.close()


def test_a_session_is_freed_before_its_model_also_in_a_cycle(monkeypatch):
    freed, free = [], _call._free
    monkeypatch.setattr(_call, "_free", lambda function, pointer, keep: freed.append(pointer) or free(function, pointer, keep))
    model = verbatim.Model(path("tiny/v3"))
    model.loop = [model.session(context=32), model.session(context=32)]
    last = model._handle.pointer
    del model
    gc.collect()
    assert len(freed) == 3 and freed[-1] == last



# ---- the search for the library ------------------------------------------------------------------------------------------


def child(code, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools" / "python"), **environment}
    return subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True, cwd="/")


def test_the_library_that_is_not_there(tmp_path):
    done = child("import verbatim; verbatim.Model('x')", VERBATIM_LIBRARY="/nowhere/libverbatim.so.0")
    assert done.returncode and "no Verbatim library; tried /nowhere/libverbatim.so.0: " in done.stdout
    package = tmp_path / "verbatim"
    package.mkdir()
    for file in (ROOT / "tools/python/verbatim").glob("*.py"):
        (package / file.name).write_bytes(file.read_bytes())
    done = child("import verbatim; verbatim.Model('x')", PYTHONPATH=str(tmp_path), VERBATIM_LIBRARY="")
    assert done.returncode and str(package / "libverbatim.so.0") in done.stdout and "; libverbatim.so.0: " in done.stdout
    (package / "libverbatim.so.0").symlink_to(BUILD / "libverbatim.so.0")  # beside the package
    done = child("import verbatim; verbatim.Model('x')", PYTHONPATH=str(tmp_path), VERBATIM_LIBRARY="")
    assert "x/config.json" in done.stdout


def test_a_library_of_another_version_is_refused(tmp_path):
    (tmp_path / "v.c").write_text('const char *vb_version(void) { return "9.9"; }')
    subprocess.run([os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-o", tmp_path / "v.so", tmp_path / "v.c"], check=True)
    done = child("import verbatim; verbatim.Model('x')", VERBATIM_LIBRARY=str(tmp_path / "v.so"))
    assert "is version 9.9, these bindings are for " + verbatim.__version__ in done.stdout
