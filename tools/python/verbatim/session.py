"""One timeline of tokens with its caches."""

from __future__ import annotations

import ctypes as C
import dataclasses
import os
import typing
import weakref

import numpy as np

from . import _c
from ._call import Closing, Guard, Handle, check, copy_row, ids_array, ids_pointer, path_bytes, routes_arrays, routes_of, view
from ._library import library

_NAMES = [name for name, _ in _c.vb_tap_row._fields_ if name != "reserved"]
ROW = np.dtype({"names": _NAMES, "formats": [np.int32] * len(_NAMES), "itemsize": C.sizeof(_c.vb_tap_row)})


class Event(typing.NamedTuple):
    """A token that was chosen."""

    token: int
    index: int  # in the timeline
    draft_depth: int  # 1..15: an accepted draft of that depth; 0: the target's own token
    logits: np.ndarray  # float32 [V], the row that chose it; valid during the callback


class Tap(typing.NamedTuple):
    """A named intermediate value of one pass, or a part of its rows."""

    name: str
    layer: int  # as the checkpoint counts; -1: outside the layers
    depth: int  # MTP depth from 0; -1: the target
    passage: int  # passes of the session, in order, from 0
    rows: np.ndarray  # [rows], fields sequence, token, index, position, slot, draft, hidden_of, hidden_depth, parent
    data: np.ndarray  # float32 or int32, [rows, inner] or [rows, outer, inner]; valid during the callback


@dataclasses.dataclass(eq=False)  # arrays have no single ==
class Result:
    """What generate gave."""

    tokens: list[int]  # the new ones, an end token included
    fingerprint: str  # of the rows of logits that chose them: equal fingerprints are equal bits
    finish_reason: str  # length, stop (an end token, a stop string), stopped (by on_token)
    stats: dict  # forwards, drafted, accepted, accepted_by_depth, ...
    logits: np.ndarray | None = None  # float32 [len(tokens), V] when asked for
    text: str | None = None  # with a tokenizer: without the end token and what stands from the stop string on
    stop_string: str | None = None  # the one that ended the run
    routes: np.ndarray | None = None  # with record_routes: int32 [tokens, layers, top_k], of prompt and output but for the last token
    kept_sets: np.ndarray | None = None  # with record_kept_sets: int32 [tokens, layers, index_topk], of the same tokens


