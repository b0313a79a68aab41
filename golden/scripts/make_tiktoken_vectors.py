#!/usr/bin/env python3
"""Makes golden/tiktoken/: a small tokenizer in tiktoken's format, and what the `tiktoken` package makes of some texts.

    pip install tiktoken tokenizers && python3 golden/scripts/make_tiktoken_vectors.py    (from the root of the repository)

Truth, not bits: the ids come from that package (0.14 when this was written), called as the published Python code of
Kimi-K2 (tokenization_kimi.py) and Moonlight (tokenization_moonshot.py) calls it: PATTERN, 258 special tokens behind the
ranks, long texts in slices. `tokenizers` only learns the ranks. vectors.json has
    variants    [{name, order: null, or the rank that each line of tiktoken.model has instead, cases}]
    cases       [[text, ids with special tokens recognised, ids with special tokens as text or null when equal]]
    long        [[[part of the text, how often], ..], number of ids, FNV-1a of the ids], special tokens recognised
    characters  [[first, step, FNV-1a of the ids]]: texts with 4096 characters each, for a tokenizer of all
                bytes and pairs of bytes, whose ids tell where words are cut
fuzz.seed is one file: tiktoken.model, a zero byte, tokenizer_config.json.
"""
import base64
import json
import pathlib
import random

import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tiktoken"
PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
])

PROSE = """
The river was low that summer, and the children walked across it on the stones. "Don't fall," said their mother, "the
water's cold." They didn't fall; they'd done it a hundred times, and a hundred more they'd do it. In 1987 the bridge
was built: 42 metres long, 3.5 metres wide, and painted green. Who would have thought that it'd last until 2024?
for (int i = 0; i < nRows; i++) { sumOfRows += rowAt[i] * WEIGHTS[i]; }    return sumOfRows / (float)nRows;
class HTTPServerThread: def getURLFor(self, fileName): return self.baseURL + URLEncoder.encode(fileName)
Der Fluß war niedrig; die Kinder gingen über die Steine. Où est la bibliothèque ? Elle est à côté de l'école, là-bas.
Река была мелкой, и дети перешли её по камням. Το ποτάμι ήταν ρηχό. 那年夏天河水很浅，孩子们踩着石头过河。
这条河在夏天很浅，孩子们在石头上走来走去。使用GPU训练模型，然后用CPU推理。
この夏、川は浅かった。子供たちは石の上を歩いて渡った。 그해 여름 강물은 얕았다. كان النهر ضحلا في ذلك الصيف.
"""
NAMED = {0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|im_end|>", True), 3: ("<|im_user|>", True), 4: ("<|im_assistant|>", True),
         6: ("<|start_header_id|>", True), 8: ("[EOT]", True), 10: ("<|im_system|>", True), 17: ("<|im_middle|>", True),
         11: ("<|tool_calls_section_begin|>", False), 22: ("<think>", False), 23: ("</think>", False),
         254: ("[UNK]", True), 255: ("[PAD]", True)}


def byte_characters():
    printable = [b for b in range(256) if 0x20 < b < 0x7f or 0xa0 < b < 0x100 and b != 0xad]
    rest = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}


