#!/usr/bin/env python3
"""Makes golden/tokenizer/: a small byte-level BPE tokenizer and what Hugging Face's `tokenizers` makes of some texts.

    pip install tokenizers && python3 golden/scripts/make_tokenizer_vectors.py      (from the root of the repository)

Truth, not bits: the ids come from that library (0.23 when this was written), whose patterns are matched by Oniguruma;
decoded text comes from Python's UTF-8 decoder. vectors.json has
    variants   [{name, change: members that replace those of tokenizer.json (of its model, with "model."), cases}]
    cases      [[text, ids with special tokens recognised, ids with special tokens as text or null when equal]]
    streams    [[chunks of bytes in hexadecimal, text]]
words.json has, for names that GGUF gives to rules of splitting (tokenizer.ggml.pre), the published patterns of the models and
    cases      [[text, the words that these patterns make of it]]
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tokenizer"

PROSE = """
The river was low that summer, and the children walked across it on the stones. "Don't fall," said their mother, "the
water's cold." They didn't fall; they'd done it a hundred times, and a hundred more they'd do it. In 1987 the bridge
was built: 42 metres long, 3.5 metres wide, and painted green. Who would have thought that it'd last until 2024?
A model reads tokens, and a token is a few letters, a space and a word, or one byte of something rare.
for (int i = 0; i < n; i++) { sum += x[i] * w[i]; }    return sum / (float)n;
def read(path, size=65536):
    with open(path, "rb") as f:
        return f.read(size)