class Session(Closing):
    """One timeline of tokens with its caches: append, truncate, generate. A context manager.

    context        tokens that the caches hold; None: all that the model can read, which may be much memory
    prefill_chunk, threads, isa      None: 512, the processors of this process, the best; none of them changes a bit
    exact_threads  always that many threads, even where fewer are faster
    prefill        "expanded": keys and values of the prompt are computed for each head, for speed; other bits, and the
                   same promise. "onednn": oneDNN's linear layers read the prompt, and "cublas": a GPU's; other bits, see verbatim.h
    draft, draft_tokens              None or "none", "mtp-vanilla", "mtp-eagle", "ngram", ...; K (None: the number of MTP modules,
                   3 where these do not draft). Or draft(tokens, max), a function that gives the ids which may follow the timeline
                   tokens, int32; what is beyond max or not in the vocabulary is left out
    draft_model    a Model, for draft="draft-model": a smaller one with the same tokens (Tokenizer.match)
    draft_vocab    a DraftVocab (Model.draft_vocab): the tokens that MTP modules may draft; None: all
    draft_head     the directory of a draft head, for draft="eagle", "eagle3" and "parallel-heads"
    draft_topk     2 to 16: drafts are a tree, draft_tokens deep, in which up to that many follow each; of mtp-eagle, eagle,
                   eagle3 and parallel-heads. draft_nodes: the most of a round (None: draft_topk * K, at most 64)
    draft_auto     how many drafts a round asks for, draft_tokens at most, is chosen as the run goes
    draft_p_min    a draft ends before a token of a probability below this
    draft_settings a dictionary of what single methods want to know: {"ngram-min": 1}; draft_methods() lists them
    temperature, top_k, top_p, min_p, seed, repetition_penalty, presence_penalty, frequency_penalty    0: off
    routes         integers [tokens, layers, top_k]: forced routes, the experts that the first tokens take in each layer of the target;
                   their weights come from the router's scores. -1, top_k times: the router chooses
    kept_sets      integers [tokens, layers, index_topk], for models with sparse attention: the tokens to which the first tokens attend in
                   each layer, min(index_topk, t + 1) for token t, and then -1. -1, index_topk times: the indexer chooses
    record_routes  the property routes has the experts that the tokens took
    record_kept_sets  the property kept_sets has the tokens to which the tokens attended
    padded         passes of a round are filled up to K + 1 rows, as systems with fixed shapes do; changes no bit
    bias           {token: what is added to its logit}
    mask           mask(tokens) gives bool [V], True for tokens that may be chosen next; tokens is the timeline, int32.
                   It is called for drafts too, and must depend on its argument alone
    acceptance     which drafts stand: None or "strict"; "rejection": the distribution of plain decoding on another path, with
                   drafts that are drawn (draft_sample_method None or "probabilistic") or the best of their rows ("greedy");
                   "relaxed", lossy: with relaxed_topk (10), relaxed_delta (0.6) between thinking=(begin, end), two tokens
    load           a file that save has written: the session goes on from there, to the bits that the saved one would have given
    on_progress    on_progress(done, total): tokens of the prompt
    on_tap         on_tap(Tap): every named intermediate value, as it is computed; scores=True: attention scores too

    A callback may raise: the run stops there and the exception comes out of the call that began it. It may not use
    the session. One thread at a time may use a session; threads may share its model."""

    _closed = "the session is closed"

    def __init__(self, model, *, load=None, on_progress=None, on_tap=None, **options):
        self.model, self._lib, self._guard = model, library(), Guard()
        options, models = session_options(self._guard, model, **options)
        # always: a signal's handler runs only where Python does, and a long prompt would keep it waiting
        options.progress = self._guard.callback(_c.progress_callback, on_progress or (lambda done, total: None))
        if on_tap:
            options.tap = self._guard.callback(_c.tap_callback, lambda tap: on_tap(_tap(tap.contents)))
        pointer, err = C.c_void_p(), _c.vb_error()
        if load is None:
            check(self._lib.vb_session_open(C.byref(pointer), model._pointer(), C.byref(options), C.byref(err)), err)
        else:
            file_options = self._file_options()
            with self._guard:
                code = self._lib.vb_session_load(C.byref(pointer), model._pointer(), C.byref(options), path_bytes(load),
                                                 C.byref(file_options), C.byref(err))
            check(code, err)
        self._handle = Handle(pointer.value, self._lib.vb_session_close, options, [m._handle for m in models])
        for m in models:
            m._sessions.add(self)

    def close(self):
        if self._handle.pointer:
            with self._guard:
                self._handle.close()

    def _run(self, function, *arguments):
        """Calls function(session, ..., err), which may call back. What a callback raised comes before what C says."""
        err = _c.vb_error()
        with self._guard:
            code = function(self._pointer(), *arguments, C.byref(err))
        check(code, err)

    @property
    def tokens(self) -> list[int]:
        """The timeline: prompt and output."""
        with self._guard:
            count = C.c_size_t()
            ids = self._lib.vb_tokens(self._pointer(), C.byref(count))
            return ids[: count.value]

    @property
    def threads(self) -> dict:
        """How many threads computed: most, mean, passes, left_out, waited (struct vb_thread_use in verbatim.h)."""
        use = _c.vb_thread_use()
        with self._guard:
            self._lib.vb_session_threads_sized(self._pointer(), C.byref(use), C.sizeof(use))
        return {name: getattr(use, name) for name, _ in use._fields_}

    @property
    def routes(self) -> np.ndarray | None:
        """int32 [tokens, layers, top_k]: the experts of all tokens that were computed; None without record_routes."""
        return self._recorded()[0]

    @property
    def kept_sets(self) -> np.ndarray | None:
        """int32 [tokens, layers, index_topk]: for each computed token, the tokens to which it attended, in ascending order, and then -1. Layers
        without an indexer contain -1. None without record_kept_sets."""
        return self._recorded()[1]

    def _recorded(self):
        routes = _c.vb_routes()
        with self._guard:
            self._lib.vb_session_routes(self._pointer(), C.byref(routes))
            return routes_arrays(routes)

    def append(self, tokens):
        """Appends to the timeline; nothing is computed yet."""
        ids = ids_array(tokens)
        self._run(self._lib.vb_append, ids_pointer(ids), ids.size)

    def truncate(self, count: int):
        """Cuts the timeline, and the caches with it, to its first `count` tokens."""
        self._run(self._lib.vb_truncate, number("count", count, 0))

    def _file_options(self, **options):
        """With a callback, so that a signal's handler can run, and stop what takes long."""
        return _c.vb_file_options(progress=self._guard.callback(_c.file_callback, lambda done, total: 0, 1), **options)

    def prefill(self):
        """Computes what is due of the timeline, but for the last token, from which the next is chosen."""
        self._run(self._lib.vb_prefill)

    def save(self, path, *, hidden=True, replace=False):
        """Writes the session to a file, which is there when it is whole, and takes another's place only with replace. Without
        hidden states the first draft after a load takes zeros; the output is the same. Sampling options are not in it."""
        options = self._file_options(without_hidden=not hidden, replace=bool(replace))
        self._run(self._lib.vb_session_save, path_bytes(path), C.byref(options))

    def generate(self, n: int, *, ignore_eos=False, logits=False, on_token=None, tokenizer=None, stop=(), stop_tokens=()) -> Result:
        """Continues the timeline by at most n tokens. on_token(Event) is told about each and may stop the run by returning
        something true. stop: strings; the token that completes one of them in the text that tokenizer (a Tokenizer) gives is
        the last. stop_tokens: ids that end the run as an end token does, also with ignore_eos."""
        rows = np.empty((number("n", n, 0), self.model.vocab_size), np.float32) if logits else None
        tokens = []

        def on_event(pointer):
            event = pointer.contents
            tokens.append(event.token)
            if logits:
                copy_row(rows[len(tokens) - 1], event.logits)
            if on_token is None:
                return 0
            return bool(on_token(event_of(event, self.model.vocab_size)))

        result = _c.vb_result()
        options, stop = generate_options(n, ignore_eos, tokenizer, stop, stop_tokens)
        options.callback = self._guard.callback(_c.event_callback, on_event, 1)
        self._run(self._lib.vb_generate_sized, C.byref(options), C.byref(result), C.sizeof(result))
        done = result_of(result, tokens, tokenizer, stop, None if rows is None else rows[: len(tokens)])
        done.routes, done.kept_sets = self._recorded()
        return done

    def draft(self) -> tuple[int, list[int]]:
        """The target's next token, which is appended, and what the session's method would propose after it."""
        token, drafts, count = C.c_int32(), (C.c_int32 * _c.MAX_DRAFT)(), C.c_int32()
        self._run(self._lib.vb_draft, C.byref(token), drafts, C.byref(count))
        return token.value, list(drafts[: count.value])

    def draft_tree(self) -> tuple[int, list[tuple[int, int, float]]]:
        """The same of a session with draft_topk: (token, parent, confidence) for each draft, the most confident first; parent is the
        number, from 1, of the draft that it follows, 0: the target's next token."""
        n = _c.MAX_NODES
        token, drafts, parents, confidences, count = C.c_int32(), (C.c_int32 * n)(), (C.c_int32 * n)(), (C.c_double * n)(), C.c_int32()
        self._run(self._lib.vb_draft_tree, C.byref(token), drafts, parents, confidences, C.byref(count))
        return token.value, list(zip(drafts, parents, confidences))[: count.value]

    def evaluate(self, on_row, depths: int = 0):
        """Runs what is not yet computed through the target and, teacher forced, through `depths` MTP depths.
        on_row(depth, index, logits) is told each row, float32 [V], valid during the call: of the target (depth -1), or of an
        MTP depth, where row i has read tokens up to i + depth + 1. Something true stops: VerbatimError with Code.STOPPED."""

        def row(depth, index, logits, hidden):
            return bool(on_row(depth, index, view(C.addressof(logits.contents), [self.model.vocab_size], [1], np.float32)))

        self._run(self._lib.vb_evaluate, depths, self._guard.callback(_c.row_callback, row, 1), None)


