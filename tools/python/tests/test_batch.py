"""Batch: a request gives what generate gives for its prompt alone, whatever pauses, leaves or raises beside it."""

import gc
import itertools
import signal
import threading
import weakref

import numpy as np
import pytest
from conftest import ROOT, assert_same_bits

import verbatim

PROMPT = list(range(1, 21))


def same(result, alone):
    for name in "tokens", "fingerprint", "finish_reason", "text", "stop_string":
        assert getattr(result, name) == getattr(alone, name), name


@pytest.mark.parametrize("options", [
    dict(), dict(max_sequences=2, prefill_chunk=3), dict(cache_tokens=90, threads=1), dict(keep_finished=4), dict(keep_apart=True)])
def test_requests_with_options_of_their_own_give_what_each_gives_alone(models, options):
    model, tokenizer = models("tale"), verbatim.Tokenizer(ROOT / "golden" / "tale")
    own = [dict(), dict(temperature=0.9, seed=5), dict(draft="mtp-eagle", draft_tokens=2), dict(temperature=0.9, draft="mtp-vanilla"),
           dict(temperature=0.8, seed=2, acceptance="rejection", draft="mtp-eagle"), dict(bias={7: 3.0, 8: -1.0}, draft="ngram"),
           dict(draft=lambda tokens, most: [7, 8, 9]), dict(draft="draft-model", draft_model=model), dict(stop_tokens=[15, 390]), dict(stop=["the"]),
           dict(mask=lambda tokens: np.arange(model.vocab_size) % 2 == 0, draft_tokens=0), dict(ignore_eos=True, repetition_penalty=1.3)]
    results, ids = {}, []
    defaults = dict(draft="mtp-eagle", temperature=0.5)
    with model.batch(context=60, **defaults, **options) as batch:
        for i, more in enumerate(own):
            ids.append(batch.add(PROMPT[: 8 + i], 30, tokenizer=tokenizer, on_result=lambda result, i=i: results.setdefault(i, result), **more))
            gc.collect()
        batch.run()
        state = batch.state
    assert ids == list(range(len(own))) and state["done"] == len(own) and state["waiting"] == state["running"] == 0
    assert (state["kept"] > 0) == ("keep_finished" in options)
    for i, more in enumerate(own):
        same(results[i], model.generate(PROMPT[: 8 + i], 30, tokenizer=tokenizer, **{**defaults, **more}))


def test_a_request_that_begins_like_a_finished_one_reuses_its_rows(models):
    results = []
    with models("tale").batch(context=80, keep_finished=1, draft="mtp-eagle") as batch:
        for prompt in PROMPT, PROMPT + [30, 31]:
            batch.add(prompt, 10, on_result=results.append)
            batch.run()
    assert [r.stats["cached_tokens"] for r in results] == [0, 19]
    same(results[1], models("tale").generate(PROMPT + [30, 31], 10))


def test_rows_of_a_prompt_are_those_of_logits(models):
    model, rows, tokens = models("tiny/v3"), {}, []

    def on_row(number, index, logits):
        assert not tokens or number
        rows.setdefault(number, []).append(logits.copy())
        assert len(rows[number]) == index + 1
        return number == 1 and index == 4

    results = []
    with model.batch(context=40, prefill_chunk=7) as batch:
        for number, n in enumerate([5, 5, 0]):
            batch.add(PROMPT, n, ignore_eos=True, on_prompt_row=lambda index, logits, number=number: on_row(number, index, logits),
                      on_token=(lambda event: tokens.append(event.token)) if number == 0 else None, on_result=lambda r, k=number: results.append((k, r)))
        batch.run()
    wanted = model.logits(PROMPT)
    assert_same_bits(np.array(rows[0]), wanted[:-1])
    assert_same_bits(np.array(rows[1]), wanted[:5])
    assert_same_bits(np.array(rows[2]), wanted[:-1])
    results = dict(results)
    assert results[0].tokens == tokens == model.generate(PROMPT, 5, ignore_eos=True).tokens
    assert (results[1].tokens, results[1].finish_reason) == ([], "stopped")
    assert (results[2].tokens, results[2].finish_reason) == ([], "length")


