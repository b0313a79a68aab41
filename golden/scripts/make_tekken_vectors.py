#!/usr/bin/env python3
"""Makes golden/tekken/: a small tokenizer in Mistral's format tekken.json, and what mistral-common makes of some texts.

    pip install mistral-common tokenizers && python3 golden/scripts/make_tekken_vectors.py    (from the root of the repository)

Truth, not bits: the ids are those of mistral-common (1.13.1 when this was written), which never reads special tokens in a
text. `tokenizers` only learns the ranks. The vocabulary has more tokens than default_vocab_size lets in, as in the
published files. vectors.json has
    size, bos, eos   as mistral-common has them
    pieces           [[id, name]]: the names of some special tokens
    cases            [[text, ids]]
"""
import base64
import json
import pathlib

from make_tiktoken_vectors import FIXED, texts, train
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

OUT = pathlib.Path(__file__).resolve().parent.parent / "tekken"
PATTERN = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
           "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
           "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
NAMED = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
         "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
SPECIALS, LEFT_OUT = 24, 4


def string(token):
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def main():
    OUT.mkdir(exist_ok=True)
    tokens = train(PATTERN)
    singles = [bytes([b]) for b in range(256)]  # mistral-common wants them first
    tokens = singles + [t for t in tokens if t not in set(singles)]
    vocab = [{"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": string(t)} for i, t in enumerate(tokens)]
    special = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(NAMED)]
    config = {"pattern": PATTERN, "num_vocab_tokens": len(tokens), "default_vocab_size": len(tokens) - LEFT_OUT + SPECIALS,
              "default_num_special_tokens": SPECIALS, "version": "v11"}
    head = json.dumps({"config": config, "special_tokens": special}, separators=(",", ":"))[:-1]
    entries = ",\n".join(json.dumps(v, separators=(",", ":")) for v in vocab)
    (OUT / "tekken.json").write_text(f"{head},\n\"vocab\":[\n{entries}\n]}}\n")
    t = Tekkenizer.from_file(OUT / "tekken.json")
    cases = [[text, t.encode(text, bos=False, eos=False)] for text in FIXED + ["a/b//\n", " /\r\n/", "<s>[INST]Hi[/INST]"] + texts(21, 100, len(tokens))]
    lines = [json.dumps({"size": t.n_words, "bos": t.bos_id, "eos": t.eos_id, "pieces": [[i, t.id_to_piece(i)] for i in (0, 3, 18, 19, 23)]})[:-1] + ', "cases": [']
    lines.append(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
    (OUT / "vectors.json").write_text("\n".join(lines + ["]}"]) + "\n")
    few = {"config": dict(config, default_vocab_size=290, default_num_special_tokens=20), "special_tokens": special,
           "vocab": [{k: v[k] for k in ("rank", "token_bytes")} for v in vocab[:272]]}
    (OUT / "fuzz.seed").write_text(json.dumps(few, separators=(",", ":")) + "\n")


main()
