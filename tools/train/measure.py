"""Acceptance per depth and repeated 8-grams with the engine itself; needs `make`, not PyTorch.

    python measure.py --model ../../golden/tale
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
    p.add_argument("-n", type=int, default=128)
    p.add_argument("-k", type=int, default=3)
    p.add_argument("--threads", type=int, default=1)
    a = p.parse_args()
    with open(os.path.join(a.model, "prompts.jsonl")) as f:
        prompts = [json.loads(line)["prompt"] for line in f]
    for temperature in ("0", "1"):
        for method in ("mtp-vanilla", "mtp-eagle"):
            forwards = emitted = grams = repeated = 0
            right, text = [0] * a.k, []
            for seed, prompt in enumerate(prompts):
                out = json.loads(subprocess.run(
                    [a.verbatim, "generate", a.model, "--prompt", prompt, "-n", str(a.n), "--draft", method,
                     "--draft-tokens", str(a.k), "--temperature", temperature, "--seed", str(seed),
                     "--threads", str(a.threads), "--json"], check=True, capture_output=True).stdout)
                forwards += out["stats"]["forwards"]
                emitted += len(out["tokens"]) - 1
                right = [x + y for x, y in zip(right, out["stats"]["accepted_by_depth"])]
                seen = [tuple(out["tokens"][i:i + 8]) for i in range(len(out["tokens"]) - 7)]
                grams += len(seen)
                repeated += len(seen) - len(set(seen))
            print(json.dumps({"draft": method, "temperature": float(temperature),
                              "tokens_per_forward": round(emitted / forwards, 3),
                              "accepted_by_depth": [round(r / forwards, 3) for r in right],
                              "repeated_8grams": round(repeated / max(grams, 1), 3)}), flush=True)


if __name__ == "__main__":
    main()
