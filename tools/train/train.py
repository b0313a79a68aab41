"""Train the model, or go on from WORKDIR/checkpoint.pt if it is there.

    python tokenizer.py --work WORKDIR && python bigram.py --work WORKDIR && python train.py --work WORKDIR --plan tales,tales

Each of --processes trains on its own batches and every --sync-every steps all take the mean of their parameters (local
SGD): on a busy CPU two processes of one thread that seldom meet go several times further than one of two threads.

The learning rate follows the share of the steps that are done, so an interrupted run, or a run on another machine, has the same
schedule. Every --eval-minutes a row is added to WORKDIR/curves.csv.
"""
import argparse
import csv
import math
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import torch
import torch.distributed as dist

import ops
from losses import forward_losses, unlikelihood
from model import Config, Model, MoE, rope_table
from optim import optimizers
from passes import Passes
from sample import load as load_exported
from tokenizer import BOS_ID, EOS_ID

LOSSES = ("main", "mtp1", "mtp2", "mtp3", "self2", "self3")
FIELDS = ["step", "minutes", "tokens", "lr"] + [f"{s}_{x}" for s in ("train", "heldout") for x in LOSSES]


def heldout_chunks(path, T, D, count):
    ids = np.load(path).astype(np.int64)
    at = np.linspace(0, len(ids) - T - 1 - D, count).astype(int)
    return torch.from_numpy(np.stack([ids[i:i + T + 1 + D] for i in at]))


def bytes_of(tokenizer, ids):
    """How many bytes of text ids encode: in the byte alphabet a token has one character per byte. Special tokens have none."""
    length = np.array([len(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())])
    length[[BOS_ID, EOS_ID]] = 0
    return int(length[ids].sum())


def forget_after(path, step):
    """Remove the rows of curves.csv that are newer than the checkpoint: they will be written again."""
    if os.path.exists(path):
        with open(path, newline="") as f:
            rows = [r for r in csv.DictReader(f) if int(r["step"]) <= step]
        with open(path, "w", newline="") as f:
            w = csv.DictWriter(f, FIELDS)
            w.writeheader()
            w.writerows(rows)


@torch.no_grad()
def evaluate(model, chunks, rope, dtype, batch=16):
    """Mean losses over chunks; the self-fed passes on every sequence, rows 0..255."""
    model.eval()
    total = {}
    for lo in range(0, len(chunks), batch):
        plain = forward_losses(model, chunks[lo:lo + batch].to(rope[0].device), rope, dtype, 0.0, None, (batch, 256))[3]
        for k, v in plain.items():
            total[k] = total.get(k, 0.0) + v.item() * len(chunks[lo:lo + batch]) / len(chunks)
    model.train()
    return total


def rate(used, step, warmup, flat):
    """Multiplier of the learning rates: warm-up, constant until `flat` of the budget, then linear to 0.02."""
    down = 1.0 if used < flat else max(0.02, 1 - 0.98 * (used - flat) / (1 - flat))
    return min(1.0, (step + 1) / warmup) * down


class Peers:
    """The processes of --processes, or one alone. The first is the chief: its clock, files and losses count."""

    def __init__(self):
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        if self.size > 1:
            dist.init_process_group("gloo")
        self.rank = dist.get_rank() if self.size > 1 else 0

    def average(self, model):
        if self.size > 1:
            tensors = list(model.state_dict().values())
            flat = torch.cat([t.flatten() for t in tensors])
            dist.all_reduce(flat)
            for t, part in zip(tensors, flat.div_(self.size).split([t.numel() for t in tensors])):
                t.copy_(part.view_as(t))

    def from_chief(self, value):
        if self.size == 1:
            return value
        t = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(t, 0)
        return t.item()


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--work", required=True, help="where tokenizer.py wrote; checkpoint.pt and curves.csv go here")
    p.add_argument("--start", help="an exported model to go on from, where WORKDIR has no checkpoint; its optimizer starts anew")
    p.add_argument("--plan", required=True, help="the texts of each pass, for example tales+children-novels,tales: no document is read"
                                                 " more often than it stands here")
    p.add_argument("--steps", type=int, default=0, help="at most, of those that the plan takes")
    p.add_argument("--passes-before", type=int, default=0, help="how many passes the runs before this one made")
    p.add_argument("--plan-from", type=int, default=0, help="leave out the chunks of the plan's first steps, which an earlier run read")
    p.add_argument("--own", action="store_true", help="every second step reads WORKDIR/own.npy (own.py), if only the MTP modules are"
                                                      " trained, or for --unlikelihood")
    p.add_argument("--unlikelihood", type=float, default=0.0, help="with --own: factor of the loss of repeating itself")
    p.add_argument("--repeat-length", type=int, default=6, help="tokens of a repetition that --unlikelihood counts")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--threads", type=int, default=1, help="per process")
    p.add_argument("--batch-tokens", type=int, default=4096, help="per step and process")
    p.add_argument("--micro-tokens", type=int, default=4096, help="of them computed at a time: fewer take less memory")
    p.add_argument("--sync-every", type=int, default=8, help="steps between two averagings of the processes' parameters")
    p.add_argument("--rows", type=int, default=256, help="per sequence")
    p.add_argument("--shallow-until", type=float, default=0.0, help="until this share only --shallow-layers dense layers, and those"
                                                                    " with experts, run: a step takes a fraction of the time")
    p.add_argument("--shallow-layers", type=int, default=4)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--adam-lr", type=float, default=0.002)
    p.add_argument("--weight-decay", type=float, default=0.05)
    p.add_argument("--flat", type=float, default=0.35)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--mtp-factor", type=float, default=0.3)
    p.add_argument("--mtp-every", type=int, default=3, help="the MTP modules run on every n-th step, on half of the sequences")
    p.add_argument("--self-fed-factor", type=float, default=0.1)
    p.add_argument("--self-fed", type=float, default=0.25, help="share of the rows on which module 0 is fed with itself")
    p.add_argument("--modules-from", type=float, default=0.82, help="from this share on only the MTP modules are trained")
    p.add_argument("--distill", type=float, default=0.5, help="weight of the target's distribution in the MTP targets")
    p.add_argument("--distill-from", type=float, default=0.5)
    p.add_argument("--balance", type=float, default=0.002)
    p.add_argument("--eval-minutes", type=float, default=5)
    p.add_argument("--eval-sequences", type=int, default=12)
    p.add_argument("--save-minutes", type=float, default=4)
    p.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16",
                   help="float32 is faster on a CPU without instructions for BF16")
    p.add_argument("--device", default="cpu", help="cuda: on a GPU, with --processes 1 and --batch-tokens 8192")
    p.add_argument("--plain", action="store_true", help="no fused operators (fused.c)")
    p.add_argument("--stop-after", type=int, default=0, help="leave after this many steps (for timing)")
    p.add_argument("--seed", type=int, default=1)
    return p.parse_args()


