"""Forced and recorded routes: which experts tokens take."""

import numpy as np
import pytest

import verbatim

PROMPT = list(range(1, 15))


def test_recorded_routes_force_the_same_bits(models):
    model = models("tiny/v3-mtp3")
    plain = model.generate(PROMPT, 12, ignore_eos=True, record_routes=True)
    assert plain.routes.shape[0] == len(PROMPT) + 11 and plain.routes.dtype == np.int32
    taps = model.taps(PROMPT, "*.mlp.gate.experts")
    for name, experts in taps.items():
        layer = int(name.split(".")[2])
        if layer < plain.routes.shape[1]:  # the others are of MTP modules
            assert (plain.routes[: len(PROMPT), layer] == experts).all()
    forced = model.generate(PROMPT, 12, ignore_eos=True, routes=plain.routes[:, :, ::-1], draft="mtp-eagle", prefill_chunk=3)
    assert forced.fingerprint == plain.fingerprint and forced.routes is None
    other = plain.routes.copy()
    other[:, -1] = (other[:, -1] + 1) % 6
    changed = model.generate(PROMPT, 12, ignore_eos=True, routes=other, record_routes=True)
    assert changed.fingerprint != plain.fingerprint
    assert (np.sort(other[:, -1]) == changed.routes[: len(other), -1]).all()
    results = model.generate_many([PROMPT, PROMPT], 12, ignore_eos=True, routes=other, record_routes=True)
    assert [r.fingerprint for r in results] == [changed.fingerprint] * 2 and (results[1].routes == changed.routes).all()
    with model.batch(context=40) as batch:
        batch.add(PROMPT, 12, ignore_eos=True, routes=other, on_result=results.append)
        batch.add(PROMPT, 12, ignore_eos=True, on_result=results.append)
        batch.run()
    assert {r.fingerprint for r in results[2:]} == {changed.fingerprint, plain.fingerprint} and results[2].routes is None
    assert not np.array_equal(model.logits(PROMPT, routes=other), model.logits(PROMPT))


def test_invalid_routes_are_refused(models):
    model = models("tiny/v3")
    routes = model.generate(PROMPT, 1, record_routes=True).routes
    with pytest.raises(verbatim.VerbatimError, match="the routes have the shape"):
        model.generate(PROMPT, 1, routes=routes[:, :-1])
    routes[2, -1, 0] = routes[2, -1, 1]
    with pytest.raises(verbatim.VerbatimError, match="token 2 in layer .* the same expert twice"):
        model.generate(PROMPT, 1, routes=routes)
    with pytest.raises(TypeError, match="wanted integers of shape"):
        model.generate(PROMPT, 1, routes=[1, 2])


def test_kept_sets_force_the_same_bits(models):
    model, tokens = models("tiny/v32"), list(range(1, 40))
    plain, taps = model.logits(tokens), model.taps(tokens, "*.indexer.kept")
    kept = np.stack([taps["model.layers.%d.self_attn.indexer.kept" % layer] for layer in range(3)], axis=1)
    topk = kept.shape[2]
    assert kept.shape[:2] == (len(tokens), 3) and (kept[:topk] == -1).any()
    assert np.array_equal(model.logits(tokens, kept_sets=kept[:, :, ::-1] if (kept >= 0).all() else kept), plain)
    other = kept.copy()
    other[topk + 3] = np.arange(topk)
    forced = model.logits(tokens, kept_sets=other)
    assert np.array_equal(forced[: topk + 3], plain[: topk + 3]) and not np.array_equal(forced[topk + 3], plain[topk + 3])
    one = model.generate(tokens, 4, ignore_eos=True, kept_sets=other)
    recorded = model.generate(tokens, 4, ignore_eos=True, kept_sets=other, record_kept_sets=True, draft="mtp-eagle")
    assert recorded.fingerprint == one.fingerprint and recorded.routes is None
    assert (recorded.kept_sets[: topk + 3] == kept[: topk + 3]).all() and (recorded.kept_sets[topk + 3] == np.arange(topk)).all()
    results = []
    with verbatim.Batch(model) as batch:
        batch.add(tokens, 4, ignore_eos=True, kept_sets=other, on_result=results.append)
        batch.run()
    assert results[0].fingerprint == one.fingerprint
    with pytest.raises(verbatim.VerbatimError, match="the kept set of token 20 in layer 1 contains token 21, wanted 0 to 20"):
        other[20, 1, 0] = 21
        model.logits(tokens, kept_sets=other)
    with pytest.raises(verbatim.VerbatimError, match="the kept sets have the shape"):
        model.logits(tokens, kept_sets=kept[:, :, 1:])
    with pytest.raises(TypeError, match="kept_sets: wanted integers of shape"):
        model.logits(tokens, kept_sets=[1, 2])
