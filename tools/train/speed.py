"""How much faster drafting is than plain decoding, on the prompts of a model, at temperature 0; needs `make`, not PyTorch.

    python speed.py --model ../../golden/tale

The runs of one prompt follow each other: every method and every number of drafts with every instruction set, plain decoding
among them, so that other work on the machine slows them alike. Each is run --rounds times, and its fastest run counts. The
speed-up is the ratio of the sums of these times over all prompts. Prints JSON lines, and the best of each instruction set.
"""
import argparse
import json
import os
import subprocess


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--model", required=True)
    p.add_argument("--verbatim", default=os.path.join(here, "../../build/verbatim"))
    p.add_argument("--isa", default="avx512,avx2")
    p.add_argument("--drafts", default="mtp-eagle:1,mtp-eagle:2,mtp-eagle:3,mtp-vanilla:3", help="method:K, ...")
    p.add_argument("-n", type=int, default=128)
    p.add_argument("--prompts", type=int, default=20)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    with open(os.path.join(a.model, "prompts.jsonl")) as f:
        prompts = [json.loads(line)["prompt"] for line in f][:a.prompts]
    drafts = [("none", 0)] + [(m, int(k)) for m, k in (d.split(":") for d in a.drafts.split(","))]
    sums = {(isa, *d): [0.0, 0, 0] for isa in a.isa.split(",") for d in drafts}          # seconds, tokens, forward passes
    for prompt in prompts:
        runs, texts = {way: [] for way in sums}, set()
        for _ in range(a.rounds):
            for way in sums:
                isa, method, k = way
                out = json.loads(subprocess.run(
                    [a.verbatim, "generate", a.model, "--prompt", prompt, "-n", str(a.n), "--threads", "1", "--isa", isa, "--json",
                     *(["--draft", method, "--draft-tokens", str(k)] if k else [])], check=True, capture_output=True).stdout)
                tokens = len(out["tokens"]) - 1
                runs[way].append((tokens / out["stats"]["decode_tokens_per_second"], tokens, out["stats"]["forwards"]))
                texts.add(tuple(out["tokens"]))
        assert len(texts) == 1, "drafting changed the text"
        for way, seen in runs.items():
            sums[way] = [x + y for x, y in zip(sums[way], min(seen))]
    for isa in a.isa.split(","):
        rows = [{"isa": isa, "draft": m, "draft_tokens": k, "speed_up": round(sums[isa, "none", 0][0] / sums[isa, m, k][0], 3),
                 "tokens_per_second": round(sums[isa, m, k][1] / sums[isa, m, k][0]),
                 "tokens_per_forward": round(sums[isa, m, k][1] / sums[isa, m, k][2], 3)} for m, k in drafts]
        for row in rows:
            print(json.dumps(row))
        print(json.dumps({"best": max(rows[1:], key=lambda r: r["speed_up"])}))


if __name__ == "__main__":
    main()
