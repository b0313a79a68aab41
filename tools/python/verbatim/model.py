"""A checkpoint, and what it gives for tokens."""

from __future__ import annotations

import ctypes as C
import fnmatch
import itertools
import json
import os
import weakref

import numpy as np

from . import _c
from ._call import Closing, Handle, check, ids_array, path_bytes
from ._library import library
from .batch import Batch, generate_many
from .session import DraftVocab, Result, Session, number
from .tokenizer import take_text


class Taps(dict):
    """name -> array [rows, ...], float32 or int32. `rows` has per name what the rows are: fields sequence, token, index,
    position, slot, draft, hidden_of, hidden_depth (an expert's rows are those of the tokens that chose it)."""

    def __init__(self):
        super().__init__()
        self.rows = {}


class Model(Closing):
    """A checkpoint in the Hugging Face layout. Read-only once open; threads may share it. A context manager.

    conventions    where implementations disagree, as "as=vllm-2025,concat=hidden-embedding"; `verbatim conventions` lists them
    cache_type     "bf16": the KV caches are rounded to BF16; "q8": they are quantized to 8 bits. Less memory, other bits
    repack_cache   a directory that keeps the copies of quantized weights, so that the model opens faster the next time

    The options of generate, logits, mtp_logits and taps that are not named here are those of Session."""

    _closed = "the model is closed"

    def __init__(self, path, precision: str | None = None, conventions: str | None = None,
                 repack_cache=None, cache_type: str | None = None):
        self.path = os.fspath(path)
        self._lib, self._sessions = library(), weakref.WeakSet()
        options = _c.vb_model_options(precision=None if precision is None else precision.encode(),
                                      cache_type=None if cache_type is None else cache_type.encode(),
                                      conventions=None if conventions is None else conventions.encode(),
                                      repack_cache=None if repack_cache is None else path_bytes(repack_cache))
        pointer, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_model_open(C.byref(pointer), path_bytes(path), C.byref(options), C.byref(err)), err)
        self._handle = Handle(pointer.value, self._lib.vb_model_close, options)
        self.vocab_size = self._lib.vb_vocab_size(pointer.value)
        self.hidden_size = self._lib.vb_hidden_size(pointer.value)
        self.mtp_modules = self._lib.vb_mtp_modules(pointer.value)
        self.max_positions = self._lib.vb_max_positions(pointer.value)

    def __repr__(self):
        return "verbatim.Model(%r)" % (self.path,)

    def close(self):
        """Closes its sessions too."""
        for session in list(self._sessions):
            session.close()
        self._handle.close()

    def describe(self) -> dict:
        """What `verbatim inspect --json` prints: configuration, parameters, MTP modules, bytes per part, tensors not used and why."""
        text, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_model_describe(self._pointer(), C.byref(text), C.byref(err)), err)
        return json.loads(take_text(self._lib, text.value))

    def check(self):
        """Reads every byte. Raises VerbatimError, which names file, tensor and index, unless every weight is finite."""
        err = _c.vb_error()
        check(self._lib.vb_model_check(self._pointer(), None, None, C.byref(err)), err)

    def fingerprint(self, *, sampled: bool = False, threads: int | None = None) -> str:
        """16 hexadecimal digits, a hash of everything in the model that results depend on. All weights are read, or, if `sampled`,
        a few of their bytes. threads None: as many as there are processors."""
        value, err = C.c_uint64(), _c.vb_error()
        check(self._lib.vb_model_fingerprint(self._pointer(), bool(sampled), number("threads", threads, 1), C.byref(value), C.byref(err)), err)
        return "%016x" % value.value

    def quantize(self, out, type: str, *, embedding_type: str | None = None, head_type: str | None = None, threads: int | None = None):
        """Writes the model, opened from a directory in precision f32, as the GGUF file `out`, which may not exist. type: "f32", "bf16",
        "q8_0" or "q4_0", of linear layers, experts and heads; the others' may also be "as-stored". The notes about what the file
        does not say are returned."""
        options = _c.vb_quantize_options(**{key: None if name is None else name.encode() for key, name in
                                             (("type", type), ("embedding_type", embedding_type), ("head_type", head_type))})
        plan, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_quantize_open(C.byref(plan), self._pointer(), path_bytes(self.path), C.byref(options), C.byref(err)), err)
        try:
            part = "%s.%d.part" % (os.fspath(out), os.getpid())
            with open(part, "xb") as file:
                try:
                    check(self._lib.vb_quantize_write(plan, file.fileno(), path_bytes(out), number("threads", threads, 1), None, None, C.byref(err)), err)
                    os.fsync(file.fileno())
                    os.link(part, out)  # refuses a file that exists
                finally:
                    os.unlink(part)
            notes = (self._lib.vb_quantize_note(plan, i) for i in itertools.count())
            return [note.decode() for note in itertools.takewhile(lambda note: note is not None, notes)]
        finally:
            self._lib.vb_quantize_close(plan)

    def is_end_token(self, token: int) -> bool:
        return bool(self._lib.vb_is_end_token(self._pointer(), token))

    def draft_vocab(self, tokens) -> DraftVocab:
        return DraftVocab(self, tokens)

    def session(self, **options) -> Session:
        return Session(self, **options)

    def _session_of(self, tokens, n, options):
        """A session whose timeline is `tokens`, with room for n more."""
        ids = ids_array(tokens)
        if not ids.size:
            raise ValueError("no tokens")
        options.setdefault("context", max(ids.size, min(ids.size + n, self.max_positions)))
        session = Session(self, **options)
        session.append(ids)
        return session

    def generate(self, tokens, n: int, *, ignore_eos=False, logits=False, on_token=None, tokenizer=None, stop=(), stop_tokens=(),
                 **options) -> Result:
        """Continues tokens by at most n. `logits`: the rows that chose them too, [n, V]. The rest is Session.generate's."""
        with self._session_of(tokens, n, options) as session:
            return session.generate(n, ignore_eos=ignore_eos, logits=logits, on_token=on_token, tokenizer=tokenizer, stop=stop,
                                    stop_tokens=stop_tokens)

    def batch(self, **options) -> Batch:
        return Batch(self, **options)

    def generate_many(self, prompts, n: int, *, max_sequences=None, cache_tokens=None, keep_apart=False, seeds=None, ignore_eos=False,
                      tokenizer=None, stop=(), stop_tokens=(), on_result=None, **options) -> list[Result]:
        """Continues each of many prompts (sequences of ids) by at most n, computed side by side: the results, in their order, each
        with the bits that generate gives for the prompt alone.

        max_sequences  computed side by side, 1 to 64 (None: 8)
        cache_tokens   that the cache holds for all together (None: max_sequences times the longest); when it is full the youngest
                       waits, and is computed again
        keep_apart     prompts that begin alike do not share what is computed for their beginning
        seeds          one for each prompt, in place of seed
        on_result      on_result(number, Result): told about each as it is done, number that of its prompt

        The rest is generate's and Session's, but for callbacks that are told of tokens and taps, and prefill "onednn" and "cublas". The first error of
        a prompt ends all."""
        return generate_many(self, prompts, n, max_sequences=max_sequences, cache_tokens=cache_tokens, keep_apart=keep_apart, seeds=seeds,
                             ignore_eos=ignore_eos, tokenizer=tokenizer, stop=stop, stop_tokens=stop_tokens, on_result=on_result, **options)

    def logits(self, tokens, **options) -> np.ndarray:
        """float32 [len(tokens), V]: row i is what follows tokens[:i + 1]."""
        return self._rows(tokens, 0, options)[0]

    def mtp_logits(self, tokens, depths: int | None = None, **options) -> list[np.ndarray]:
        """Per MTP depth k (None: as many as the model has modules) float32 [len(tokens) - k - 1, V], teacher forced: row i
        takes the hidden state i, has read tokens[:i + k + 2], and predicts the token after them. Depth k is module k mod
        the number of modules."""
        return self._rows(tokens, self.mtp_modules if depths is None else depths, options)[1:]

    def _rows(self, tokens, depths, options):
        with self._session_of(tokens, 0, options) as session:
            count = len(session.tokens)
            rows = [np.empty((max(count - k, 0), self.vocab_size), np.float32) for k in range(depths + 1)]

            def on_row(depth, index, logits):
                rows[depth + 1][index] = logits

            session.evaluate(on_row, depths)
        return rows

    def taps(self, tokens, names="*", *, scores=False, mtp: int | None = None, **options) -> Taps:
        """Every named intermediate value of one pass over tokens, and of `mtp` MTP modules that read the tokens themselves
        (None: all of them). names: a glob or several, as in "model.layers.*.mlp.gate.*"; docs/ORACLE.md lists the names.
        scores: attention scores too, [rows, widest], masked ones -inf. Rows of tokens that an indexer keeps are filled up with -1."""
        globs = [names] if isinstance(names, str) else list(names)
        depths = self.mtp_modules if mtp is None else mtp
        if not 0 <= depths <= self.mtp_modules:
            raise ValueError("mtp is %r, the model has %d modules" % (mtp, self.mtp_modules))
        if options.get("draft") not in (None, "none"):  # its modules read the prompt too, and would be told about twice
            raise ValueError("draft is %r: one pass drafts nothing" % options["draft"])
        wanted, pieces, rows, unmet = {}, {}, {}, set(globs)

        def on_tap(tap):
            if tap.name not in wanted:
                met = [glob for glob in globs if fnmatch.fnmatchcase(tap.name, glob)]
                wanted[tap.name] = bool(met)
                unmet.difference_update(met)
            if wanted[tap.name]:
                pieces.setdefault(tap.name, []).append(tap.data.copy())
                rows.setdefault(tap.name, []).append(tap.rows.copy())

        options.setdefault("prefill_chunk", max(len(tokens), 1))  # one pass
        with self._session_of(tokens, 0, {**options, "on_tap": on_tap, "scores": scores}) as session:
            session.evaluate(lambda *row: None, depths)
        if unmet:
            raise ValueError("no intermediate value is named %s%s" % (" or ".join(sorted(unmet)),
                             "" if scores else " (attention scores come with scores=True)"))
        taps = Taps()
        for name, parts in pieces.items():
            taps[name] = _join(parts)
            taps.rows[name] = np.concatenate(rows[name])
        return taps


