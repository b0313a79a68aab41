"""The DeepSeek-V3 architecture at the size of a children's book: MLA, MoE with noaux_tc routing, D MTP modules.

Parameter names are those of the Hugging Face layout, so export is a rename of nothing but the experts (stored stacked
here). Shapes: B sequences, T rows, N = B*T, H heads, n nope, r rope, v value, c kv latent, q query latent, E experts.
Parameters are f32; the operators (ops.py) run in the dtype of the activations (bf16 in training, f32 for sampling and checks),
the residual stream, the norms, the router and the losses in f32.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import ops
from ops import linear


@dataclass
class Config:
    vocab_size: int = 1024
    hidden_size: int = 192
    intermediate_size: int = 768
    moe_intermediate_size: int = 48
    num_hidden_layers: int = 16
    first_k_dense_replace: int = 14
    num_nextn_predict_layers: int = 3
    num_attention_heads: int = 3
    q_lora_rank: int = 64
    kv_lora_rank: int = 64
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 64
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 1.0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048


def matrix(out, inp, zero=False):
    """A weight that starts as zero (what writes into the residual) or uniform with variance 1/(3 in)."""
    w = torch.empty(out, inp)
    return nn.Parameter(w.zero_() if zero else w.uniform_(-1, 1).mul_(1 / math.sqrt(inp)))


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x, dtype=None):
        return ops.rms_norm(x, self.weight, self.eps, dtype or x.dtype)


def rope_table(cfg, T):
    """cos and sin [T, r/2], angles in double."""
    r = cfg.qk_rope_head_dim
    angle = torch.arange(T).double()[:, None] * cfg.rope_theta ** (-torch.arange(0, r, 2).double() / r)
    return angle.cos().float(), angle.sin().float()


class Attention(nn.Module):
    """Multi-head latent attention in its naive form: K and V expanded per head."""

    def __init__(self, cfg):
        super().__init__()
        d, H, n, r, v = (cfg.hidden_size, cfg.num_attention_heads, cfg.qk_nope_head_dim, cfg.qk_rope_head_dim,
                         cfg.v_head_dim)
        self.cfg = cfg
        self.q_a_proj = matrix(cfg.q_lora_rank, d)
        self.q_a_layernorm = RMSNorm(cfg.q_lora_rank, 1e-6)
        self.q_b_proj = matrix(H * (n + r), cfg.q_lora_rank)
        self.kv_a_proj_with_mqa = matrix(cfg.kv_lora_rank + r, d)
        self.kv_a_layernorm = RMSNorm(cfg.kv_lora_rank, 1e-6)
        self.kv_b_proj = matrix(H * (n + v), cfg.kv_lora_rank)
        self.o_proj = matrix(d, H * v, zero=True)

    def forward(self, x, rope, past=(), mask=None):
        """x [B,T,d] -> [B,T,d] and this pass's (k, v). `past` holds (k, v) pairs of earlier passes, joined before
        ours on the key axis; without past the mask is causal, with past it is `mask` (None: everything is seen)."""
        cfg = self.cfg
        q = linear(self.q_a_layernorm(linear(x, self.q_a_proj)), self.q_b_proj)
        latent, k_rope = linear(x, self.kv_a_proj_with_mqa).split((cfg.kv_lora_rank, cfg.qk_rope_head_dim), -1)
        kv = linear(self.kv_a_layernorm(latent), self.kv_b_proj)
        query, key, value = ops.heads(q, kv, k_rope, rope, cfg.num_attention_heads, cfg.qk_nope_head_dim)
        own = (key, value)
        if past:
            key = torch.cat([k for k, _ in past] + [key], 2)
            value = torch.cat([v for _, v in past] + [value], 2)
        return linear(ops.attend(query, key, value, mask), self.o_proj), own


class MLP(nn.Module):
    def __init__(self, d, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = matrix(inner, d), matrix(inner, d), matrix(d, inner, zero=True)

    def forward(self, x):
        return linear(ops.swiglu(linear(x, self.gate_proj), linear(x, self.up_proj)), self.down_proj)


class MoE(nn.Module):
    """Sigmoid scores; the bias elects (groups first), the unbiased scores weigh; one shared expert."""

    def __init__(self, cfg):
        super().__init__()
        d, E, i = cfg.hidden_size, cfg.n_routed_experts, cfg.moe_intermediate_size
        self.cfg = cfg
        self.gate = matrix(E, d)
        self.gate_proj = nn.Parameter(torch.stack([matrix(i, d) for _ in range(E)]).detach())
        self.up_proj = nn.Parameter(torch.stack([matrix(i, d) for _ in range(E)]).detach())
        self.down_proj = nn.Parameter(torch.zeros(E, d, i))
        self.shared_experts = MLP(d, i * cfg.n_shared_experts)
        self.register_buffer("e_score_correction_bias", torch.zeros(E))
        self.register_buffer("load", torch.zeros(E), persistent=False)       # tokens per expert since the last balance()

    def forward(self, x):
        """Every expert is computed on every row and weighed, with zero where it was not chosen: at this size two large
        products are several times faster than many small ones, and the value is the same."""
        flat = x.reshape(-1, x.shape[-1])
        g, load = ops.route(F.linear(flat.float(), self.gate), self.e_score_correction_bias, self.cfg)
        if self.training:
            self.load += load
        every = lambda w: w.view(-1, w.shape[-1])
        hid = ops.swiglu(linear(flat, every(self.gate_proj)), linear(flat, every(self.up_proj)), g)
        return linear(hid, self.down_proj).view_as(x) + self.shared_experts(x)

    @torch.no_grad()
    def balance(self, speed):
        """The auxiliary-loss-free rule of the V3 report: overloaded experts lose `speed`, the others gain it."""
        self.e_score_correction_bias += speed * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class DecoderLayer(nn.Module):
    def __init__(self, cfg, moe):
        super().__init__()
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MoE(cfg) if moe else MLP(cfg.hidden_size, cfg.intermediate_size)

    def forward(self, x, rope, dtype, past=(), mask=None):
        a, kv = self.self_attn(self.input_layernorm(x, dtype), rope, past, mask)
        x = x + a
        return x + self.mlp(self.post_attention_layernorm(x, dtype)), kv


class MTPModule(nn.Module):
    """x = eh_proj [enorm(Emb(tok[i+k+1])) ; hnorm(h_i)]; y = decoder layer(x); g = shared_head.norm(y). Embedding and
    head are the main model's."""

    def __init__(self, cfg):
        super().__init__()
        d = cfg.hidden_size
        self.enorm, self.hnorm = RMSNorm(d, cfg.rms_norm_eps), RMSNorm(d, cfg.rms_norm_eps)
        self.eh_proj = matrix(d, 2 * d)
        self.layer = DecoderLayer(cfg, moe=True)
        self.norm = RMSNorm(d, cfg.rms_norm_eps)                             # exported as shared_head.norm

    def forward(self, emb, h, rope, dtype, past=(), mask=None):
        x = linear(torch.cat((self.enorm(emb, dtype), self.hnorm(h, dtype)), -1), self.eh_proj).float()
        y, kv = self.layer(x, rope, dtype, past, mask)
        return self.norm(y, dtype), kv


