"""Training steps: losses, gradients and updates, with the same bits for every number of threads."""

from __future__ import annotations

import ctypes as C
import dataclasses
import os

import numpy as np

from . import _c
from ._call import Closing, Handle, check, ids_array, ids_pointer, view


@dataclasses.dataclass(frozen=True)
class Losses:
    """Means in nats. total is what is minimised; main is of the next token, by_depth of the MTP depths; rows and depth_rows say
    how many rows these are means of."""

    total: float
    main: float
    by_depth: list
    rows: int
    depth_rows: list


@dataclasses.dataclass(frozen=True)
class TrainedTensor:
    """Views of the trainer's memory, valid until it is closed, which may be written to: the weights, the gradient of the newest
    step, and AdamW's moments. g, m and v are None for e_score_correction_bias. A trainer that nobody closes stays open as long as
    somebody has one of its arrays."""

    name: str
    w: np.ndarray
    g: np.ndarray | None
    m: np.ndarray | None
    v: np.ndarray | None
    decays: bool
    is_new: bool


class Trainer(Closing):
    """Trains MTP modules of a model (part="modules"), draft heads ("eagle", "eagle3", "parallel-heads"), or an f32 copy of all of it
    ("model"). The model itself does not change. Options are the fields of vb_trainer_options in engine/verbatim_train.h, which says what
    they mean; draft_tokens is an array. A context manager.

        with verbatim.Trainer(model, loss="fastmtp", depths=3) as trainer:
            for step, batch in enumerate(batches, 1):                # a batch is a list of sequences of tokens
                print(trainer.gradients(batch).total)
                trainer.update(step, lr=3e-4)
            verbatim.write_tensors("modules.safetensors", {name: x.w for name, x in trainer.tensors.items()})
    """

    _closed = "the trainer is closed"

    def __init__(self, model, **options):
        self._lib, told = model._lib, _c.vb_trainer_options()
        for name, value in options.items():
            if name not in dict(told._fields_) or name in ("size", "draft_vocab_size"):
                raise TypeError("Trainer has no option %s" % name)
            if name == "draft_tokens":
                ids = ids_array(value)
                told.draft_tokens, told.draft_vocab_size = ids_pointer(ids), ids.size
                continue
            setattr(told, name, os.fsencode(value) if isinstance(value, (str, os.PathLike)) else value)
        pointer, err = C.c_void_p(), _c.vb_error()
        check(self._lib.vb_trainer_open(C.byref(pointer), model._pointer(), C.byref(told), C.byref(err)), err)
        self._handle = Handle(pointer.value, self._lib.vb_trainer_close, model._handle)
        model._sessions.add(self)

    def _step(self, function, sequences, loss_masks):
        arrays = [ids_array(tokens) for tokens in sequences]
        masks = [None if mask is None else np.ascontiguousarray(mask, np.uint8) for mask in loss_masks or [None] * len(arrays)]
        if len(masks) != len(arrays) or any(mask is not None and mask.shape != ids.shape for mask, ids in zip(masks, arrays)):
            raise ValueError("loss_masks: wanted an array for each sequence, with a number for each token")
        told, losses, err = (_c.vb_train_sequence * len(arrays))(), _c.vb_train_losses(), _c.vb_error()
        for to, ids, mask in zip(told, arrays, masks):
            to.tokens, to.count = ids_pointer(ids), ids.size
            if mask is not None:
                to.loss_mask = mask.ctypes.data_as(C.POINTER(C.c_ubyte))
        check(function(self._pointer(), told, len(arrays), C.byref(losses), C.sizeof(losses), C.byref(err)), err)
        return Losses(losses.total, losses.main, losses.by_depth[: losses.depths], losses.rows, losses.depth_rows[: losses.depths])

    def gradients(self, sequences, loss_masks=None) -> Losses:
        """The losses of a step, whose gradients are then in `tensors`. A row that predicts a token whose mask is 0 has no loss."""
        return self._step(self._lib.vb_trainer_gradients_sized, sequences, loss_masks)

    def losses(self, sequences, loss_masks=None) -> Losses:
        """The losses alone, for texts that are held out."""
        return self._step(self._lib.vb_trainer_losses_sized, sequences, loss_masks)

    def update(self, step: int, lr: float) -> float:
        """Clipping, AdamW, then the bias of the routers. Steps count from 1. Returns the norm of all gradients before clipping."""
        norm, err = C.c_double(), _c.vb_error()
        check(self._lib.vb_trainer_update(self._pointer(), step, lr, C.byref(norm), C.byref(err)), err)
        return norm.value

    @property
    def tensors(self) -> dict:
        """TrainedTensor by name, in the order of names."""
        trainer, said, out = self._pointer(), _c.vb_train_tensor(), {}
        while self._lib.vb_trainer_tensor_sized(trainer, len(out), C.byref(said), C.sizeof(said)):
            shape = tuple(said.shape[: said.ndim])
            strides = (shape[1], 1) if len(shape) == 2 else (1,)
            arrays = [view(address, shape, strides, np.float32, self) if address else None for address in (said.w, said.g, said.m, said.v)]
            name = said.name.decode()
            out[name] = TrainedTensor(name, *arrays, bool(said.decays), bool(said.is_new))
        return out