def session_info(path, check_all=False) -> dict:
    """What a file that Session.save has written says of itself; check_all: every checksum is compared."""
    info, err = _c.vb_session_info(), _c.vb_error()
    check(library().vb_session_info_read_sized(C.byref(info), C.sizeof(info), path_bytes(path), bool(check_all), None, C.byref(err)), err)
    said = {name: getattr(info, name) for name, _ in info._fields_}
    said["with_hidden"] = bool(info.with_hidden)
    return {name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value for name, value in said.items()}


class DraftVocab(Closing):
    """The tokens that MTP modules may draft (`tokens`, ids of the model in any order). Made by Model.draft_vocab. A draft then reads
    only these rows of the output head. Sessions may share it. A context manager; closing it closes its sessions too."""

    _closed = "the draft vocabulary is closed"

    def __init__(self, model, tokens):
        self._lib, self._sessions = library(), weakref.WeakSet()
        ids = ids_array(tokens)
        pointer, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_draft_vocab_open(C.byref(pointer), model._pointer(), ids_pointer(ids), ids.size, C.byref(err)), err)
        self._handle = Handle(pointer.value, self._lib.vb_draft_vocab_close, model._handle)
        self.bytes = self._lib.vb_draft_vocab_bytes(pointer.value)  # of the rows that were copied
        model._sessions.add(self)

    def close(self):
        for session in list(self._sessions):
            session.close()
        self._handle.close()


