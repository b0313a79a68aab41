"""Text and ids; conversations as text."""

from __future__ import annotations

import ctypes as C
import json

import numpy as np

from . import _c
from ._call import Handle, check, ids_array, ids_pointer, path_bytes
from ._library import library


class Tokenizer:
    """DIR/tokenizer.json, DIR/tiktoken.model or DIR/tekken.json (byte-level BPE). Read-only; threads may share it."""

    def __init__(self, path):
        self._lib = library()
        pointer, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_tokenizer_open(C.byref(pointer), path_bytes(path), None, C.byref(err)), err)
        self._handle = Handle(pointer.value, self._lib.vb_tokenizer_close)
        bos = self._lib.vb_bos_token(self._handle.pointer)
        self.bos_token = None if bos < 0 else bos
        self.add_bos = bool(self._lib.vb_add_bos(self._handle.pointer))

    def encode(self, text: str, bos: bool | None = None, special: bool = True) -> list[int]:
        """Ids of this text, with BOS in front: if `bos`, or, as for `verbatim generate --prompt`, if tokenizer_config.json's
        add_bos_token says so (None). Special tokens written in the text are recognised, or are plain text with special=False."""
        if bos is None:
            bos = self.add_bos
        if bos and self.bos_token is None:
            raise ValueError("the tokenizer has no BOS token")
        raw, count, err = text.encode(), C.c_size_t(), _c.vb_error()
        ids = np.empty(len(raw), np.int32)  # a token is a byte at least
        while True:
            encode = self._lib.vb_encode if special else self._lib.vb_encode_plain
            check(encode(self._handle.pointer, raw, len(raw), ids_pointer(ids), ids.size, C.byref(count), C.byref(err)), err)
            if count.value <= ids.size:
                return [self.bos_token] * bool(bos) + ids[: count.value].tolist()
            ids = np.empty(count.value, np.int32)

    def fingerprint(self) -> str:
        """16 hexadecimal digits: tokenizers with the same fingerprint give the same ids for each text."""
        return "%016x" % self._lib.vb_tokenizer_fingerprint(self._handle.pointer)

    def match(self, other: Tokenizer):
        """Raises VerbatimError, which says where, unless both have the same tokens: bytes of each id, BOS and EOS."""
        err = _c.vb_error()
        check(self._lib.vb_tokenizers_match(self._handle.pointer, other._handle.pointer, C.byref(err)), err)

    def piece(self, token: int) -> bytes | None:
        """The bytes of one token, which may be a part of a character; None for an id without a token."""
        size = C.c_size_t()
        address = self._lib.vb_piece(self._handle.pointer, token, C.byref(size))
        return None if address is None else C.string_at(address, size.value)

    def decode(self, tokens) -> str:
        """The text of these ids, special tokens as they are written; invalid bytes are U+FFFD."""
        return b"".join(self.piece(t) or b"" for t in ids_array(tokens).tolist()).decode("utf-8", "replace")


def take_text(lib, address, size=None):
    """The text at an address, which the library then frees."""
    try:
        return (C.string_at(address) if size is None else C.string_at(address, size)).decode()
    finally:
        lib.vb_text_free(address)


class ChatTemplate:
    """The chat template of a checkpoint: chat_template.jinja, tokenizer_config.json's chat_template, or a GGUF file's. Read-only."""

    def __init__(self, path):
        self._lib = library()
        pointer, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_template_open(C.byref(pointer), path_bytes(path), None, C.byref(err)), err)
        self._handle = Handle(pointer.value, self._lib.vb_template_close)

    @property
    def source(self) -> str:
        """The text of the template, in Jinja2."""
        size = C.c_size_t()
        address = self._lib.vb_template_source(self._handle.pointer, C.byref(size))
        return C.string_at(address, size.value).decode()

    def render(self, messages, tokenizer: Tokenizer, add_generation_prompt: bool = True, **variables) -> str:
        """The prompt for messages, dicts with "role" and "content". variables: what the template sees besides, as tools or
        enable_thinking. Encode the text with bos=False: a template writes its own special tokens."""
        text, size, err = C.c_void_p(), C.c_size_t(), _c.vb_error()
        said = json.dumps(messages).encode()
        check(self._lib.vb_template_render(self._handle.pointer, tokenizer._handle.pointer, said, len(said), bool(add_generation_prompt),
                                           json.dumps(variables).encode(), C.byref(text), C.byref(size), C.byref(err)), err)
        return take_text(self._lib, text.value, size.value)