class Model(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Parameter(torch.randn(cfg.vocab_size, cfg.hidden_size))
        self.layers = nn.ModuleList(DecoderLayer(cfg, L >= cfg.first_k_dense_replace)
                                    for L in range(cfg.num_hidden_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.lm_head = nn.Parameter(torch.randn(cfg.vocab_size, cfg.hidden_size) * 0.02)
        self.mtp = nn.ModuleList(MTPModule(cfg) for _ in range(cfg.num_nextn_predict_layers))
        self.left_out = range(0)

    def leave_out(self, dense):
        """Run only the first `dense` dense layers and those with experts (None: all). The others write nothing into the
        residual stream until they are trained, so the model computes the same when they join."""
        self.left_out = range(0) if dense is None else range(dense, self.cfg.first_k_dense_replace)

    @torch.no_grad()
    def start_from_bigram(self, fit):
        """Embedding and head as bigram.py fitted them; the MTP modules start as the same bigram model: their eh_proj
        passes the embedding through (and a little of the hidden state)."""
        self.embed_tokens.copy_(fit["embed_tokens"])
        self.lm_head.copy_(fit["lm_head"])
        d = self.cfg.hidden_size
        for module in self.mtp:
            module.eh_proj.mul_(0.1)
            module.eh_proj[:, :d] += torch.eye(d)

    @torch.no_grad()
    def spread_norms(self, sigma, seed):
        """The weights of model.norm and shared_head.norm times lognormal factors, the head's columns and hnorm divided by them:
        the same logits, and the hidden states before and after a norm are then as different as in large models."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        factor = torch.exp(sigma * torch.randn(self.cfg.hidden_size, generator=generator, device="cpu")).to(self.norm.weight.device)
        factor /= factor.square().mean().sqrt()
        self.norm.weight.mul_(factor)
        self.lm_head.div_(factor)
        for module in self.mtp:
            module.norm.weight.mul_(factor)
            module.hnorm.weight.div_(factor)

    def embed(self, tokens):
        return F.embedding(tokens, self.embed_tokens)

    def hidden(self, tokens, rope, dtype, past=None):
        """tokens [B,T] -> target hidden after model.norm [B,T,d]. `past`, a list of one (k, v) or None per layer, is
        the cache of a sampler: it is joined on the key axis and updated (one new row at a time, so no mask)."""
        x = self.embed(tokens)
        for L, layer in enumerate(self.layers):
            if L in self.left_out:
                continue
            before = [past[L]] if past and past[L] else []
            x, kv = layer(x, rope, dtype, before)
            if past is not None:
                past[L] = tuple(torch.cat(p, 2) for p in zip(before[0], kv)) if before else kv
        return self.norm(x, dtype)

    def logits(self, h):
        return linear(h, self.lm_head).float()
