"""tests/foreign/schedule.py -- a run: a prompt in chunks, rounds of drafts and their verification, rollbacks.

The text is fixed beforehand, and how many drafts each round accepts. So two runs with other numbers have the same rows."""

import numpy as np

from backend import BLOCK, Backend, Row


class Plan:
    """A prompt of `prompt` tokens in chunks, then one round for each element of `accepts`: so many of K drafts are right."""

    def __init__(self, vocab, seed, prompt=14, chunks=(6, 5, 3), drafts=2, accepts=(1, 0, 2, 0)):
        rng = np.random.default_rng(seed)
        self.chunks, self.drafts, self.accepts = chunks, drafts, accepts
        assert sum(chunks) == prompt
        self.prompt, self.vocab = prompt, vocab
        self.text = [int(t) for t in rng.integers(4, vocab, prompt + sum(accepts) + len(accepts) + drafts + 1)]
        self.slots = (len(self.text) // BLOCK + 3) * BLOCK


class Run:
    def __init__(self, plan, checkpoint, arithmetic, style, bug=None, seed=0):
        self.plan, self.be = plan, Backend(checkpoint, arithmetic, style, bug, plan.slots, seed, len(plan.text))
        be = self.be
        be.run = self
        self.modules = be.c.modules
        self.K = self.modules or plan.drafts
        self.text = plan.text
        # hidden[k][i]: what module k takes for index i. done[k]: rows of module k whose cache rows stay.
        self.hidden = [np.zeros((len(plan.text) + 1, be.c.d), np.float32) for _ in range(self.modules + 1)]
        self.done = [0] * self.modules
        self.N, self.stale = plan.prompt, 0

    def go(self):
        self.prefill()
        for accept in self.plan.accepts:
            self.round(min(accept, self.K))
        self.tokens = self.text[: self.last + 1]
        return self.be.taps

    def prefill(self):
        begin = 0
        for chunk in self.plan.chunks:
            end = begin + chunk
            self.target(self.rows(range(begin, end)), list(range(chunk)) if self.be.s.all_logits else [chunk - 1])
            if end < self.plan.prompt:
                for k in range(self.modules):
                    self.module(k, end - 2 - k, self.text, end - 1)
            begin = end

    def rows(self, indices):
        be = self.be
        return [Row(self.text[i], i, p, be.slot(i)) for i, p in zip(indices, be.at("target.positions", list(indices)))]

    def target(self, rows, logits_of):
        h = self.be.target(rows, logits_of)
        self.hidden[0][[row.index for row in rows]] = h
        self.last = max(row.index for row in rows if row.final)

    def round(self, accept):
        """The drafts are right up to `accept`, then wrong."""
        be, N = self.be, self.N
        be.step += 1
        drafts = [self.text[N + 1 + j] if j < accept else (self.text[N + 1 + j] + 7 + j) % self.plan.vocab for j in range(self.K)]
        known = self.text[: N + 1] + drafts
        for k in range(self.modules):
            self.module(k, N - 1, known, N)
        positions = be.at("target.positions", list(range(N, N + self.K + 1)))
        rows = [Row(known[N], N, positions[0], be.slot(N))]
        for j in range(1, self.K + 1):
            rows.append(Row(known[N + j], N + j, positions[j], be.slot(N + j), j, j <= accept, j - 1, j <= accept))
        self.target(rows, list(range(self.K + 1)))
        self.N = N + accept + 1
        for k in range(self.modules):
            self.done[k] = be.at("module.rollback", min(self.done[k], N - k), before=self.done[k])
        self.stale = self.K - accept  # rows of rejected drafts that are still in memory

    def module(self, k, last, known, N):
        """Computes the rows of module k that are missing up to `last`. Rows that need a token after N use drafts."""
        be = self.be
        indices = list(range(self.done[k], last + 1))
        if not indices:
            return
        token = be.c.conventions.get("draft-position") == "token"
        rows = []
        for i in indices:
            draft = max(i + k + 1 - N, 0)
            rows.append(Row(known[i + k + 1], i, i + k + 1 if token else i, be.slot(i), draft, None, None, draft == 0))
        hidden = be.at("module.source", self.hidden[k][indices], indices=indices, k=k)
        self.hidden[k + 1][indices] = be.module(k, rows, hidden)
        self.done[k] = last + 1