def test_pause_resume_and_cancel(models):
    model, results = models("tale"), {}
    with model.batch(context=60, max_sequences=1, threads=1) as batch:
        a, b, c = [batch.add(PROMPT, 12, ignore_eos=True, on_result=lambda r, i=i: results.setdefault(i, r)) for i in range(3)]
        assert batch.step() == 3
        assert batch.pause(a) and not batch.pause(99)
        batch.run()
        assert sorted(results) == [b, c] and batch.state["paused"] == 1
        assert batch.resume(a) and not batch.resume(b)
        batch.step()
        assert batch.cancel(a) and not batch.cancel(a)
        assert results[a].finish_reason == "stopped" and 0 < len(results[a].tokens) < 12
        assert batch.step() == 0
    same(results[b], model.generate(PROMPT, 12, ignore_eos=True))
    assert results[a].tokens == results[b].tokens[: len(results[a].tokens)]


@pytest.mark.parametrize("where", ["on_token", "on_prompt_row", "on_result", "mask", "draft"])
def test_what_a_callback_raises_comes_out_of_step_and_the_others_go_on(models, where):
    model, results, calls, seen = models("tale"), {}, itertools.count(), []

    def raises(*arguments):
        if next(calls) == (0 if where == "on_result" else 3):
            raise KeyError("mine")
        return {"mask": np.ones(model.vocab_size, bool), "draft": []}.get(where)

    with model.batch(context=60, threads=1, draft="mtp-eagle") as batch:
        for i in range(4):
            more = {"on_result": lambda r, i=i: results.setdefault(i, r)}
            if i == 1:
                more[where] = raises
            batch.add(PROMPT + [i], 12, ignore_eos=True, **more)
        left = 1
        while left:
            try:
                left = batch.step()
            except KeyError as e:
                seen.append(e.args)
            except verbatim.VerbatimError as e:
                pytest.fail(str(e))
    assert seen == [("mine",)]
    for i in 0, 2, 3:
        same(results[i], model.generate(PROMPT + [i], 12, ignore_eos=True))
    if where == "mask":
        assert isinstance(results[1], verbatim.VerbatimError) and results[1].code == verbatim.Code.STOPPED
    elif where == "draft":
        same(results[1], model.generate(PROMPT + [1], 12, ignore_eos=True))
    elif where != "on_result":
        assert results[1].finish_reason == "stopped"


def test_errors_of_requests(models):
    model = models("tiny/v2")
    with model.batch(context=20) as batch:
        for arguments, options, kind, sentence in [
            (([], 4), {}, verbatim.VerbatimError, "the prompt is empty"), (([5] * 30, 4), {}, verbatim.VerbatimError, "does not fit into a context"),
            (([10**6], 4), {}, verbatim.VerbatimError, "outside the vocabulary"), (([5], -1), {}, ValueError, "n is -1"),
            (([5], 4), dict(on_tap=print), TypeError, "on_tap: no option of a request"), (([5], 4), dict(threads=1), TypeError, "threads"),
            ((["a"], 4), {}, TypeError, "wanted a sequence of integers"),
        ]:
            with pytest.raises(kind, match=sentence):
                batch.add(*arguments, **options)
        batch.add([5], 4, temperature=-1)
        with pytest.raises(verbatim.VerbatimError, match="request 0: temperature is -1"):
            batch.step()
        ended = []
        batch.add([5], 4, temperature=-1, on_result=ended.append)
        batch.add([5], 4, ignore_eos=True, on_result=ended.append)
        batch.run()
        assert "temperature is -1" in str(ended[0]) and len(ended[1].tokens) == 4
    with pytest.raises(ValueError, match="the batch is closed"):
        batch.step()
    with pytest.raises(verbatim.VerbatimError, match="finished sequences to keep"):
        model.batch(keep_finished=65)
    with pytest.raises(TypeError, match="on_progress"):
        model.batch(on_progress=print)


