"""Compare our logits on a short text with those of transformers' DeepseekV3ForCausalLM (f32, MTP layers ignored).

    python check.py --model ../../golden/tale
"""
import argparse

import torch
from tokenizers import Tokenizer

from model import rope_table
from sample import load
from tokenizer import BOS_ID


@torch.no_grad()
def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--text", default="Once upon a time there was a king who had three sons, and the youngest was called"
                                     " Simpleton.\n\n\"Father,\" said he, \"let me go and cut wood.\"")
    a = p.parse_args()
    from transformers import DeepseekV3ForCausalLM
    ids = [BOS_ID] + Tokenizer.from_file(f"{a.model}/tokenizer.json").encode(a.text).ids
    theirs = DeepseekV3ForCausalLM.from_pretrained(a.model, dtype=torch.float32).eval()(torch.tensor([ids])).logits[0]
    model = load(a.model)
    rope = rope_table(model.cfg, len(ids))
    ours = model.logits(model.hidden(torch.tensor([ids]), rope, torch.float32))[0]
    diff = (ours - theirs).abs().max().item()
    print(f"{len(ids)} tokens, logits up to {ours.abs().max().item():.2f}, largest difference {diff:.2e}, "
          f"same argmax at {(ours.argmax(-1) == theirs.argmax(-1)).sum().item()} of {len(ids)}")
    raise SystemExit(0 if diff < 1e-3 else 1)


if __name__ == "__main__":
    main()
