"""Dump a Hugging Face model's intermediate values under the names that `verbatim dump` uses, to compare the two.

    pip install torch transformers safetensors
    python tools/hf_dump.py MODEL --tokens 1,2,3 -o OUT.safetensors [--dtype float64]

Every module's first input and output, one pass, no cache: MODULE.PATH.input and MODULE.PATH.output, [tokens, ...]. Values that
are no module's (q_rope, scores of the router, single experts) are not seen by hooks; transformers has no MTP layer in this class.
"""
import argparse

import torch
from safetensors.torch import save_file

from hooks.torch_dump import open_transformers


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--tokens", required=True, help="5,6,7")
    p.add_argument("-o", "--out", required=True)
    p.add_argument("--dtype", default="float32", help="float32, float64, bfloat16: of weights and arithmetic")
    a = p.parse_args()
    model = open_transformers(a.model, a.dtype)
    tokens = torch.tensor([[int(t) for t in a.tokens.split(",")]])
    dump = {}

    def keep(name, value):
        value = value[0] if isinstance(value, (tuple, list)) and value else value
        if torch.is_tensor(value) and value.is_floating_point():
            rows = value[0] if value.dim() > 2 else value                    # the batch of one
            if rows.shape[0] == tokens.shape[1]:
                dump[name] = rows.detach().clone().contiguous()

    def hook(name):
        def seen(module, arguments, output):
            keep(name + ".input", arguments)
            keep(name + ".output", output)
        return seen

    for name, module in model.named_modules():
        if name:
            module.register_forward_hook(hook(name))
    with torch.no_grad():
        model(tokens, use_cache=False)
    save_file(dump, a.out, metadata={"format": "pt", "tokens": a.tokens})
    print(f"{len(dump)} tensors")


if __name__ == "__main__":
    main()
