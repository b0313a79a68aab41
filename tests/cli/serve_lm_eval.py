#!/usr/bin/env python3
"""lm-evaluation-harness against `verbatim serve`: the log-likelihoods that it reports are those of `verbatim logits`, and what it lets
the model write is what `verbatim generate` writes. Run by tests/cli/serve_lm_eval.sh, which installs the harness.

    serve_lm_eval.py [VERBATIM [NAME...]]
"""

import array
import json
import math
import re
import subprocess
import sys
import tempfile

import lm_eval
import lm_eval.tasks

from serving import TALE, VERBATIM, Server, generate, run_tests

QUESTIONS = [{"query": "Once upon a time", "choices": [" there was a king", " the the the", " who knew"], "gold": 0},
             {"query": "The king said to his", "choices": [" daughter", " son, and then he went home", "."], "gold": 1},
             {"query": "In a deep forest there lived", "choices": [" a poor woman", " \u00e9"], "gold": 0}]
CHOOSE = {"task": "choose", "output_type": "multiple_choice", "doc_to_text": "{{query}}", "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}",
          "target_delimiter": "", "metric_list": [{"metric": "acc"}]}
WRITE = {"task": "write", "output_type": "generate_until", "doc_to_text": "{{query}}", "doc_to_target": "x", "metric_list": [{"metric": "exact_match"}],
         "generation_kwargs": {"until": ["\n", " went"], "max_gen_toks": 20, "temperature": 0}}


def evaluate(server, task, model, path, **more):
    """The samples of a task, in the order of QUESTIONS."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/data.jsonl", "w") as file:
            file.writelines(json.dumps(question) + "\n" for question in QUESTIONS)
        task = dict(task, dataset_path="json", dataset_kwargs={"data_files": {"test": f"{folder}/data.jsonl"}, "cache_dir": folder}, test_split="test", num_fewshot=0)
        said = lm_eval.simple_evaluate(model=model, model_args={"base_url": f"http://127.0.0.1:{server.port}{path}", "model": "tale", "num_concurrent": 2, **more},
                                       tasks=[task], log_samples=True, bootstrap_iters=0, apply_chat_template="chat" in path)
        samples, = said["samples"].values()
        return sorted(samples, key=lambda sample: sample["doc_id"])


def tokens_of(text):
    told = subprocess.run([VERBATIM, "tokenize", TALE, text], capture_output=True, text=True, check=True).stdout
    return [int(n) for n in re.findall(r"\d+", told.split("\n")[0])]


def log_likelihood(context, continuation):
    """(sum, whether each token is the likeliest), from `verbatim logits`."""
    whole, first = tokens_of(context + continuation), len(tokens_of(context))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([VERBATIM, "logits", TALE, "--tokens", ",".join(map(str, whole)), "-o", f"{folder}/o"], check=True, capture_output=True)
        with open(f"{folder}/o", "rb") as file:
            data = file.read()
    size = int.from_bytes(data[:8], "little")
    about = json.loads(data[8:8 + size])["logits"]
    logits = array.array("f", data[8 + size + about["data_offsets"][0]:8 + size + about["data_offsets"][1]])
    V, total, greedy = about["shape"][1], 0.0, True
    for i in range(first, len(whole)):
        row = logits[(i - 1) * V:i * V]
        most = max(row)
        total += row[whole[i]] - most - math.log(math.fsum(math.exp(x - most) for x in row))
        greedy = greedy and row[whole[i]] == most
    return total, greedy


def log_likelihoods_are_those_of_logits():
    with Server(TALE) as server:
        samples = evaluate(server, CHOOSE, "local-completions", "/v1/completions", batch_size=2)
        assert len(samples) == len(QUESTIONS)
        for sample, question in zip(samples, QUESTIONS):
            for choice, got in zip(question["choices"], sample["filtered_resps"], strict=True):
                total, greedy = log_likelihood(question["query"], choice)
                # Both sums are of doubles, in another order: a few units in the last place of the terms.
                assert abs(float(got[0]) - total) <= 1e-12 * max(1, abs(total)) and str(got[1]) == str(greedy), (question, choice, got, total, greedy)
            best = max(range(len(question["choices"])), key=lambda i: float(sample["filtered_resps"][i][0]))
            assert sample["acc"] == (best == question["gold"]), sample


def texts_are_those_of_generate():
    with Server(TALE) as server:
        for model, path in (("local-completions", "/v1/completions"), ("local-chat-completions", "/v1/chat/completions")):
            for sample, question in zip(evaluate(server, WRITE, model, path), QUESTIONS):
                prompt = question["query"] if "chat" in path else tokens_of(question["query"])  # as ids, without BOS
                wanted = generate(TALE, {"prompt": prompt, "max_tokens": 20, "temperature": 0, "stop": WRITE["generation_kwargs"]["until"]})
                assert sample["resps"][0][0] == wanted["text"], (model, sample["resps"], wanted)


if __name__ == "__main__":
    sys.exit(run_tests([log_likelihoods_are_those_of_logits, texts_are_those_of_generate]))