def train(pattern=PATTERN):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(PROSE.splitlines(keepends=True) * 3, trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    of = byte_characters()
    words = sorted(t.get_vocab().items(), key=lambda item: item[1])
    tokens = [bytes(of[c] for c in word) for word, _ in words]
    # no pair leads to these: they are found as whole words only, or through pairs that no training would give
    tokens += ["QxQ".encode(), " zebra".encode(), "河水很深".encode(), b"qxqx", b"qx", b"xq", "🫨".encode(), b"\xf0\x9f", b" " * 16, b"ABABAB", b"BA", b"AB", b"BAB"]
    return tokens


def encoding(tokens, pattern=PATTERN, specials=True):
    n = len(tokens)
    special = {NAMED[i][0] if i in NAMED else f"<|reserved_token_{n + i}|>": n + i for i in range(258)} if specials else {}
    return tiktoken.Encoding("golden", pat_str=pattern, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens=special)


def runs(s, most):
    """The published code's way: no more than `most` characters in a row that are all white space, or all not."""
    length, start, blank = 0, 0, s[0].isspace() if s else False
    for i, c in enumerate(s):
        if blank != c.isspace():
            length, blank = 1, c.isspace()
            continue
        length += 1
        if length > most:
            yield s[start:i]
            start, length = i, 1
    yield s[start:]


def encode(e, text, special=True):
    ids = []
    for i in range(0, len(text), 400_000):
        for piece in runs(text[i:i + 400_000], 25_000):
            ids += e.encode(piece, allowed_special="all") if special else e.encode(piece, disallowed_special=())
    return ids


def texts(seed, count, n):
    r = random.Random(seed)
    spaces = list(" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u180e\u2003\u2028\u202f\u3000\u200b\u200d\ufeff")
    special = [name for name, _ in NAMED.values()] + ["[BO", "S]", "<|im_", "end|>", "<|reserved_token_1000|>", f"<|reserved_token_{n + 257}|>", f"<|reserved_token_{n + 258}|>", "<|reserved_token_5|>"]
    pools = [spaces, [" ", "  ", "\n", " \n", "\r\n", "   "], special, list("0123456789٣৩４½²Ⅷ①〇〡"), PROSE.split(), PROSE.split(), PROSE.split(),
             ["'s", "'ll", "I'm", "WE'RE", "'S", "'ſ", "'T", "'Ve", "e\u0301", "a\u0308\u0323", "\u0301"], list(".,;:!?()[]{}<>|&*-+=/\\_\"'`~@#$%^«»…—。「」！？"),
             ["👍", "👨\u200d👩\u200d👧", "❤\ufe0f", " 🫨", "🫨", "\U0001fae8a", "\u1c89b", "ǅ", "ʰ", "ªº", "\U0001e030", "\U00031350"],
             list("那年夏天河水很深浅子供歩いた강물은アイウ々〻〆ー\u3007\u2e80\u2f00"), ["camelCase", "HTTPServer", "iPhone's", "ABABABAB", "qxqxq", "QxQ", " zebra", "zebra", "XMLHttpRequest", "ALLCAPS", "McDonald"]]
    return ["".join(r.choice(r.choice(pools)) for _ in range(r.randint(1, 14))) for _ in range(count)]


FIXED = ["", " ", "a", "\n\n\n", "   \n  x", "trailing   ", "12345678901", "x" * 300, " " * 70 + "a", "河水很深", "河水很深浅", " zebra", " zebras", "ABABABABAB", "BABABA",
         "qxqxqxq", "中文English混合", "汉字ABCdef汉", "[BOS]<|im_user|>Hi<|im_end|>", "<think>那</think>", PROSE]
LONG = [[["a", 25001]], [["a", 60001]], [[" ", 70000]], [["那", 25000], ["年", 5]], [["ab", 12500], [" ", 25001], ["c", 25001], ["\x1c", 3], ["d", 30000]], [["a", 5], [" ", 24990], ["\x1c", 1], [" ", 24990], ["b", 1]],
        [["the river ", 40000], ["water", 9]], [["so ", 133332], ["<|im_end|>", 2], ["x", 30]], [["\u3000那", 12500], ["年\n", 200000]], [["A", 25000], ["b", 25000], ["1", 25000]]]


def fnv(ids):
    h = 14695981039346656037
    for i in ids:
        h = (h ^ i) * 1099511628211 % 2**64
    return f"{h:016x}"


def characters():
    """Every character of the first two planes and some of the others, among letters, digits and blanks. The digit makes both
    parities of bytes: pairs of bytes are joined from a word's start."""
    e = encoding([bytes([b]) for b in range(256)] + [bytes([a, b]) for a in range(256) for b in range(256)], specials=False)
    out = []
    for first, step in [(i * 4096, 1) for i in range(32)] + [(0x20000, 16), (0x30000, 16), (0xe0000, 16), (0x100000, 16)]:
        cs = [chr(c) for c in range(max(first, 1), min(first + 4096 * step, 0x110000), step) if not 0xd800 <= c < 0xe000]
        out.append([first, step, fnv(encode(e, "".join(f"aB{c}b{c}{c}A {c}1{c}'s\n{c}" for c in cs), False))])
    return out


def main():
    OUT.mkdir(exist_ok=True)
    tokens = train()
    n = len(tokens)
    (OUT / "tiktoken.model").write_text("".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)))
    config = {"add_bos_token": False, "added_tokens_decoder": {str(n + i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False,
                                                                            "single_word": False, "special": special} for i, (name, special) in sorted(NAMED.items())},
              "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]",
              "tokenizer_class": "TikTokenTokenizer",
              "chat_template": "{% for m in messages %}<|im_{{ m.role }}|>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_assistant|>{% endif %}"}
    (OUT / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    r = random.Random(5)
    shuffled, late = list(range(n)), list(range(256, n))
    r.shuffle(shuffled)
    r.shuffle(late)
    result = []
    for name, order, count in ("as it is", None, 150), ("ranks of no training", list(range(256)) + late, 120), ("bytes last", shuffled, 60):
        these = tokens if order is None else [t for _, t in sorted(zip(order, tokens))]
        e = encoding(these)
        cases = []
        for text in FIXED + texts(11 if order is None else 12, count, n):
            ids, plain = encode(e, text), encode(e, text, False)
            cases.append([text, ids, plain if plain != ids else None])
        result.append({"name": name, "order": order, "cases": cases})
    e = encoding(tokens)
    long = [(parts, encode(e, "".join(p * k for p, k in parts))) for parts in LONG]
    lines = ["{\"variants\": ["]
    for i, v in enumerate(result):
        lines.append(json.dumps({"name": v["name"], "order": v["order"]})[:-1] + ", \"cases\": [")
        lines.append(",\n".join(json.dumps(c, separators=(",", ":")) for c in v["cases"]))
        lines.append("]}" + ("," if i + 1 < len(result) else ""))
    lines.append("], \"long\": [")
    lines.append(",\n".join(json.dumps([parts, len(ids), fnv(ids)]) for parts, ids in long))
    lines.append("], \"characters\": [")
    lines.append(",\n".join(json.dumps(c) for c in characters()))
    lines.append("]}")
    (OUT / "vectors.json").write_text("\n".join(lines) + "\n")
    short = "".join(f"{base64.b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens[:300]))
    seed = dict(config, added_tokens_decoder={"300": {"content": "[BOS]"}, "301": {"content": "[EOS]"}, "302": {"content": "<think>", "special": False}})
    seed.pop("chat_template")
    (OUT / "fuzz.seed").write_bytes(short.encode() + b"\0" + json.dumps(seed).encode() + b"\n")


if __name__ == "__main__":
    main()