def main():
    a = arguments()
    if a.processes > 1 and "RANK" not in os.environ:
        start_processes(a.processes)
    torch.set_num_threads(a.threads)
    if a.device != "cpu":
        torch.set_default_device(a.device)
    torch.manual_seed(a.seed)
    path = lambda name: os.path.join(a.work, name)
    dtype = getattr(torch, a.dtype)
    if not a.plain and a.dtype == "bfloat16" and a.device == "cpu":
        ops.use_fused()
    peers = Peers()

    import tokenizers
    tok = tokenizers.Tokenizer.from_file(path("tokenizer.json"))
    newline_ids = [i for t, i in tok.get_vocab().items() if t.endswith("\u010a\u010a")]   # \n\n in the byte alphabet
    cfg = Config(vocab_size=tok.get_vocab_size())
    model = Model(cfg)
    D = cfg.num_nextn_predict_layers
    opts = optimizers(model, a.lr, a.adam_lr, a.weight_decay, dtype)
    for o in opts:
        for g in o.param_groups:
            g["base"] = g["lr"]
    if a.start:
        model.load_state_dict(load_exported(a.start).state_dict())
    elif os.path.exists(path("bigram.pt")):
        model.start_from_bigram(torch.load(path("bigram.pt")))
    rope = rope_table(cfg, cfg.max_position_embeddings)
    step, tokens, spent = 0, 0, 0.0
    if os.path.exists(path("checkpoint.pt")):
        state = torch.load(path("checkpoint.pt"), map_location="cpu")
        if state["config"] != asdict(cfg):
            raise SystemExit(f"{path('checkpoint.pt')} has another shape: {state['config']}")
        model.load_state_dict(state["model"])
        for o, s in zip(opts, state["optimizers"]):
            o.load_state_dict(s)
        step, tokens, spent = state["step"], state["tokens"], state["seconds"]
        if not peers.rank:
            forget_after(path("curves.csv"), step)
            print(f"resumed at step {step}, {spent / 60:.1f} minutes", flush=True)
    heldout = heldout_chunks(path("tales.heldout.npy"), 256, D, a.eval_sequences)
    bits = heldout[:, 1:257].numel() / bytes_of(tok, heldout[:, 1:257].numpy()) / math.log(2)    # per byte, of nats per token
    T, B = a.rows, a.micro_tokens // a.rows
    plan = Passes(a.plan, path, T, 1 + D, newline_ids, a.seed, a.passes_before)
    whole = len(plan) // (a.batch_tokens // T * peers.size) - a.plan_from
    whole -= whole % a.sync_every
    if whole <= 0:
        raise SystemExit(f"--plan-from: wanted less than the {whole + a.plan_from} steps of --plan, found {a.plan_from}")
    steps = min(a.steps or whole, whole)
    if not peers.rank:
        print(f"{steps} steps: {plan}", flush=True)
    own = np.load(path("own.npy")).astype(np.int64) if a.own else None
    begin = time.time() - spent
    since, per_byte = (time.time(), tokens), math.nan
    next_eval, next_save = spent + 60 * a.eval_minutes, spent + 60 * a.save_minutes
    sums, count = {}, 0
    while True:
        spent, meet = time.time() - begin, step % a.sync_every == 0
        if meet:
            peers.average(model)
            ops.weights_changed()
            spent = peers.from_chief(spent)
        used = step / steps
        done = meet and (used >= 1 or (a.stop_after and step >= a.stop_after))
        if meet and (done or spent >= next_eval) and count and not peers.rank:
            row = {"step": step, "minutes": round(spent / 60, 2), "tokens": tokens, "lr": round(opts[0].param_groups[0]["lr"], 6)}
            row |= {f"train_{k}": round(mean, 4) for k, (_, mean) in sums.items()}
            row |= {f"heldout_{k}": round(v, 4) for k, v in evaluate(model, heldout, rope, dtype).items()}
            per_byte = row["heldout_main"] * bits
            new = not os.path.exists(path("curves.csv"))
            with open(path("curves.csv"), "a", newline="") as f:
                w = csv.DictWriter(f, FIELDS)
                if new:
                    w.writeheader()
                w.writerow(row)
            print(" ".join(f"{k}={v}" for k, v in row.items()), flush=True)
            sums, count, next_eval = {}, 0, spent + 60 * a.eval_minutes
        if meet and (done or spent >= next_save) and not peers.rank:
            state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in opts], "config": asdict(cfg),
                     "step": step, "tokens": tokens, "seconds": time.time() - begin, "arguments": vars(a)}
            torch.save(state, path("checkpoint.tmp"))
            os.replace(path("checkpoint.tmp"), path("checkpoint.pt"))
            next_save = spent + 60 * a.save_minutes
        if done:
            return

        modules_only = used >= a.modules_from
        main_used = 1.0 if modules_only else used / a.modules_from
        model.leave_out(a.shallow_layers if main_used < a.shallow_until else None)
        first = ((a.plan_from + step) * peers.size + peers.rank) * (a.batch_tokens // T)
        of_own = own is not None and step % 2 and (modules_only or a.unlikelihood > 0)
        if modules_only:
            m = 0.5 * max(0.04, (1 - used) / (1 - a.modules_from))
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.startswith("mtp."))
        else:
            m = rate(main_used, step, a.warmup, a.flat)
        for o in opts:
            for g in o.param_groups:
                g["lr"] = g["base"] * m
        late, drafting = main_used >= a.distill_from, modules_only or step % a.mtp_every == 0
        fed_b = max(1, round(a.self_fed * B)) if a.self_fed and late and drafting else 0
        for micro in range(a.batch_tokens // (B * T)):
            if of_own:
                batch = torch.from_numpy(own[np.random.default_rng([a.seed, first, micro]).choice(len(own), B)]).to(a.device)
            else:
                batch = plan.batch(first + micro * B, B).to(a.device)
            if of_own and not modules_only:
                loss, share = unlikelihood(model, batch, rope, dtype, a.repeat_length)
                (a.unlikelihood * loss * (B * T / a.batch_tokens)).backward()
                plain = {"unlikelihood": loss.detach(), "repeated": share}
                continue
            main_loss, depth, fed, plain = forward_losses(
                model, batch, rope, dtype, a.distill if late and drafting else 0.0,
                0 if not drafting else B if modules_only else max(1, B // 2), (fed_b, T if fed_b else 0))
            loss = main_loss
            if depth:
                loss = loss + a.mtp_factor * sum(depth) / D
            if fed:
                loss = loss + a.self_fed_factor * sum(fed) / len(fed)
            (loss * (B * T / a.batch_tokens)).backward()
            for k, v in plain.items():
                n, mean = sums.get(k, (0, 0.0))
                sums[k] = (n + 1, mean + (v.item() - mean) / (n + 1))
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        ops.weights_changed()
        for moe in (model.mtp if modules_only else model).modules():
            if isinstance(moe, MoE):
                moe.balance(a.balance * max(m, 0.1))
        if not torch.isfinite(loss):
            raise SystemExit(f"the loss is not finite at step {step}")
        count += 1
        step += 1
        tokens += a.batch_tokens * peers.size
        if not peers.rank and (step % 20 == 0 or a.stop_after):
            speed, since = (tokens - since[1]) / (time.time() - since[0]), (time.time(), tokens)
            left = (steps / step - 1) * tokens / speed
            print(f"step {step} of {steps}, {spent / 60:.1f} min, {tokens / 1e6:.2f} M tokens, {speed:.0f} tokens/s, "
                  f"ends in {left / 3600:.1f} h, held-out {per_byte:.3f} bits per byte, loss {loss.item():.3f} "
                  + " ".join(f"{k} {v.item():.3f}" for k, v in plain.items()), flush=True)


def start_processes(count):
    """This program again, once per process; torchrun would do it, but its agent polls and takes a third of a core."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    rendezvous = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = [subprocess.Popen([sys.executable, *sys.argv], env=os.environ | rendezvous | {"RANK": str(rank)})
                for rank in range(count)]
    raise SystemExit(max(child.wait() for child in children))


if __name__ == "__main__":
    main()