def _join(parts):
    """One after the other; rows of scores grow with the position, and what they lack is masked. Rows of kept tokens end in -1."""
    widest = max(part.shape[-1] for part in parts)
    if any(part.shape[-1] < widest for part in parts):
        missing = -1 if np.issubdtype(parts[0].dtype, np.integer) else -np.inf
        parts = [np.pad(p, [(0, 0)] * (p.ndim - 1) + [(0, widest - p.shape[-1])], constant_values=missing) for p in parts]
    return np.concatenate(parts)


def conventions() -> list[dict]:
    """Where implementations disagree: name, values (the first is the default), changes_output, who."""
    lib, row = library(), _c.vb_convention()
    return [{"name": row.name.decode(), "values": [v.decode() for v in row.values if v], "changes_output": bool(row.changes_output),
             "who": row.who.decode()} for _ in itertools.takewhile(lambda i: lib.vb_convention_at_sized(i, C.byref(row), C.sizeof(row)), itertools.count())]


def systems() -> list[dict]:
    """Systems of the field, for conventions="as=NAME": name, conventions, draft (their method), evidence, changes_output."""
    lib, row = library(), _c.vb_system()
    return [{"name": row.name.decode(), "conventions": row.conventions.decode(), "draft": row.draft.decode(), "evidence": row.evidence.decode(),
             "changes_output": bool(row.changes_output)} for _ in itertools.takewhile(lambda i: lib.vb_system_at_sized(i, C.byref(row), C.sizeof(row)), itertools.count())]
