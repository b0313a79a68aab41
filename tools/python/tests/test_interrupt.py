"""Ctrl-C ends a run, wherever it comes, and is a KeyboardInterrupt; the model can be used on."""

import ctypes
import itertools
import signal
import threading
import time

import pytest
from verbatim import _c, _call

PROMPT = list(range(1, 21))


def expect_interrupt(model, on_token=None, **options):
    with model.session(context=100, threads=1, **options) as session:
        session.append(PROMPT)
        with pytest.raises(KeyboardInterrupt):
            session.generate(60, ignore_eos=True, on_token=on_token)
        assert len(session.tokens) < len(PROMPT) + 60


def test_ctrl_c_in_a_callback_ends_a_run(models, capfd):
    model = models("tale")
    for name in "on_token", "on_progress", "on_tap", "mask":
        for at in 1, 2, 7:
            calls = itertools.count(1)

            def interrupted(*arguments):
                if next(calls) == at:
                    signal.raise_signal(signal.SIGINT)
                return [True] * model.vocab_size if name == "mask" else None

            expect_interrupt(model, prefill_chunk=2, **{name: interrupted})
    assert "ignored" not in capfd.readouterr().err
    assert model.generate(PROMPT, 3).tokens == model.generate(PROMPT, 3, draft="mtp-eagle").tokens


def test_ctrl_c_while_the_library_computes_ends_a_run(models, capfd, monkeypatch):
    """The library itself calls what Python's handler of SIGINT does: the exception arises on the way into the next callback."""
    callback, came = _call.Guard.callback, ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, ctypes.c_void_p).value
    monkeypatch.setattr(_call.Guard, "callback", lambda guard, kind, function, stop=None:
                        kind(came) if kind is _c.progress_callback else callback(guard, kind, function, stop))
    model = models("tale")
    for chunk in 1, 7, 512:
        expect_interrupt(model, prefill_chunk=chunk)
        expect_interrupt(model, prefill_chunk=chunk, on_token=lambda event: None, on_tap=lambda tap: None)
    monkeypatch.undo()
    assert "ignored" not in capfd.readouterr().err
    assert model.generate(PROMPT, 3).tokens == model.generate(PROMPT, 3, draft="mtp-eagle").tokens


def test_ctrl_c_in_a_pass_gives_it_up_before_the_next_layer(models, capfd, monkeypatch):
    """SIGINT comes when the library asks for the n-th time whether to stop: no later than then it does, and the session goes on."""
    model = models("tale")
    wanted = model.generate(PROMPT, 20, ignore_eos=True).tokens
    callback = _call.Guard.callback
    for at in 1, 2, 5, 9, 23:
        calls = itertools.count(1)

        def asked():
            if next(calls) == at:
                signal.raise_signal(signal.SIGINT)
            return 0

        monkeypatch.setattr(_call.Guard, "callback", lambda guard, kind, function, stop=None:
                            callback(guard, kind, asked if kind is _c.stop_callback else function, stop))
        with model.session(context=100, threads=1, draft="mtp-eagle") as session:
            session.append(PROMPT)
            with pytest.raises(KeyboardInterrupt):
                session.generate(20, ignore_eos=True)
            assert next(calls) == at + 1
            session.generate(20 - (len(session.tokens) - len(PROMPT)), ignore_eos=True)
            assert session.tokens == PROMPT + wanted
    assert "ignored" not in capfd.readouterr().err


def test_ctrl_c_at_any_moment_ends_a_run(models, capfd):
    """Another thread sends SIGINT when the run has come to a token, wherever the main thread is then. It does not go beyond the next."""
    model = models("tale")
    for at in range(30):
        reached = threading.Event()

        def on_token(event):
            if event.index == len(PROMPT) + at:
                reached.set()
            elif reached.is_set():
                for _ in range(100000):  # one long sleep would not see a signal that comes as it begins
                    time.sleep(0.001)

        def send():
            reached.wait()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        expect_interrupt(model, on_token=on_token)
        sender.join()
    assert "ignored" not in capfd.readouterr().err
    assert model.generate(PROMPT, 3).tokens == model.generate(PROMPT, 3, draft="mtp-eagle").tokens
