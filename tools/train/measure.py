"""Acceptance per depth, repeated 8-grams and, with --corpus, those that stand in the training text; with --heldout, bits per
byte of a text. With the engine itself; needs `make`, not PyTorch.

    python measure.py --model ../../golden/tale
"""
import argparse
import json
import math
import os
import subprocess
import tempfile

SEPARATOR = "<|endoftext|>"                       # between the corpus's documents, as in tokenizer.py


def bits_per_byte(verbatim, model, path, context, threads):
    """The documents of a text, one after the other, in windows of `context` tokens; a window's first token is not predicted, and
    its bytes count with the share of tokens that are."""
    with open(path, encoding="utf-8") as f:
        text = "\n\n".join(d.strip("\n") for d in f.read().split(SEPARATOR) if d.strip())
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as f:
        f.write(text)
        f.flush()
        out = json.loads(subprocess.run([verbatim, "eval", model, "--file", f.name, "--context", str(context), "--threads",
                                         str(threads), "--json"], check=True, capture_output=True).stdout)
    return {"bits_per_byte": round(out["main_loss"] * out["tokens"] / len(text.encode()) / math.log(2), 4),
            "context": context, "tokens": out["tokens"], "mtp_loss_by_depth": out["mtp_loss_by_depth"],
            "agreement_by_depth": out["agreement_by_depth"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--model", required=True)
    p.add_argument("--verbatim", default=os.path.join(here, "../../build/verbatim"))
    p.add_argument("-n", type=int, default=128)
    p.add_argument("-k", type=int, default=3)
    p.add_argument("--head", action="append", default=[], metavar="METHOD=DIR", help="also measure a method with the draft heads in a folder")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--corpus", nargs="+", help="the training texts: tales.train.txt, ...")
    p.add_argument("--heldout", help="a text that was not trained on: tales.heldout.txt")
    p.add_argument("--context", type=int, default=256, help="tokens of a window of this text")
    a = p.parse_args()
    with open(os.path.join(a.model, "prompts.jsonl")) as f:
        prompts = [json.loads(line)["prompt"] for line in f]
    results, grams_of = [], []
    for temperature in ("0", "1"):
        for method, _, head in (way.partition("=") for way in ["mtp-vanilla", "mtp-eagle"] + a.head):
            forwards = emitted = repeated = 0
            right, grams = [0] * a.k, []
            for seed, prompt in enumerate(prompts):
                out = json.loads(subprocess.run(
                    [a.verbatim, "generate", a.model, "--prompt", prompt, "-n", str(a.n), "--draft", method,
                     "--draft-tokens", str(a.k), "--temperature", temperature, "--seed", str(seed),
                     "--threads", str(a.threads), "--json"] + (["--draft-model", head] if head else []), check=True, capture_output=True).stdout)
                forwards += out["stats"]["forwards"]
                emitted += len(out["tokens"]) - 1
                right = [x + y for x, y in zip(right, out["stats"]["accepted_by_depth"])]
                seen = [tuple(out["tokens"][i:i + 8]) for i in range(len(out["tokens"]) - 7)]
                grams += seen
                repeated += len(seen) - len(set(seen))
            grams_of.append(grams)
            results.append({"draft": method, "temperature": float(temperature),
                            "tokens_per_forward": round(emitted / forwards, 3),
                            "accepted_by_depth": [round(r / forwards, 3) for r in right],
                            "repeated_8grams": round(repeated / max(len(grams), 1), 3)})
    if a.corpus:
        wanted, found = {g for grams in grams_of for g in grams}, set()
        for text in a.corpus:
            ids = json.loads(subprocess.run([a.verbatim, "tokenize", a.model, "--file", text, "--json"], check=True,
                                            capture_output=True).stdout)
            found |= {g for g in zip(*(ids[i:] for i in range(8))) if g in wanted}
        for result, grams in zip(results, grams_of):
            result["copied_8grams"] = round(sum(g in found for g in grams) / max(len(grams), 1), 3)
    if a.heldout:
        results.append(bits_per_byte(a.verbatim, a.model, a.heldout, a.context, a.threads))
    for result in results:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
