"""What is minimised: cross-entropy of the target, the mean of the MTP depths' losses, and module 0 fed with itself.

Tokens come as tok [B, T+1+D]: row i of the target predicts tok[i+1], row i of module k reads tok[i+k+1] and predicts
tok[i+k+2] (k from 0)."""
import torch

ROWS = 1024                                       # rows of logits computed at a time, so that they stay in cache


class HeadLoss(torch.autograd.Function):
    """Mean over rows of -sum_v p[v] log softmax(g W^T)[v], p = (1-a) onehot(token) + a soft, a per row.

    Returns (loss, nll, probs): nll is the mean plain cross-entropy, probs the softmax if `want_probs` (both without
    gradient). The gradient is made in forward, chunk by chunk, so no [rows, V] matrix of logits is kept."""

    @staticmethod
    def forward(ctx, g, w, token, soft, a, want_probs):
        n, inv = g.shape[0], 1.0 / g.shape[0]
        wc = w.to(g.dtype)
        dg, dw = torch.empty_like(g), torch.zeros_like(w)
        probs = g.new_empty(n, w.shape[0]) if want_probs else None
        loss = nll = 0.0
        for lo in range(0, n, ROWS):
            s = slice(lo, min(lo + ROWS, n))
            z = (g[s] @ wc.t()).float()
            at = token[s, None]
            logz = z.logsumexp(-1, keepdim=True)
            miss = logz - z.gather(1, at)
            p = torch.exp(z - logz)
            if want_probs:
                probs[s] = p
            nll += miss.sum().item()
            if soft is None:
                p.scatter_add_(1, at, torch.full_like(miss, -1.0))
            else:
                q, b = soft[s].float(), a[s, None]
                loss += (b * (logz - (q * z).sum(-1, keepdim=True)) + (1 - b) * miss).sum().item()
                p -= q.mul_(b)
                p.scatter_add_(1, at, b - 1)
            p = p.mul_(inv).to(g.dtype)
            dg[s] = p @ wc
            dw += p.t() @ g[s]
        ctx.save_for_backward(dg, dw)
        nll *= inv
        out = (torch.tensor(nll if soft is None else loss * inv), torch.tensor(nll), probs)
        ctx.mark_non_differentiable(*[t for t in out[1:] if t is not None])
        return out

    @staticmethod
    def backward(ctx, grad, *_):
        dg, dw = ctx.saved_tensors
        return dg * grad.to(dg.dtype), dw * grad, None, None, None, None


def shifted(probs, by):
    """probs [B,T,V] of rows i -> rows i+by, and 0/1 per row: whether that row exists."""
    B, T, V = probs.shape
    soft = torch.cat((probs[:, by:], probs[:, :by]), 1)
    have = (torch.arange(T) < T - by).float().expand(B, T)
    return soft, have


def self_fed_masks(T):
    """Who module 0 sees when it drafts with its own hidden rows. Second pass, keys [pass 1 | own]: row i sees rows
    < i as the target's hidden made them, and itself. Third pass, keys [pass 1 | pass 2 | own]: rows < i-1, i-1, i."""
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    return (torch.cat((j < i, j == i), 1),
            torch.cat((j < i - 1, j == i - 1, j == i), 1))


def forward_losses(model, tok, rope, dtype, head, distill=0.0, drafting=None, self_fed=(0, 0)):
    """Returns main loss, [MTP loss per depth], [self-fed loss of depth 2, 3], and their plain cross-entropies (dict).

    distill: weight of the target's own distribution in the MTP targets. drafting: how many sequences of the batch the
    MTP modules run on (None: all, 0: none). self_fed: (sequences, rows) on which module 0 also runs on its own output."""
    cfg, D = model.cfg, len(model.mtp)
    B, T = tok.shape[0], tok.shape[1] - 1 - D
    rope_T = tuple(t[:T] for t in rope)
    flat = lambda t: t.reshape(-1, t.shape[-1])
    h = model.hidden(tok[:, :T], rope_T, dtype)
    main, nll, probs = head(flat(h), model.lm_head, tok[:, 1:T + 1].reshape(-1), None, None, distill > 0)
    probs = probs.view(B, T, -1) if distill > 0 else None
    plain = {"main": nll.item()}

    def draft_loss(g, k, rows):
        """Loss of rows g [b,t,d] that predict tok[i+k+2]; rows = (first, b, t)."""
        first, b, t = rows
        token = tok[:b, first + k + 2:t + k + 2].reshape(-1)
        if probs is None:
            return head(flat(g[:, first:]), model.lm_head, token, None, None, False)[:2]
        soft, have = shifted(probs[:b], k + 1)
        return head(flat(g[:, first:]), model.lm_head, token, flat(soft[:, first:t]),
                    (have[:, first:t] * distill).reshape(-1), False)[:2]

    depth, fed = [], []
    if drafting == 0:
        return main, depth, fed, plain
    B = min(B, drafting or B)
    emb, h = model.embed(tok[:B]), h[:B]
    first_kv = first_g = None
    for k, module in enumerate(model.mtp):
        h, kv = module(emb[:, k + 1:k + 1 + T], h, rope_T, dtype)
        loss, nll = draft_loss(h, k, (0, B, T))
        depth.append(loss)
        plain[f"mtp{k + 1}"] = nll.item()
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
            loss, nll = draft_loss(g, 0, (step, b, t))
            fed.append(loss)
            plain[f"self{step + 1}"] = nll.item()
    return main, depth, fed, plain
