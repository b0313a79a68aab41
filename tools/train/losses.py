"""What is minimised: cross-entropy of the target, the mean of the MTP depths' losses, and module 0 fed with itself.

Tokens come as tok [B, T+1+D]: row i of the target predicts tok[i+1], row i of module k reads tok[i+k+1] and predicts
tok[i+k+2] (k from 0)."""
import math

import torch

from ops import cross_entropy


def shifted(probs, by):
    """probs [B,T,V] of rows i -> rows i+by, and 0/1 per row: whether that row exists."""
    B, T, V = probs.shape
    soft = torch.cat((probs[:, by:], probs[:, :by]), 1)
    have = (torch.arange(T) < T - by).float().expand(B, T)
    return soft, have


def self_fed_masks(T):
    """Who module 0 sees when it drafts with its own hidden states. Second pass, keys [pass 1 | own]: row i sees rows
    < i as the target's hidden made them, and itself. Third pass, keys [pass 1 | pass 2 | own]: rows < i-1, i-1, i."""
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    return (torch.cat((j < i, j == i), 1),
            torch.cat((j < i - 1, j == i - 1, j == i), 1))


def forward_losses(model, tok, rope, dtype, distill=0.0, drafting=None, self_fed=(0, 0)):
    """Returns main loss, [MTP loss per depth], [self-fed loss of depth 2, 3], and their plain cross-entropies (dict).

    distill: weight of the target's own distribution in the MTP targets. drafting: how many sequences of the batch the
    MTP modules run on (None: all, 0: none). self_fed: (sequences, rows) on which module 0 also runs on its own output."""
    D = len(model.mtp)
    B, T = tok.shape[0], tok.shape[1] - 1 - D
    rope_T = tuple(t[:T] for t in rope)
    flat = lambda t: t.reshape(-1, t.shape[-1])
    h = model.hidden(tok[:, :T], rope_T, dtype)
    soft = distill > 0 and drafting != 0
    main, nll, probs = cross_entropy(flat(h), model.lm_head, tok[:, 1:T + 1].reshape(-1), want_probs=soft)
    plain = {"main": nll}
    depth, fed = [], []
    if drafting == 0:
        return main, depth, fed, plain
    B = min(B, drafting or B)
    probs = probs.view(-1, T, probs.shape[-1])[:B] if soft else None

    def draft_loss(g, k, rows):
        """Loss of rows g [b,t,d] that predict tok[i+k+2]; rows = (first, b, t)."""
        first, b, t = rows
        token = tok[:b, first + k + 2:t + k + 2].reshape(-1)
        if probs is None:
            return cross_entropy(flat(g[:, first:]), model.lm_head, token)[:2]
        target, have = shifted(probs[:b], k + 1)
        return cross_entropy(flat(g[:, first:]), model.lm_head, token, flat(target[:, first:t]),
                             (have[:, first:t] * distill).reshape(-1))[:2]

    emb, h = model.embed(tok[:B]), h[:B]
    first_kv = first_g = None
    for k, module in enumerate(model.mtp):
        h, kv = module(emb[:, k + 1:k + 1 + T], h, rope_T, dtype)
        loss, plain[f"mtp{k + 1}"] = draft_loss(h, k, (0, B, T))
        depth.append(loss)
        if k == 0:
            first_g, first_kv = h, kv
    b, t = min(self_fed[0], B), min(self_fed[1], T)
    if b and t:
        rope_t = tuple(x[:t] for x in rope)
        past, g = [tuple(x[:b, :, :t] for x in first_kv)], first_g[:b, :t]
        for step, mask in enumerate(self_fed_masks(t), 1):
            before = torch.cat((torch.zeros_like(g[:, :1]), g[:, :-1]), 1)
            g, kv = model.mtp[0](emb[:b, 1:t + 1], before, rope_t, dtype, past, mask)
            past.append(kv)
            loss, plain[f"self{step + 1}"] = draft_loss(g, 0, (step, b, t))
            fed.append(loss)
    return main, depth, fed, plain


def repeated(tok, n):
    """tok [B,T] -> bool [B,T]: whether the n tokens that end here stand earlier in the same sequence."""
    out = []
    for ids in tok.tolist():
        seen, row = set(), [False] * (n - 1)
        for j in range(n - 1, len(ids)):
            gram = tuple(ids[j - n + 1:j + 1])
            row.append(gram in seen)
            seen.add(gram)
        out.append(row)
    return torch.tensor(out, device=tok.device)


def unlikelihood(model, tok, rope, dtype, n):
    """Mean of -log(1 - p) over the tokens of the model's own text tok [B,T] that end a repeated n-gram (Welleck et al.,
    "Neural Text Generation with Unlikelihood Training", 2019, section 5.2), and the share of these tokens."""
    T = tok.shape[1] - 1
    wrong = repeated(tok, n)[:, 1:]
    z = model.logits(model.hidden(tok[:, :T], tuple(t[:T] for t in rope), dtype)[wrong])
    others = z.scatter(1, tok[:, 1:][wrong][:, None], -math.inf)                             # 1 - p is their share
    return (z.logsumexp(-1) - others.logsumexp(-1)).sum() / max(1, len(z)), wrong.float().mean()