#include <stdio.h>\n\tprintf("%d tokens, %.2f ms\\n", n, t);\r\n
Der Fluß war niedrig; die Kinder gingen über die Steine. Où est la bibliothèque ? Elle est à côté de l'école, là-bas.
Река была мелкой, и дети перешли её по камням. Το ποτάμι ήταν ρηχό. 那年夏天河水很浅，孩子们踩着石头过河。
この夏、川は浅かった。子供たちは石の上を歩いて渡った。 그해 여름 강물은 얕았다. كان النهر ضحلا في ذلك الصيف.
"""

# DeepSeek-V3's three cuts, and those of DeepSeek-V2 in short (its second set lists every cased letter)
V3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
      " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
V2 = ["[\r\n]", "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u0400-\u0481]+",
      "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+$", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]


# The patterns of published tokenizer.json files; Kimi's is that of tokenization_kimi.py, and Youtu's that of llama.cpp's source.
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+SUFFIX|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*SUFFIX|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CUTS = {
    "gpt-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "deepseek-v3": V3,
    "glm4": [SUFFIX + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "kimi-k2": [r"[\p{Han}]+|" + CASED.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("SUFFIX", SUFFIX + "?")
                .replace("DIGITS", r"\p{N}{1,3}").replace(r"[\r\n/]", r"[\r\n]")],
    "tekken": [CASED.replace("SUFFIX", "").replace("DIGITS", r"\p{N}")],
    "youtu": ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
              CASED.replace("SUFFIX", SUFFIX + "?").replace("DIGITS", r"\p{N}")],
    "kanana2": [CASED.replace("SUFFIX", SUFFIX + "?").replace("DIGITS", r"\p{N}{1,3}")],
}
CUT_TEXTS = [
    "camelCase HTTPServer XMLhttpRequest aB Ab AB", "Don't YOU'LL we'VE i'M he'D'S x's", "1 12 123 1234 12345678 ²½Ⅷ٣٤٥", "a/b//c /\n//\n/x ?/!/",
    "été ÉTÉ éTÉ ǅungla ǄUNGLA ªº ʰ ßẞ", "Привет МИР приВЕТ αΒγ ΑΒγ", "e\u0301cole E\u0301COLE x\u0301\u0302Y", "中文和English混排，标点。“引号”…—：；！",
    "ひらがなカタカナ漢字한국어ㄱㄴㄷㅏ", "ㄅㄆㄇ注音ab〿︰﹏（）", "日本のA型 中A中a", "  two  spaces\t\tand\n\nlines \r\n  x", "नमस्ते مرحبا ok", "🚀\u200d🏽 ok'S",
    "a，b：c；d！e…f“g”h‘i’j—k、l〿m。n︰o﹏p", "a가b힣cㄱdㆎeㄅfㄯg一h龥i\u3040jゟk゠lヿm",
]


def split(pattern, behavior="isolated", invert=False, literal=False):
    return pre_tokenizers.Split(pattern if literal else Regex(pattern), behavior, invert)


def byte_level(prefix=False, words=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=words)


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


def train():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([])
    t.pre_tokenizer = sequence(*map(split, V3), byte_level())
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(PROSE.splitlines(keepends=True) * 3, trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=[AddedToken("<|begin|>", normalized=False, special=True),
                        AddedToken("<|end|>", normalized=False, special=True)]))
    t.add_special_tokens([AddedToken("<|hole|>", normalized=True, special=True),
                          AddedToken("<|left|>", lstrip=True, normalized=False, special=True)])
    t.add_tokens([AddedToken("<think>", normalized=True), AddedToken("</think>", normalized=True),
                  AddedToken("<think>>", normalized=True),
                  AddedToken("<<|begin|>>", normalized=True), AddedToken("<|right|>", rstrip=True, normalized=False),
                  AddedToken("<|both|>", lstrip=True, rstrip=True, normalized=True),
                  AddedToken("word", single_word=True, normalized=False), AddedToken("<|｜é|>", normalized=True)])
    return t


def texts(seed):
    r = random.Random(seed)
    spaces = list(" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2003\u2028\u2029\u202f\u205f\u3000\u200b\u200d\ufeff")
    added = ["<|begin|>", "<|end|>", "<|hole|>", "<|left|>", "<|right|>", "<|both|>", "<think>", "<think>>", "<think>>>", "</think>",
             "word", "words", "wörd word", "<|beg", "in|>", "<thin", "<|｜é|>"]
    pools = [spaces, [" ", "  ", "\n", " \n", "\r\n", "   "], added, list("0123456789٣৩４½²Ⅷ①"), PROSE.split(), PROSE.split(),
             ["'s", "'ll", "I'm", "WE'RE", "e\u0301", "a\u0308\u0323", "\u0301"], list(".,;:!?()[]{}<>|&*-+=/\\_\"'`~@#$%^«»…—。「」！？"),
             ["👍", "👨\u200d👩\u200d👧", "🇩🇪", "❤\ufe0f", "🏽", " 🫨", "\U0001fae8a", " \u2427 ", "\u1c89b"],
             list("那年夏天河水很浅子供歩いた강물은アイウ")]
    fixed = ["<think>>><think>><<|begin|>>", "", " ", "  ", "a", "\n\n\n", "   \n  x", " \t leading", "trailing   ", "12345678901", "x" * 300, " " * 70 + "a", PROSE]
    return fixed + ["".join(r.choice(r.choice(pools)) for _ in range(r.randint(1, 14))) for _ in range(60)]


def variants(t):
    base = json.loads(t.to_str())
    merges = [m.split(" ") if isinstance(m, str) else m for m in base["model"]["merges"]]

    def pre(*steps):
        return {"pre_tokenizer": json.loads(sequence(*steps).__getstate__())}

    yield "as it is", {}
    yield "merges as strings", {"model.merges": [" ".join(m) for m in merges[:99]]}
    yield "ignore_merges", {"model.ignore_merges": True, "model.merges": merges[:40]}
    yield "DeepSeek-V2", pre(*map(split, V2), pre_tokenizers.Digits(individual_digits=True), byte_level())
    yield "GPT-2", {"pre_tokenizer": json.loads(byte_level(False, True).__getstate__()), "normalizer": None}
    yield "GPT-2 with a space in front", {"pre_tokenizer": json.loads(byte_level(True, True).__getstate__())}
    yield "whole numbers, a space in front of each piece", pre(pre_tokenizers.Digits(False), byte_level(True, False))
    for behavior in "isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous":
        for invert in False, True:
            yield f"{behavior}, invert {invert}", pre(split(r"\s|[.,]", behavior, invert), byte_level())
    yield "a string, contiguous", pre(split("e", "contiguous", literal=True), byte_level())
    yield "a string of special characters", pre(split(".*", "merged_with_next", literal=True), byte_level())
    yield "lines", pre(split(r"^[^\n]|.$|\A\s", "isolated"), byte_level())
    yield "empty matches", pre(split(r"(?=[aeiou])|\d*", "isolated"), byte_level())
    yield "look behind, nothing between", pre(split(r"(?<=\S)\s|(?<![a-z])[a-z]", "merged_with_previous"), byte_level())
    for name, pattern in (("without letters and marks", r"[\p{L}\p{M}]"), ("without letters", r"\p{L}"), ("without others than letters", r"\P{L}+"),
                          ("without digits and white space", r"\p{N}|\s"), ("without punctuation and symbols", r"[^\s\d\p{L}\p{M}\p{N}\x{180e}\x{200b}-\x{200d}\x{2060}\x{feff}\x{ad}\x{378}]"),
                          ("without white space, the other way", r"[^\S]"), ("without what is no mark", r"\p{^M}")):
        yield name, pre(split(pattern, "removed"), byte_level())
    yield "ignoring case", pre(split(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), byte_level())
    yield "escapes", pre(split(r"[\u00e9-\x{ea}\v]|\x41\t|[\d\-\]&]+|\P{L}{2}|\p{^M}\p{Mn}|[^\S\n]{2,}"), byte_level())


# Where PCRE2 10.42 (Unicode 14) and Oniguruma 6.9.10 (16) do not agree, and others at the edge of a category.
BORDERS = ["a \U0001fae8 \u2427 b", "\u1c89b\U00031350c\U0001e030", "x\U00010d40y\U00016130", "a\u180eb\u0085c\x1cd\x0be\u200bf\u00a0g",
           "\u0897a\U00011241", "\u1b4eq\U00011b00", "\u3000\u2007\ufeff\u2060\u00ad", "\u0378\u00aa\u02b0\u2160\u00bc\u3007\u4e00\u309b\u0f33"]


def borders(variant):
    return variant.startswith("without") or variant == "as it is"


def change(base, members):
    out = json.loads(json.dumps(base))
    for key, value in members.items():
        (out["model"] if key.startswith("model.") else out)[key.removeprefix("model.")] = value
    return out


def write_words():
    lines = []
    for name, patterns in CUTS.items():
        cut = sequence(*map(split, patterns))
        cases = [[text, [word for word, _ in cut.pre_tokenize_str(text)]] for text in CUT_TEXTS + texts(40)[13:43]]
        lines.append(json.dumps(name) + ": {\"patterns\": " + json.dumps(patterns, ensure_ascii=False) + ", \"cases\": [\n" +
                     ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "\n]}")
    (OUT / "words.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    t = train()
    OUT.mkdir(exist_ok=True)
    base = json.loads(t.to_str())
    (OUT / "tokenizer.json").write_text(json.dumps(base, ensure_ascii=False, separators=(",", ":")) + "\n")
    (OUT / "tokenizer_config.json").write_text(json.dumps(
        {"add_bos_token": True, "bos_token": {"content": "<|begin|>"}, "eos_token": "<|end|>"}) + "\n")
    result = {"variants": [], "streams": []}
    for i, (name, members) in enumerate(variants(t)):
        v = Tokenizer.from_str(json.dumps(change(base, members)))
        cases = []
        some = BORDERS if borders(name) else []
        for text in some + texts(7 if i == 0 else 100 + i)[0 if i == 0 else 13:None if i == 0 else 17 if some else 25]:
            v.encode_special_tokens = False
            ids = v.encode(text, add_special_tokens=False).ids
            v.encode_special_tokens = True
            plain = v.encode(text, add_special_tokens=False).ids
            cases.append([text, ids, plain if plain != ids else None])
        result["variants"].append({"name": name, "change": members, "cases": cases})
    r = random.Random(3)
    bad = [b"\x80", b"\xc0\xaf", b"\xc2", b"\xe0\x80\x80", b"\xe0\xa0", b"\xed\xa0\x80", b"\xef\xbf", b"\xf0\x80\x80\x80",
           b"\xf0\x9f\x91", b"\xf4\x90\x80\x80", b"\xf5", b"\xff", b"\xe2\x28\xa1", b"\xf1\x80\x80"]
    for _ in range(80):
        data = b"".join(r.choice(bad) if r.random() < 0.4 else r.choice("aé那👍\n").encode() for _ in range(r.randint(1, 8)))
        chunks = []
        while data:
            n = r.choice([1, 1, 2, 3, 5])
            chunks.append(data[:n].hex())
            data = data[n:]
        result["streams"].append([chunks, bytes.fromhex("".join(chunks)).decode("utf-8", "replace")])
    lines = ["{\"variants\": ["]
    for i, v in enumerate(result["variants"]):
        head = json.dumps({"name": v["name"], "change": v["change"]}, ensure_ascii=True)[:-1]
        lines.append(head + ", \"cases\": [")
        lines.append(",\n".join(json.dumps(c, separators=(",", ":")) for c in v["cases"]))
        lines.append("]}" + ("," if i + 1 < len(result["variants"]) else ""))
    lines.append("], \"streams\": [")
    lines.append(",\n".join(json.dumps(s, separators=(",", ":")) for s in result["streams"]))
    lines.append("]}")
    (OUT / "vectors.json").write_text("\n".join(lines) + "\n")
    write_words()


if __name__ == "__main__":
    main()