def test_callbacks_may_add_and_pause_and_nothing_else(models):
    model, results = models("tiny/v3"), []
    with model.batch(context=40) as batch:

        def on_token(event):
            for refused in batch.step, batch.close, lambda: batch.cancel(0):
                with pytest.raises(RuntimeError):
                    refused()
            if event.index == len(PROMPT) + 1:
                batch.add(PROMPT, 3, ignore_eos=True, on_result=results.append)
                batch.pause(0)

        def elsewhere():
            with pytest.raises(RuntimeError, match="another thread"):
                batch.add(PROMPT, 3)
            results.append("refused")

        def from_another_thread(event):
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

        batch.add(PROMPT, 5, ignore_eos=True, on_token=on_token, on_result=results.append)
        batch.run()
        assert len(results) == 1 and results[0].tokens == model.generate(PROMPT, 3, ignore_eos=True).tokens
        batch.resume(0)
        batch.run()
        assert results[1].tokens == model.generate(PROMPT, 5, ignore_eos=True).tokens
        batch.add(PROMPT, 1, on_token=from_another_thread)
        batch.run()
        assert results[2] == "refused"


def test_ctrl_c_gives_a_pass_up_and_the_batch_goes_on(models):
    model, results, calls = models("tale"), [], itertools.count(1)

    def mask(tokens):
        if next(calls) in (2, 9):
            signal.raise_signal(signal.SIGINT)
        return np.ones(model.vocab_size, bool)

    with model.batch(context=60, threads=1) as batch:
        batch.add(PROMPT, 12, ignore_eos=True, on_result=results.append)
        batch.add(PROMPT[:9], 12, ignore_eos=True, on_result=lambda r: None, mask=mask)
        interrupts, left = 0, 1
        while left:
            try:
                left = batch.step()
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 1  # it ended the request
    same(results[0], model.generate(PROMPT, 12, ignore_eos=True))


def test_a_batch_and_its_requests_are_freed(models):
    model = verbatim.Model(ROOT / "golden" / "tiny" / "v3")

    class Heard(list):
        pass

    heard = Heard()
    batch = model.batch(context=40)
    batch.add(PROMPT, 3, on_result=heard.append, bias={5: 1.0})
    alive = [weakref.ref(batch), weakref.ref(heard)]
    batch.step()
    del batch, heard
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    batch = model.batch(context=40)
    other = verbatim.Model(ROOT / "golden" / "tiny" / "v3")
    batch.add(PROMPT, 3, draft="draft-model", draft_model=other)
    other.close()  # closes what needs it
    with pytest.raises(ValueError, match="closed"):
        batch.step()


def test_many_prompts_with_stop_tokens(models):
    model = models("tale")
    plain = model.generate(PROMPT, 30, ignore_eos=True)
    stop = plain.tokens[12]
    end = plain.tokens.index(stop) + 1
    for draft in None, "mtp-eagle":
        results = model.generate_many([PROMPT, PROMPT[:7]], 30, ignore_eos=True, stop_tokens=[stop], draft=draft)
        assert results[0].tokens == plain.tokens[:end] and results[0].finish_reason == "stop"
        same(results[0], model.generate(PROMPT, 30, ignore_eos=True, stop_tokens=[stop]))


def test_bias_lives_until_it_is_read(models):
    """The arrays are C's to read when the request is admitted, long after `add`."""
    model, results = models("tale"), []
    with model.batch(context=60, max_sequences=1) as batch:
        for token in range(40, 60):
            batch.add(PROMPT, 2, bias={token: 1e6}, on_result=results.append)
        gc.collect()
        junk = [np.full(1, 99, np.int32) for _ in range(1000)]
        batch.run()
        del junk
    assert [r.tokens for r in results] == [[token] * 2 for token in range(40, 60)]