class DraftMethod(typing.NamedTuple):
    """A way to draft. needs_*: without which it is refused."""

    name: str
    about: str
    settings: dict  # the keys of draft_settings that it reads, with their defaults
    needs_modules: bool
    needs_model: bool
    needs_head: bool
    needs_callback: bool
    trees: bool  # it can draft trees
    by_history: bool  # its drafts depend on the rounds before, not on the timeline alone
    keeps_state: bool  # session files hold its state


def draft_methods() -> list[DraftMethod]:
    """The draft methods that the library has, which Session's option draft names."""
    methods, said = [], _c.vb_draft_method()
    while library().vb_draft_methods_sized(len(methods), C.byref(said), C.sizeof(said)):
        settings = dict(pair.split("=") for pair in filter(None, said.settings.decode().split(",")))
        methods.append(DraftMethod(said.name.decode(), said.about.decode(), settings, *map(bool, [
            said.needs_modules, said.needs_model, said.needs_head, said.needs_callback, said.trees, said.by_history,
            said.keeps_state])))
    return methods


def draft_head(path) -> int:
    """The kind of draft head in a directory: 1 or 3 for EAGLE-1 and EAGLE-3, 100 for parallel heads; 0: there is none that can be read."""
    version, err = C.c_int(), _c.vb_error()
    check(library().vb_draft_head(C.byref(version), path_bytes(path), C.byref(err)), err)
    return version.value


def instruction_sets() -> list[str]:
    """Those that Session's option isa may name on this machine, best first."""
    names = []
    while name := library().vb_isa(len(names)):
        names.append(name.decode())
    return names


