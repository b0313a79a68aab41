"""Many prompts side by side."""

from __future__ import annotations

import ctypes as C

from . import _c
from ._call import Guard, VerbatimError, check, ids_array, ids_pointer
from .session import c_string, number, result_of, session_options


def generate_many(model, prompts, n, *, max_sequences, cache_tokens, keep_apart, seeds, ignore_eos, tokenizer, stop, on_result, **options):
    """Model.generate_many"""
    lib, guard = _c.library(), Guard()
    prompts = [ids_array(prompt) for prompt in prompts]
    n = number("n", n, 0)
    if any(not ids.size for ids in prompts):
        raise ValueError("prompt %d has no tokens" % next(i for i, ids in enumerate(prompts) if not ids.size))
    if seeds is not None and len(seeds) != len(prompts):
        raise ValueError("%d seeds for %d prompts" % (len(seeds), len(prompts)))
    if not prompts:
        return []
    longest = max(ids.size for ids in prompts)
    options.setdefault("context", max(longest, min(longest + n, model.max_positions)))
    session, models = session_options(guard, model, **options)
    batch_options = _c.vb_batch_options(session=session, max_sequences=number("max_sequences", max_sequences, 1),
                                        cache_tokens=number("cache_tokens", cache_tokens, 1), keep_apart=bool(keep_apart))
    stop = [stop] if isinstance(stop, str) else list(stop)
    strings = (C.c_char_p * len(stop))(*(c_string("stop", s) for s in stop))
    what = _c.vb_generate_options(max_tokens=n, ignore_eos=bool(ignore_eos), fingerprint=1,
                                  tokenizer=tokenizer._handle.pointer if tokenizer else None, stop=strings, stop_count=len(stop))
    results = [None] * len(prompts)
    samplings = {}  # C keeps their addresses until the request ends

    def on_end(pointer):
        end = pointer.contents
        samplings.pop(end.id, None)
        if end.code:
            raise VerbatimError(end.code, "prompt %d: %s" % (end.id, end.error.contents.message.decode("utf-8", "replace")))
        results[end.id] = result_of(end.result.contents, end.tokens[end.prompt : end.count], tokenizer, stop)
        if on_result:
            on_result(end.id, results[end.id])

    done = guard.callback(_c.done_callback, on_end)

    def add(batch, number_of):  # the number of a request is that of its prompt: they are added in order
        ids = prompts[number_of]
        request = _c.vb_request(tokens=ids_pointer(ids), count=ids.size, options=what, done=done)
        if seeds is not None:
            sampling = _c.vb_sampling.from_buffer_copy(session.sampling)
            sampling.seed = number("seeds", seeds[number_of], 0, 2**64)
            samplings[number_of] = sampling
            request.sampling = C.pointer(sampling)
        check(lib.vb_batch_add(batch, C.byref(request), None, C.byref(err)), err)

    batch, err, left, added, state = C.c_void_p(), _c.vb_error(), C.c_size_t(1), 0, _c.vb_batch_state()
    check(lib.vb_batch_open(C.byref(batch), model._pointer(), C.byref(batch_options), C.byref(err)), err)
    try:
        while left.value or added < len(prompts):
            lib.vb_batch_look(batch, C.byref(state))
            for _ in range(min(len(prompts) - added, 64 - min(state.waiting, 64))):  # as many in line as may ever run
                add(batch, added)
                added += 1
            with guard:
                code = lib.vb_batch_step(batch, C.byref(left), C.byref(err))
            check(code, err)
    finally:
        lib.vb_batch_close(batch)
        del models  # until here
    return results
