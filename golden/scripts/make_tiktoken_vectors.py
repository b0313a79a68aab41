#!/usr/bin/env python3
"""Makes golden/tiktoken/: a small tiktoken.model in the manner of Kimi-K2's, and what the tiktoken library makes of some texts.

    pip install tiktoken && python3 golden/scripts/make_tiktoken_vectors.py      (from the root of the repository)

Truth, not bits: the ids come from tiktoken (0.14 when this was written) with the pattern of Kimi-K2's and Moonlight's
TikTokenTokenizer, after that class's cuts of long texts. vectors.jsonl has a line per text:
    text, times    the text is `text` that many times
    ids            special tokens recognised
    plain          special tokens as text; null: the same
    sha256         in place of ids, for long texts: of the ids in decimal with commas between
    points         in place of text: [first, last], for every code point c but surrogates the lines acA, cAa and 汉c
The model has a token for "a" and for the last byte of "汉" with the first byte of any character, and for the last byte with "A", so
that the ids tell whether c is in one word with its neighbours.
"""
import base64
import hashlib
import json
import pathlib
import random
import re

import tiktoken

OUT = pathlib.Path(__file__).resolve().parent.parent / "tiktoken"
BASE, RESERVED = 866, 258

MARK = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
PATTERN = "|".join([r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + MARK,
                    r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + MARK, r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                    r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
NAMED = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_system|>", 17: "<|im_middle|>",
         22: "<think>", 23: "</think>", 256: "[UNK]", 257: "[PAD]"}

PROSE = (OUT.parent / "scripts" / "make_tokenizer_vectors.py").read_text(encoding="utf-8").split('"""')[3]


def train():
    """Byte pairs by how often they are there, within words cut as GPT-2 does, more or less."""
    ranks = {bytes([b]): i for i, b in enumerate(sorted(range(256), key=lambda b: (not 33 <= b < 127, b)))}
    for joined in [b + bytes([lead]) for lead in range(0xc2, 0xf5) for b in (b"a", "汉".encode()[-1:])] + [bytes([last]) + b"A" for last in range(0x80, 0xc0)]:
        ranks.setdefault(joined, len(ranks))
    words = [[bytes([b]) for b in w.encode()] for w in re.findall(r" ?\w+| ?[^\w\s]+|\s+", PROSE * 2)]
    while len(ranks) < BASE:
        pairs = {}
        for w in words:
            for pair in zip(w, w[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        best = max(pairs, key=lambda p: (pairs[p], p))
        ranks.setdefault(best[0] + best[1], len(ranks))
        for w in words:
            i = 0
            while i + 1 < len(w):
                if (w[i], w[i + 1]) == best:
                    w[i:i + 2] = [w[i] + w[i + 1]]
                i += 1
    assert len(ranks) == BASE
    return ranks


def slices(text):
    """As TikTokenTokenizer.encode cuts: every 400,000 characters, and runs alike (white space or not) behind every 25,000."""
    for start in range(0, len(text), 400_000):
        part, begin, alike, kind = text[start:start + 400_000], 0, 0, None
        for i, c in enumerate(part):
            alike = alike + 1 if kind is None or c.isspace() == kind else 1
            kind = c.isspace()
            if alike > 25_000:
                yield part[begin:i]
                begin, alike = i, 1
        yield part[begin:]


TEXTS = ["", "Say hi", "  leading", "trailing  ", "multiple   spaces", "tabs\tand\nnewlines\r\nok", "1234567890", "你好世界", "Mix 汉字 and ASCII",
         "punctuation!?.,;:-()[]{}", "[BOS]Hello[EOS]", "<|im_user|>user<|im_middle|>Hello<|im_end|>", "<|reserved_token_871|>",
         "<|reserved_token_866|><|reserved_token_999999|>", "emoji 🙂🙃", "cafe\u0301 e\u0301X", "ABC汉DEF", "Abc汉def", "A汉a", "a汉A", "々〆〇〡⺀豈𠀀𫝼𬺰",
         "Don't stop, WE'RE here; it's I'LL'd ſ'ſ x'S", "HELLOWorld helloWORLD", "!Hello", "A\u0301b", "\u0301\u0301a", "ǅungla ǈ", "مرحبا بالعالم",
         "नमस्ते दुनिया", "สวัสดีโลก", "こんにちは世界ですー", "안녕하세요", "Здравствуй, МИР", "𝔘𝔫𝔦 𐍈 𝄞music", "zero\u200dwidth\u200cjoiners", "\u00a0\u3000x\u2028y\x85z",
         "line1\r\n\r\n  line2\n \n x", "<think>x</think>y<think", "[BOS][EOS][PAD][UNK]", "   \n   ", "\n\n a", " \U0001f9cc\U0001faff", "½ ² Ⅷ ①②③④",
         "\U00010d4a\U00010d50\U00010d70 \ua7cb\ua7cd", "\u1c89\u1c8a", "\U0001df25A", "\U00031350\U0002ebf0x", "𞤀𞤢 Ꭰꭰ"]


def texts():
    yield from ((t, 1) for t in TEXTS)
    yield from ((line, 1) for line in PROSE.splitlines(keepends=True))
    rng = random.Random(7)
    pieces = list("aZé ÉßÑñ09 .,'\t\n\r汉字あア한ก\u0301\u0940𐐀𐐨ǅʰªⅣ½٣🙂￥\u00a0") + ["'s", "'LL", "[BOS]", "<|im_end|>", "  ", "\r\n", "the", "The"]
    for _ in range(150):
        yield "".join(rng.choice(pieces) for _ in range(rng.randint(1, 40))), 1
    for pool in ((0x20, 0x24f), (0x250, 0x2fff), (0x3000, 0xd7ff), (0xe000, 0xffff), (0x10000, 0x1ffff), (0x20000, 0x323ff)):
        for _ in range(15):
            yield "".join(chr(rng.randint(*pool)) for _ in range(30)), 1
    yield from [("a", 25001), (" ", 30000), ("ab漢", 10000), ("the ", 101000), ("x\x1c", 13000), ("A", 60000), ("é", 26000)]


def main():
    ranks = train()
    special = {NAMED.get(i, f"<|reserved_token_{BASE + i}|>"): BASE + i for i in range(RESERVED)}
    model = tiktoken.Encoding("golden", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    OUT.mkdir(exist_ok=True)
    (OUT / "tiktoken.model").write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in ranks.items()))
    config = {"added_tokens_decoder": {str(BASE + i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False,
                                                       "single_word": False, "special": name[0] == "["} for i, name in NAMED.items()},
              "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]", "tokenizer_class": "TikTokenTokenizer",
              "chat_template": "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}"
                               "<|im_assistant|>assistant<|im_middle|>"}
    (OUT / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = []
    for text, times in texts():
        parts = list(slices(text * times))
        ids = [i for p in parts for i in model.encode(p, allowed_special="all")]
        plain = [i for p in parts for i in model.encode(p, disallowed_special=())]
        line = {"text": text, "times": times}
        if times > 1:
            line["sha256"] = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
        else:
            line.update(ids=ids, plain=None if plain == ids else plain)
        lines.append(json.dumps(line, ensure_ascii=False))
    first, last = 0x20, 0x323af
    every = "".join(f"a{chr(c)}A\n{chr(c)}Aa\n汉{chr(c)}\n" for c in range(first, last + 1) if not 0xd800 <= c < 0xe000)
    ids = [i for p in slices(every) for i in model.encode(p, allowed_special="all")]
    lines.append(json.dumps({"points": [first, last], "sha256": hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()}))
    (OUT / "vectors.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(len(lines), "texts")


if __name__ == "__main__":
    main()