def drafting_options(guard, *, draft=None, draft_tokens=None, draft_model=None, draft_vocab=None, draft_head=None, draft_p_min=0.0, draft_auto=False, draft_topk=None,
                     draft_nodes=None, draft_settings=None):
    """How Session drafts, for C; see there."""
    options = _c.vb_drafting(
        method=b"callback" if callable(draft) else None if draft is None else draft.encode(),
        tokens=number("draft_tokens", draft_tokens, 0) if draft_tokens != 0 else -1,
        automatic=bool(draft_auto),
        p_min=draft_p_min,
        tree=_c.vb_tree_shape(number("draft_topk", draft_topk, 1), number("draft_nodes", draft_nodes, 1)),
        settings=",".join("%s=%s" % pair for pair in draft_settings.items()).encode() if draft_settings else None,
        model=None if draft_model is None else draft_model._pointer(),
        vocab=None if draft_vocab is None else draft_vocab._pointer(),
        head=None if draft_head is None else os.fspath(draft_head).encode(),
    )
    if callable(draft):
        options.callback = guard.callback(_c.draft_callback, _draft(draft), 0)
    return options


def sampling_options(guard, model, *, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, repetition_penalty=1.0, presence_penalty=0.0,
                     frequency_penalty=0.0, bias=None, mask=None, acceptance=None, draft_sample_method=None, relaxed_topk=None,
                     relaxed_delta=None, thinking=None):
    """How Session chooses tokens, for C; see there."""
    options = _c.vb_sampling(
        temperature=temperature, top_k=number("top_k", top_k, 0), top_p=top_p, min_p=min_p,
        seed=number("seed", seed, 0, 2**64), repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        acceptance=None if acceptance is None else acceptance.encode(),
        draft_sample_method=None if draft_sample_method is None else draft_sample_method.encode(),
        relaxed_topk=number("relaxed_topk", relaxed_topk, 1),
        relaxed_delta=0.0 if relaxed_delta is None else relaxed_delta or np.finfo(np.float32).tiny)  # 0 would be the default
    if thinking is not None:
        options.thinking_begin, options.thinking_end = thinking
    bias = dict(bias or {})
    tokens = ids_array(list(bias)).tolist()
    options.bias_tokens = (C.c_int32 * len(bias))(*tokens)  # arrays of ctypes live as long as the struct
    options.bias_values = (C.c_float * len(bias))(*bias.values())
    options.bias_count = len(bias)
    if mask:
        options.mask = guard.callback(_c.mask_callback, _mask(mask, model.vocab_size), _c.Code.STOPPED)
    return options


DRAFTING, SAMPLING = set(drafting_options.__kwdefaults__), set(sampling_options.__kwdefaults__)


def session_options(guard, model, *, context=None, prefill_chunk=None, prefill=None, threads=None, exact_threads=False, isa=None, padded=False,
                    scores=False, routes=None, kept_sets=None, record_routes=False, record_kept_sets=False, **options):
    """What Session is told, for C, and the models that are needed; see there."""
    drafting = {name: options.pop(name) for name in DRAFTING & set(options)}
    needed = [drafting[name] for name in ("draft_model", "draft_vocab") if drafting.get(name) is not None]
    told = _c.vb_session_options(
        context=number("context", context, 1),
        prefill_chunk=number("prefill_chunk", prefill_chunk, 1),
        prefill=None if prefill is None else prefill.encode(),
        threads=number("threads", threads, 1),
        exact_threads=bool(exact_threads),
        isa=None if isa is None else isa.encode(),
        tap_scores=bool(scores),
        padded=bool(padded),
        record_routes=bool(record_routes),
        record_kept=bool(record_kept_sets),
        drafting=drafting_options(guard, **drafting),
        sampling=sampling_options(guard, model, **options),
    )
    if routes is not None or kept_sets is not None:
        told.forced = routes_of(routes, kept_sets)
        told.routes = told.forced
    # between layers too: a signal's handler runs only where Python does, and a long pass would keep it waiting
    told.stop = guard.callback(_c.stop_callback, lambda: 0, 1)
    return told, [model] + needed


