"""Write golden/tale/README.md: what the model is, its curves, what drafting is worth, a sample. Needs `make`, not PyTorch.

    python measure.py --model ../../golden/tale --corpus .../tales.train.txt | tee measured.jsonl
    python card.py    --model ../../golden/tale --measured measured.jsonl

measured.jsonl may also have the lines of `measure.py --heldout` and of speed.py.
"""
import argparse
import csv
import json
import os
import subprocess

START = "Once upon a time there was"
LOSSES = ("main", "mtp1", "mtp2", "mtp3", "self2", "self3")


def table(head, rows):
    line = lambda cells: "| " + " | ".join(str(c) for c in cells) + " |\n"
    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(line(r) for r in rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--model", required=True)
    p.add_argument("--measured", required=True)
    p.add_argument("--chunks", type=int, default=12, help="as train.py --eval-sequences")
    p.add_argument("--verbatim", default=os.path.join(here, "../../build/verbatim"))
    a = p.parse_args()
    path = lambda name: os.path.join(a.model, name)
    run = lambda *w: subprocess.run([a.verbatim, *w], check=True, capture_output=True, text=True).stdout
    with open(path("config.json")) as f:
        c = json.load(f)
    with open(path("curves.csv")) as f:
        curves = list(csv.DictReader(f))
    with open(a.measured) as f:
        lines = [json.loads(line) for line in f]
    measured = [m for m in lines if "accepted_by_depth" in m]
    speeds = [m for m in lines if "speed_up" in m]
    heldout = [m for m in lines if "bits_per_byte" in m]
    size = json.loads(run("inspect", a.model, "--json"))
    story = run("generate", a.model, "--prompt", START, "-n", "160", "--temperature", "0").strip()
    last, tokens = curves[-1], int(curves[-1]["tokens"]) / 1e6
    dense, chunks = "first layer" if c["first_k_dense_replace"] == 1 else f"first {c['first_k_dense_replace']} layers", a.chunks
    runs = len({r.get("run", "1") for r in curves})
    keep = sorted({0, len(curves) - 1} | {len(curves) * i // 6 for i in range(6)})
    facts = [("vocabulary, hidden, layers", f"{c['vocab_size']}, {c['hidden_size']}, {c['num_hidden_layers']} "
              f"({c['first_k_dense_replace']} dense of {c['intermediate_size']}, the others MoE)"),
             ("experts", f"{c['n_routed_experts']} in {c['n_group']} groups ({c['topk_group']} kept), top-{c['num_experts_per_tok']}, "
              f"width {c['moe_intermediate_size']}, {c['n_shared_experts']} shared"),
             ("attention", f"{c['num_attention_heads']} heads, n {c['qk_nope_head_dim']}, r {c['qk_rope_head_dim']}, v {c['v_head_dim']}, "
              f"q_lora {c['q_lora_rank']}, kv_lora {c['kv_lora_rank']}; rope_theta {c['rope_theta']:.0f}; trained on 256 positions"),
             ("parameters", f"{size['parameters'] / 1e6:.2f} M, {size['active_parameters'] / 1e6:.2f} M touched per token; BF16, "
              f"{os.path.getsize(path('model.safetensors')) / 1e6:.1f} MB"),
             ("MTP", f"{c['num_nextn_predict_layers']} modules, which use the main model's embed_tokens and head: the file does not repeat them"),
             ("training", f"{tokens:.1f} million tokens, {float(last['minutes']):.0f} minutes on two cores shared with other work, "
              f"{last['step']} rounds of 2 x 4096 tokens; {'one run' if runs == 1 else f'{runs} runs'} (tools/train/README.md)"),
             *(("held-out tales", f"{m['bits_per_byte']:.3f} bits per byte, in windows of {m['context']} tokens") for m in heldout)]
    faster = "" if not speeds else f"""`tools/train/speed.py`: decoding with one thread, beside plain decoding in the same minutes, temperature 0.

{table(("instructions", "method", "K", "speed-up", "tokens per forward", "tokens per second"),
       [(m["isa"], m["draft"], m["draft_tokens"], m["speed_up"], m["tokens_per_forward"], m["tokens_per_second"]) for m in speeds])}
"""
    text = f"""# golden/tale: a very small DeepSeek-V3

MLA with q_lora, sigmoid gate with correction bias and groups, shared expert, {dense} dense, MTP modules, its own
byte-level BPE. Trained from scratch by tools/train on public-domain fairy tales and children's books (the corpus's README
lists them), to show every mechanism on real data. This file is written by tools/train/card.py.

{table(("", ""), facts)}
Commands, losses and the bigram start: tools/train/README.md.

## Curves (nats per token; all rows in curves.csv)
Held-out: {chunks} chunks of 256 tokens of tales.heldout.txt; self2, self3: module 0 fed with its own output. From
`--modules-from` of a run on the target is frozen and its modules alone are trained.

{table(("run", "step", "tokens", *(f"train {x}" for x in LOSSES[:4]), *(f"held-out {x}" for x in LOSSES)),
       [(r.get("run", 1), r["step"], r["tokens"], *(r["train_" + x] for x in LOSSES[:4]), *(r["heldout_" + x] for x in LOSSES)) for r in (curves[i] for i in keep)])}
## Drafting
`tools/train/measure.py`: the engine, 20 held-out prompts (prompts.jsonl), 128 tokens, K = 3, f32. Depth k: share of rounds in which
draft k stood. Drafts are the modules' best tokens at any temperature, so at temperature 1 a draft stands no more often than
the target draws its best guess. Repeated 8-grams: loops inflate acceptance, so the share belongs beside it; so does reciting, hence
the share of 8-grams that stand in tales.train.txt.
Prompts, by rule: from held-out documents 1, 3, 5, ... (then 0, 2, 4, ...) the second paragraph of at least 300 characters, cut
at the last space before character 240 (`sample.py --make-prompts 20`).

{table(("method", "temperature", "tokens per forward", "depth 1", "depth 2", "depth 3", "repeated 8-grams", "8-grams of the training text"),
       [(m["draft"], f"{m['temperature']:.0f}", m["tokens_per_forward"], *m["accepted_by_depth"], m["repeated_8grams"], m.get("copied_8grams", "")) for m in measured])}
{faster}## A sample
`verbatim generate golden/tale --prompt "{START}" -n 160`:

    """ + "\n    ".join(story.split("\n")) + f"""

## Talking to it
`chat_template.jinja` makes one tale of a conversation: what you write begins the tale or goes on with it, the model goes on from
there. It was not trained on conversations: it answers nothing, it tells.

    verbatim chat golden/tale -n 60

## Limits
One domain, old-fashioned prose with the attitudes of its time. Sentences begin and go on as tales do, and plots drift; beyond the 256
positions of its training it falters. The code that trains it is the repository's; the texts
are in the public domain.
"""
    with open(path("README.md.new"), "w") as f:
        f.write(text)
    os.replace(path("README.md.new"), path("README.md"))


if __name__ == "__main__":
    main()
