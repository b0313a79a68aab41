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