def generate_options(n, ignore_eos, tokenizer, stop, stop_tokens):
    """What Session.generate is told, for C, and the stop strings as a list."""
    stop = [stop] if isinstance(stop, str) else list(stop)
    ids = ids_array(stop_tokens).tolist()
    return _c.vb_generate_options(max_tokens=number("n", n, 0), ignore_eos=bool(ignore_eos), fingerprint=1,
                                  tokenizer=tokenizer._handle.pointer if tokenizer else None, stop_tokens=(C.c_int32 * len(ids))(*ids),
                                  stop_token_count=len(ids), stop=(C.c_char_p * len(stop))(*(c_string("stop", s) for s in stop)),
                                  stop_count=len(stop)), stop


def event_of(event, vocab_size) -> Event:
    row = view(C.addressof(event.logits.contents), [vocab_size], [1], np.float32)
    return Event(event.token, event.index, event.draft_depth, row)


def result_of(result, tokens, tokenizer, stop, rows=None) -> Result:
    """What C says of a run, in Python's words."""
    stats = {name: getattr(result, name) for name, _ in result._fields_ if name not in ("tokens", "finish", "fingerprint", "stop_string", "text_bytes")}
    for name in "accepted_by_depth", "drafted_by_depth", "rejected_by_depth":
        stats[name] = list(stats[name])
    stats["first_reject"] = {why.name.lower(): stats["first_reject"][why] for why in _c.Reject}
    stats["tokens_per_forward"] = (len(tokens) - 1) / result.forwards if result.forwards else None
    text = None
    if tokenizer:
        text = b"".join(tokenizer.piece(t) or b"" for t in tokens)[: result.text_bytes].decode("utf-8", "replace")
    return Result(tokens, "%016x" % result.fingerprint, _c.Finish(result.finish).name.lower(), stats, rows, text,
                  stop[result.stop_string - 1] if result.stop_string else None)


def number(name, value, least, end=2**31):
    """An option's integer for C, where 0 is the default."""
    if value is None:
        return 0
    if isinstance(value, bool) or int(value) != value or not least <= value < end:
        raise ValueError("%s is %r, wanted an integer from %d to %d" % (name, value, least, end - 1))
    return int(value)


def c_string(name, text):
    if "\0" in text:
        raise ValueError("%s is %r: a null character ends a string in C" % (name, text))
    return text.encode()


def _mask(mask, vocab_size):
    def fill(tokens, count, allowed):
        timeline = view(C.addressof(tokens.contents), [count], [1], np.int32)
        wanted = np.asarray(mask(timeline))
        if wanted.shape != (vocab_size,) or wanted.dtype != bool:
            raise TypeError("mask: wanted bool [%d], got %s %s" % (vocab_size, wanted.dtype, list(wanted.shape)))
        np.ctypeslib.as_array(allowed, (vocab_size,))[~wanted] = 0
        return _c.Code.OK

    return fill


def _draft(draft):
    def propose(tokens, count, place, most):
        drafts = ids_array(draft(view(C.addressof(tokens.contents), [count], [1], np.int32), most))[:most]
        view(C.addressof(place.contents), [most], [1], np.int32)[: drafts.size] = drafts
        return drafts.size

    return propose


def _tap(tap):
    shape, strides = [tap.rows, tap.outer, tap.inner], [tap.stride, tap.outer_stride, 1]
    if tap.outer == 1:
        shape, strides = shape[::2], strides[::2]
    data = view(tap.data, shape, strides, np.int32 if tap.integers else np.float32)
    memory = (C.c_char * (ROW.itemsize * tap.rows)).from_address(C.addressof(tap.row.contents))
    return Tap(tap.name.decode(), tap.layer, tap.depth, getattr(tap, "pass"), np.frombuffer(memory, ROW), data)
