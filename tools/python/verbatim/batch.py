"""Many prompts side by side."""

from __future__ import annotations

import ctypes as C
import functools
import threading

import numpy as np

from . import _c
from ._call import BatchGuard, Closing, Handle, VerbatimError, check, ids_array, ids_pointer, routes_arrays, routes_of, view
from ._library import library
from .session import DRAFTING, SAMPLING, drafting_options, event_of, generate_options, number, result_of, sampling_options, session_options


class Batch(Closing):
    """Requests that share passes: each is admitted when there is room, and leaves when it is done. Which others it shares its passes with
    reaches none of its bits. A context manager.

    max_sequences  computed side by side, 1 to 64 (None: 8)
    cache_tokens   that the cache holds for all together (None: max_sequences times the context); when it is full the youngest sequence
                   gives its rows back, and has them computed again later
    keep_finished  up to so many finished sequences, 0 to 64, leave their rows in the cache for requests that begin alike
    keep_apart     requests that begin alike do not share what is computed for their beginning

    The other options are those of Session, but for callbacks that are told of taps and progress, and prefill "onednn" and "cublas". context: tokens of the
    longest request. Options of sampling and drafting are those of requests that name no others.

        with model.batch(context=4096, max_sequences=16, draft="mtp-eagle", keep_finished=8) as batch:
            batch.add(tokens, 200, temperature=0.7, seed=1, on_result=lambda result: print(result.text), tokenizer=tokenizer)
            batch.run()

    Callbacks are called from step, run and cancel. They may add, pause and resume requests, and do nothing else with the batch. When one
    raises, its request ends there, the others go on, and the exception comes out of step (the first, if there are several). An exception
    in a mask or in draft(tokens, max) also comes out of step. One thread at a time may use a batch."""

    _closed = "the batch is closed"

    def __init__(self, model, *, max_sequences=None, cache_tokens=None, keep_finished=0, keep_apart=False, **options):
        self.model, self._lib, self._guard = model, library(), BatchGuard()
        self._requests, self._thread = {}, None  # what C keeps addresses of until a request ends
        self._options = {name: value for name, value in options.items() if name in SAMPLING or name in DRAFTING}
        session, models = session_options(self._guard, model, **options)
        self._session = session  # C reads its forced routes later
        options = _c.vb_batch_options(session=C.pointer(session), max_sequences=number("max_sequences", max_sequences, 1),
                                      cache_tokens=number("cache_tokens", cache_tokens, 1),
                                      keep_finished=number("keep_finished", keep_finished, 0), keep_apart=bool(keep_apart))
        pointer, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_batch_open(C.byref(pointer), model._pointer(), C.byref(options), C.byref(err)), err)
        self._handle = Handle(pointer.value, self._lib.vb_batch_close, options, [m._handle for m in models])
        for m in models:
            m._sessions.add(self)

    def close(self):
        """Requests that are left are forgotten."""
        if self._handle.pointer:
            with self._guard:
                self._handle.close()
                self._requests.clear()

    def _pointer(self):
        pointer = super()._pointer()
        if self._thread not in (None, threading.get_ident()):
            raise RuntimeError("another thread uses this batch")
        return pointer

    def _own_options(self, options):
        """A request's own sampling and drafting, None where it has the batch's, and the models that it needs."""
        unknown = set(options) - SAMPLING - DRAFTING
        if unknown:
            raise TypeError("%s: no option of a request" % ", ".join(sorted(unknown)))
        names, merged = set(options), {**self._options, **options}
        needed = [options[name] for name in ("draft_model", "draft_vocab") if options.get(name) is not None]
        sampling = drafting = None
        if names & SAMPLING:
            sampling = sampling_options(self._guard, self.model, **{name: merged[name] for name in SAMPLING & set(merged)})
        if names & DRAFTING:
            drafting = drafting_options(self._guard, **{name: merged[name] for name in DRAFTING & set(merged)})
        return sampling, drafting, needed

    def add(self, prompt, n: int, *, ignore_eos=False, tokenizer=None, stop=(), stop_tokens=(), on_token=None, on_prompt_row=None,
            on_result=None, routes=None, kept_sets=None, **options) -> int:
        """Puts a request in the line: continue prompt, a sequence of ids, by at most n tokens. Returns its number, from 0.

        on_token       on_token(Event): each token as it is chosen; something true ends the request
        on_prompt_row  on_prompt_row(index, logits): each row of the prompt but the last, float32 [V], valid during the call, in ascending
                       index, before the first token; something true ends the request. It takes no rows over from others
        on_result      on_result(Result), once; or on_result(VerbatimError) where the request failed. Without it step raises the error

        routes, kept_sets    forced routes of this request (Session), in place of the batch's

        ignore_eos, tokenizer, stop and stop_tokens are those of Session.generate. The other options are Session's, of sampling and of
        drafting, in place of the batch's."""
        ids = ids_array(prompt)
        sampling, drafting, models = self._own_options(options)
        what, stop = generate_options(n, ignore_eos, tokenizer, stop, stop_tokens)

        def on_end(pointer):
            end = pointer.contents
            self._requests.pop(end.id, None)
            if not end.code:
                result = result_of(end.result.contents, end.tokens[end.prompt : end.count], tokenizer, stop)
                result.routes, result.kept_sets = routes_arrays(end.routes)
            else:
                result = VerbatimError(end.code, end.error.contents.message.decode("utf-8", "replace"))
            if on_result:
                on_result(result)
            elif end.code:
                raise VerbatimError(end.code, "request %d: %s" % (end.id, result))

        callback, V = self._guard.callback, self.model.vocab_size
        request = _c.vb_request(tokens=ids_pointer(ids), count=ids.size, options=C.pointer(what), done=callback(_c.done_callback, on_end))
        if sampling:
            request.sampling = C.pointer(sampling)
        if drafting:
            request.drafting = C.pointer(drafting)
        forced = None if routes is None and kept_sets is None else routes_of(routes, kept_sets)
        if forced:
            request.routes = C.pointer(forced)
        if on_token:
            what.callback = callback(_c.event_callback, lambda event: bool(on_token(event_of(event.contents, V))), 1)
        if on_prompt_row:
            request.prompt_row = callback(_c.row_callback, lambda depth, index, logits, hidden: bool(
                on_prompt_row(index, view(C.addressof(logits.contents), [V], [1], np.float32))), 1)
        number_of, err = C.c_int64(), _c.vb_error()
        check(self._lib.vb_batch_add(self._pointer(), C.byref(request), C.byref(number_of), C.byref(err)), err)
        self._requests[number_of.value] = request, sampling, drafting, tokenizer, [m._handle for m in models]
        for m in models:
            m._sessions.add(self)
        return number_of.value

    def _call(self, function, *arguments):
        with self._guard:
            pointer, self._thread = self._pointer(), threading.get_ident()
            try:
                return function(pointer, *arguments)
            finally:
                self._thread = None

    def step(self) -> int:
        """One pass. Returns how many requests wait or run and are not paused."""
        left, err = C.c_size_t(), _c.vb_error()
        check(self._call(self._lib.vb_batch_step, C.byref(left), C.byref(err)), err)
        return left.value

    def run(self):
        """Steps until none is left but paused ones."""
        while self.step():
            pass

    def pause(self, request: int) -> bool:
        """It takes part in no pass until it is resumed. Returns, as resume and cancel, whether there is such a request."""
        return bool(self._lib.vb_batch_pause(self._pointer(), request))

    def resume(self, request: int) -> bool:
        return bool(self._lib.vb_batch_resume(self._pointer(), request))

    def cancel(self, request: int) -> bool:
        """Ends it now: its Result has finish_reason "stopped". No callback may call this."""
        return bool(self._call(self._lib.vb_batch_cancel, request))

    @property
    def state(self) -> dict:
        """Requests that are waiting, running, done, paused; passes, preemptions, ... (struct vb_batch_state)."""
        state = _c.vb_batch_state()
        self._lib.vb_batch_look_sized(self._pointer(), C.byref(state), C.sizeof(state))
        return {name: getattr(state, name) for name, _ in state._fields_}


def generate_many(model, prompts, n, *, max_sequences, cache_tokens, keep_apart, seeds, ignore_eos, tokenizer, stop, stop_tokens, on_result, **options):
    """Model.generate_many"""
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
    results, failed = [None] * len(prompts), []

    def ended(number, result):
        if failed:  # another one of the same pass
            return
        failed.append(number)
        if isinstance(result, VerbatimError):
            raise VerbatimError(result.code, "prompt %d: %s" % (number, result))
        results[number] = result
        if on_result:
            on_result(number, result)
        failed.clear()

    with Batch(model, max_sequences=max_sequences, cache_tokens=cache_tokens, keep_apart=keep_apart, **options) as batch:
        added = left = 0
        while left or added < len(prompts):
            for _ in range(min(len(prompts) - added, 64 - min(batch.state["waiting"], 64))):  # as many in line as may ever run
                batch.add(prompts[added], n, ignore_eos=ignore_eos, tokenizer=tokenizer, stop=stop, stop_tokens=stop_tokens,
                          on_result=functools.partial(ended, added), **({} if seeds is None else {"seed": seeds[added]}))
                added += 1
            left = batch.step()
    return results
