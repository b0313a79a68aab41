"""Muon for the matrices, Adam for embeddings, head, router and norms. One file, no options beyond the rates."""
import torch


@torch.no_grad()
def orthogonalise(G, dtype):
    """Newton-Schulz iteration of Muon on a stack [n, rows, cols], in dtype: singular values towards 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.to(dtype)
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT.contiguous() if tall else X
    X = X / (X.float().norm(dim=(-2, -1), keepdim=True).to(dtype) + 1e-7)
    for _ in range(5):
        A = X @ X.mT
        X = a * X + (b * A + c * (A @ A)) @ X
    return (X.mT if tall else X).float()


class Muon(torch.optim.Optimizer):
    """Momentum, then the orthogonalised step, whose products are in dtype; matrices of one shape are done in one stack."""

    def __init__(self, params, lr, dtype, momentum=0.95, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))
        self.dtype = dtype

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - group["momentum"])
                step = p.grad.lerp(buf, group["momentum"])                   # Nesterov
                step = step if step.dim() == 3 else step[None]
                shapes.setdefault(step.shape[1:], []).append((p, step))
            for (rows, cols), items in shapes.items():
                steps = orthogonalise(torch.cat([s for _, s in items]), self.dtype).split([len(s) for _, s in items])
                scale = max(1.0, rows / cols) ** 0.5
                for (p, _), s in zip(items, steps):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(s.view_as(p), alpha=-group["lr"] * scale)


def optimizers(model, lr, adam_lr, weight_decay, dtype):
    """lr is Muon's, adam_lr the head's, router's and norms'; the embedding, whose rows have unit variance, gets three times that."""
    muon, adam, emb = [], [], []
    for name, p in model.named_parameters():
        if name == "embed_tokens":
            emb.append(p)
        elif p.dim() < 2 or name == "lm_head" or name.endswith("mlp.gate"):
            adam.append(p)
        else:
            muon.append(p)
    return [Muon(muon, lr=lr, dtype=dtype, weight_decay=weight_decay),
            torch.optim.Adam([{"params": adam, "lr": adam_lr}, {"params": emb, "lr": 3 * adam_lr}],
                             betas=(0.9, 0.98), eps=1e-10, foreach=True)]
