"""The order in which a text is read when no document may be read more than four times.

A plan names the texts of each pass: "tales+children-novels,tales" reads both once, then the tales again. A pass cuts its
texts at places drawn for this pass into chunks that do not overlap, and shuffles them. Everything follows from the
plan and the seed, so chunk n is the same in every process and after every resume.
"""
import numpy as np
import torch

from tokenizer import BOS_ID, CORPORA

MOST = 4                                          # reads of a document


class Passes:
    """Chunks of rows + ahead tokens: `rows` inputs, and the tokens after them that the losses look at. Half of the chunks
    begin with BOS at the start of a paragraph, as a prompt does; what lies before it is left out of this pass."""

    def __init__(self, plan, path, rows, ahead, newline_ids, seed, before=0):
        """path(name) is the path of a file of tokenizer.py; before: how many passes earlier runs made."""
        self.rows, self.ahead, self.texts, self.passes, self.before = rows, ahead, {}, [], before
        for number, names in enumerate(plan.split(","), before):
            chunks = []
            for name in names.split("+"):
                if name not in CORPORA:
                    raise SystemExit(f"--plan: wanted {' or '.join(CORPORA)}, found {name}")
                if name not in self.texts:
                    ids = np.load(path(f"{name}.train.npy"))
                    self.texts[name] = ids, np.flatnonzero(np.isin(ids, newline_ids)) + 1
                rng = np.random.default_rng([seed, number, CORPORA.index(name)])
                chunks += [(name, *c) for c in self.cut(*self.texts[name], rng)]
            order = np.random.default_rng([seed, number]).permutation(len(chunks))
            self.passes.append([chunks[i] for i in order])
        self.chunks = [c for p in self.passes for c in p]
        self.reads = self.count()

    def cut(self, ids, paragraphs, rng):
        """(start, whether BOS comes before it) of every chunk: each token is a row of at most one."""
        at, out = int(rng.integers(self.rows)), []
        while True:
            bos = rng.random() < 0.5
            if bos:
                next_one = np.searchsorted(paragraphs, at)
                if next_one == len(paragraphs):
                    return out
                at = int(paragraphs[next_one])
                if ids[at] == BOS_ID:                                        # EOS and BOS of a document follow its last paragraph
                    bos = False
            if at + self.rows + self.ahead > len(ids):
                return out
            out.append((at, bos))
            at += self.rows - bos

    def count(self):
        """How often each document is read: the most reads of one of its tokens as an input, over all passes, and the passes
        before."""
        most = {}
        for name, (ids, _) in self.texts.items():
            reads = np.zeros(len(ids), dtype=np.uint8)
            for of, at, bos in self.chunks:
                if of == name:
                    reads[at:at + self.rows - bos] += 1
            most[name] = self.before + np.maximum.reduceat(reads, np.flatnonzero(ids == BOS_ID))
            if most[name].max() > MOST:
                raise SystemExit(f"--plan: a document of {name} would be read {most[name].max()} times; at most {MOST} are allowed")
        return most

    def __len__(self):
        return len(self.chunks)

    def __str__(self):
        return f"{len(self) * self.rows / 1e6:.2f} M tokens in {len(self.passes)} passes; " + ", ".join(
            f"{len(r)} documents of {name} at most {r.max()} times" for name, r in self.reads.items())

    def batch(self, first, count):
        """Chunks first ... first+count-1 as [count, rows + ahead]."""
        out = []
        for name, at, bos in self.chunks[first:first + count]:
            c = self.texts[name][0][at:at + self.rows + self.ahead - bos].astype(np.int64)
            out.append(np.concatenate(([BOS_ID], c)) if bos else c)
        return torch.from_numpy(np.stack(out))
