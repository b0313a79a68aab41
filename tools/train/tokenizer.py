"""Train the byte-level BPE tokenizer and encode the corpus.

    python tokenizer.py --corpus ../../../shared/assets/corpus --work WORKDIR

Writes WORKDIR/tokenizer.json (the constructs of DeepSeek-V3's file: a Sequence of three Splits and ByteLevel, a BPE
model, two special tokens) and WORKDIR/NAME.{train,heldout}.npy, uint16 ids of the whole file: BOS document EOS BOS ...
"""
import argparse
import json
import os

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<|begin_of_sentence|>", "<|end_of_sentence|>"
BOS_ID, EOS_ID = 0, 1
SEPARATOR = "<|endoftext|>"                       # a line of its own between the corpus's documents
CORPORA = ("tales", "children-novels")            # the tokenizer sees the tales only

# DeepSeek-V3's three patterns: digits by three, CJK runs, then words with one leading non-letter, punctuation, space.
SPLITS = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)


def documents(path):
    with open(path, encoding="utf-8") as f:
        return [d.strip("\n") for d in f.read().split(SEPARATOR) if d.strip()]


def train(texts, vocab_size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated") for s in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    special = [AddedToken(s, normalized=False, special=True) for s in (BOS, EOS)]
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    assert tok.token_to_id(BOS) == BOS_ID and tok.token_to_id(EOS) == EOS_ID
    return tok


def encode(tok, texts):
    ids = []
    for e in tok.encode_batch(texts):
        ids += [BOS_ID] + e.ids + [EOS_ID]
    return np.array(ids, dtype=np.uint16)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--corpus", default=os.path.join(here, "../../../shared/assets/corpus"))
    p.add_argument("--work", required=True)
    p.add_argument("--vocab-size", type=int, default=1024)
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    texts = {f"{name}.{split}": documents(os.path.join(a.corpus, f"{name}.{split}.txt"))
             for name in CORPORA for split in ("train", "heldout")}
    tok = train(texts["tales.train"], a.vocab_size)
    tok.save(os.path.join(a.work, "tokenizer.json"))
    for name, documents_of in texts.items():
        ids = encode(tok, documents_of)
        np.save(os.path.join(a.work, f"{name}.npy"), ids)
        print(json.dumps({"file": name, "tokens": len(ids),
                          "bytes_per_token": round(sum(map(len, documents_of)) / len(ids), 3)}))


if __name__ == "__main__":
    main()
