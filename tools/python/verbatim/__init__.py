"""Verbatim from Python: a reference engine for DeepSeek-style language models (MLA, MoE, MTP) as an oracle for tests.

    import numpy as np, verbatim
    model = verbatim.Model("golden/tale")
    tokens = verbatim.Tokenizer("golden/tale").encode("Once upon a time")
    model.generate(tokens, 40, draft="mtp-eagle").tokens         # and .fingerprint: the same for every draft method
    model.logits(tokens)                                         # float32 [len(tokens), V]
    model.taps(tokens, "*.mlp.gate.*")["model.layers.3.mlp.gate.experts"]

What the library refuses is a VerbatimError with its sentence. In the child of a fork, as multiprocessing's start method "fork"
makes one, sessions that were opened before compute on one thread; what is opened there wants threads=1, or use "spawn".
"""

from ._c import VERSION as __version__
from ._c import Code
from ._call import VerbatimError
from .batch import Batch
from .model import Model, Taps, conventions, systems
from .oracle import CommandError, assert_matches, diff, reference, replay, score
from .server import Server
from .session import DraftMethod, DraftVocab, Event, Result, Session, Tap, draft_head, draft_methods, instruction_sets, session_info
from .tensors import TensorInfo, Tensors, write_tensors
from .tokenizer import ChatTemplate, Tokenizer
from .trainer import Losses, TrainedTensor, Trainer

__all__ = ["Batch", "ChatTemplate", "Code", "CommandError", "DraftMethod", "DraftVocab", "Event", "Losses", "Model", "Result", "Server", "Session", "Tap", "Taps", "TensorInfo", "Tensors", "Tokenizer", "TrainedTensor", "Trainer", "VerbatimError", "__version__",
           "assert_matches", "conventions", "diff", "draft_head", "draft_methods", "instruction_sets", "reference", "replay", "score", "session_info", "systems", "write_tensors"]
