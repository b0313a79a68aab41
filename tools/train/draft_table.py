"""What each way to draft gives on each kind of text: tokens per forward pass, how often a draft of each depth stands, and the speed
beside plain decoding, as Markdown. Needs `make`, NumPy and PYTHONPATH=tools/python.

    python draft_table.py --model ../../golden/tale tales=tales.heldout.txt code=HumanEval.jsonl

A text: --prompts places, evenly spread; from each the next paragraph of at least 240 characters, cut at the last space before
character 240. JSON lines: key "prompt", cut to --longest tokens. The runs of a prompt follow each other, plain decoding among them,
so that speeds compare; the speed is the ratio of all decoding seconds.
"""
import argparse
import json
import os

import verbatim

TREE = {"draft_topk": 4, "draft_nodes": 8}
WAYS = [  # name, temperature 0 and 1 or 1 alone, options
    ("none", False, {"draft": "none"}),
    ("mtp-vanilla, K = 1", False, {"draft": "mtp-vanilla", "draft_tokens": 1}),
    ("mtp-vanilla, K = 3", False, {"draft": "mtp-vanilla", "draft_tokens": 3}),
    ("mtp-eagle, K = 1", False, {"draft": "mtp-eagle", "draft_tokens": 1}),
    ("mtp-eagle, K = 3", False, {"draft": "mtp-eagle", "draft_tokens": 3}),
    ("mtp-eagle, K auto", False, {"draft": "mtp-eagle", "draft_auto": True}),
    ("mtp-eagle, K = 3, tree of 8, topk 4", False, {"draft": "mtp-eagle", "draft_tokens": 3, **TREE}),
    ("eagle-reroll, K = 3", False, {"draft": "eagle-reroll", "draft_tokens": 3}),
    ("eagle-keep, K = 3", False, {"draft": "eagle-keep", "draft_tokens": 3}),
    ("ngram, K = 3", False, {"draft": "ngram", "draft_tokens": 3}),
    ("draft-model (its own Q4_0), K = 3", False, {"draft": "draft-model", "draft_tokens": 3}),
    ("mtp-vanilla, K = 3, rejection", True, {"draft": "mtp-vanilla", "draft_tokens": 3, "acceptance": "rejection"}),
    ("mtp-eagle, K = 3, rejection", True, {"draft": "mtp-eagle", "draft_tokens": 3, "acceptance": "rejection"}),
]
DEPTHS = 3


def prompts_of(path, count, longest, tokenizer):
    if path.endswith(".jsonl"):
        with open(path) as f:
            lines = [json.loads(line)["prompt"] for line in f]
        return [tokenizer.encode(lines[i * len(lines) // count])[:longest] for i in range(count)]
    with open(path) as f:
        text = f.read()
    prompts = []
    for i in range(count):
        paragraphs = (p.replace("\n", " ").strip() for p in text[i * len(text) // count:].split("\n\n")[1:])
        paragraph = next(p for p in paragraphs if len(p) >= 240)
        prompts.append(tokenizer.encode(paragraph[:paragraph.rindex(" ", 0, 240)]))
    return prompts


class Sum:
    def __init__(self):
        self.forwards = self.tokens = 0
        self.seconds = 0.0
        self.stood = [0] * DEPTHS
        self.made = [0] * DEPTHS

    def add(self, result):
        stats = result.stats
        self.forwards += stats["forwards"]
        self.tokens += len(result.tokens) - 1
        self.seconds += stats["decode_seconds"]
        self.stood = [a + b for a, b in zip(self.stood, stats["accepted_by_depth"])]
        self.made = [a + b for a, b in zip(self.made, stats["drafted_by_depth"])]

    def cell(self, plain):
        text = f"{self.tokens / self.forwards:.2f}"
        depths = [f"{100 * s / self.forwards:.0f}" for s, m in zip(self.stood, self.made) if m]
        if depths:
            text += f" ({', '.join(depths)})"
        if self is plain:
            return f"{self.tokens / self.seconds:.0f} tokens/s"
        return text + f" {plain.seconds / plain.tokens * self.tokens / self.seconds:.2f}x"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("texts", nargs="+", metavar="NAME=FILE")
    p.add_argument("--model", required=True)
    p.add_argument("--prompts", type=int, default=10)
    p.add_argument("--longest", type=int, default=96)
    p.add_argument("-n", type=int, default=96)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--head", action="append", default=[], metavar="METHOD=DIR", help="measure a method with the draft heads in a folder, too")
    p.add_argument("-k", type=int, default=DEPTHS, help="drafts of the methods of --head")
    p.add_argument("--heads-alone", action="store_true", help="measure none of the other methods")
    a = p.parse_args()
    model, small = verbatim.Model(a.model), verbatim.Model(a.model, precision="q4")
    tokenizer = verbatim.Tokenizer(a.model)
    texts = {name: prompts_of(os.path.expanduser(path), a.prompts, a.longest, tokenizer) for name, path in (t.split("=", 1) for t in a.texts)}
    heads = [(f"{method}, K = {a.k}", False, {"draft": method, "draft_tokens": a.k, "draft_head": path})
             for method, path in (h.split("=", 1) for h in a.head)]
    for temperature in (0.0, 1.0):
        ways = [w for w in (WAYS[:1] if a.heads_alone else WAYS) + heads if temperature or not w[1]]
        sums = {(way, name): Sum() for way, _, _ in ways for name in texts}
        for name, prompts in texts.items():
            for seed, prompt in enumerate(prompts):
                tokens = None
                for way, _, options in ways:
                    if options["draft"] == "draft-model":
                        options = {**options, "draft_model": small}
                    result = model.generate(prompt, a.n, ignore_eos=True, temperature=temperature, seed=seed, threads=a.threads, **options)
                    sums[way, name].add(result)
                    if "acceptance" not in options:  # every other way says the same
                        tokens = tokens or result.tokens
                        assert result.tokens == tokens, (way, name, seed)
        print(f"\nTemperature {temperature:g}:\n\n| | {' | '.join(texts)} |\n|---|{'---|' * len(texts)}")
        for way, _, _ in ways:
            print(f"| {way} | {' | '.join(sums[way, name].cell(sums['none', name]) for name in texts)} |")


if __name__ == "__main__":
    main()
