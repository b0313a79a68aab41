#!/usr/bin/env python3
"""Sixteen clients send random requests at random times: whole answers and streams, drafts, log-probabilities, several choices,
schemas, chats, readers that are slow, clients that go away. Each answer is that of the same request alone on a server that does nothing
else, and that of `verbatim generate` where it can be asked. Run in the repository's root.

    test_serve_random.py [VERBATIM [NAME...]]     SERVE_RANDOM: how many requests (default 480); SERVE_SEED: of the random numbers
"""

import concurrent.futures
import json
import os
import random
import sys
import time

from serving import TALE, Server, choices_of, compare, events, generate, join, run_tests

COUNT = int(os.environ.get("SERVE_RANDOM", "480"))
SEED = int(os.environ.get("SERVE_SEED", "1"))
CLIENTS = 16
TALES = ["Once upon a time", "The king said to his daughter", "There was once a poor woman who", "Hansel and Gretel went", "In a deep forest"]
SCHEMA = {"type": "object", "required": ["name", "sons"], "properties": {"name": {"type": "string", "maxLength": 9}, "sons": {"enum": [1, 2, [3]]}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
SAMPLING = [{"temperature": 0}, {"temperature": 0.7}, {"temperature": 1, "top_p": 0.9}, {"temperature": 1.5, "top_k": 8},
            {"temperature": 1, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.25}, {"temperature": 1, "repetition_penalty": 1.25},
            {"temperature": 1, "logit_bias": {"7": 4, "11": -100}},
            {"temperature": 1, "logit_bias": {str(token): 100 for token in (129, 104, 162, 118, 257)}}]  # bytes of characters, whole and broken
DRAFTS = [{}, {"draft": "none"}, {"draft": "mtp-eagle"}, {"draft": "mtp-vanilla", "draft_tokens": 2}, {"draft": "ngram"}, {"draft_tokens": 0},
          {"draft": "mtp-eagle", "draft_tokens": "auto"}, {"draft": "mtp-eagle", "draft_tokens": 5}, {"draft": "eagle-reroll", "draft_tokens": 1}]


class Request:
    """One of `count` different ones; several clients send the same one, each in its own way."""

    def __init__(self, rng):
        self.path = rng.choice(["/v1/completions"] * 3 + ["/v1/chat/completions"])
        is_chat = "chat" in self.path
        text = " ".join(rng.choice(TALES) for _ in range(rng.randrange(1, 5)))
        self.body = {"max_tokens": rng.choice([1, 5, 20, 60]), "seed": rng.randrange(1 << 40), "return_token_ids": True, **rng.choice(SAMPLING)}
        if is_chat:
            self.body["messages"] = [{"role": "user", "content": text}]
        else:
            self.body["prompt"] = text if rng.random() < 0.7 else [rng.randrange(2, 1000) for _ in range(rng.randrange(1, 50))]
        self.body["n"] = rng.choice([1, 1, 1, 2, 3])
        if rng.random() < 0.3:
            self.body.update({"logprobs": True, "top_logprobs": 3} if is_chat else {"logprobs": rng.randrange(0, 5), "echo": rng.random() < 0.5})
        if rng.random() < 0.15:
            self.body["prompt_logprobs"] = 2
        if rng.random() < 0.2:
            self.body.update(response_format=FORMAT, max_tokens=60)
        elif rng.random() < 0.3:
            self.body["stop"] = rng.choice([[" the"], ["and", "a man who"], [" h", "e k"]])
        elif rng.random() < 0.3:
            self.body["ignore_eos"] = True
        self.wanted = None

    def check(self, choices, how):
        got = [said_of(choice) for choice in choices]
        if got != self.wanted:
            differ = next((a, b) for a, b in zip(got, self.wanted) if a != b)
            raise AssertionError(f"{how} {json.dumps(self.body)}:\n{differ[0]}\nalone:\n{differ[1]}")

    def check_generate(self):
        """`generate` knows no schemas, and its chats are made from files."""
        if "prompt" not in self.body or "response_format" in self.body or self.body.get("echo"):
            return 0
        for i, said in enumerate(self.wanted):
            compare(dict(said, token_ids=said["token_ids"]), generate(TALE, dict(self.body, seed=self.body["seed"] + i)), self.body)
        return 1


def said_of(choice):
    rows = choice.get("logprobs") or {}
    said = {key: choice.get(key) for key in ("index", "text", "token_ids", "finish_reason", "fingerprint", "seed", "prompt_token_ids", "prompt_logprobs")}
    return dict(said, rows={key: value for key, value in rows.items() if isinstance(value, list)})


def stream(server, request, body, rng, how):
    """Reads a stream over a socket: slowly, or not to its end. Returns the choices, or None."""
    text = json.dumps(dict(body, stream=True)).encode()
    with server.send(text, request.path, small=True) as sock:
        parts, wanted = [], rng.randrange(0, 3000) if how == "leaves" else 1 << 30
        while wanted > 0 and (part := sock.recv(min(wanted, rng.randrange(1, 4000)))):
            parts.append(part)
            wanted -= len(part)
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.02)
    if how == "leaves":
        return None
    head, _, said = b"".join(parts).decode().partition("\r\n\r\n")
    assert " 200 " in head.split("\r\n")[0] and said.endswith("data: [DONE]\n\n"), f"{text}: {head}: {len(said)} bytes: {said[-500:]}"
    return join(events(said))


def one_client(server, requests, seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        request = rng.choice(requests)
        how = rng.choice(["whole", "whole", "stream", "slow", "leaves"])
        body = dict(request.body, **rng.choice(DRAFTS))
        if how in ("slow", "leaves"):
            choices = stream(server, request, body, rng, how)
        else:
            choices = choices_of(server, dict(body, stream=how == "stream"), request.path)
        if choices is not None:
            request.check(choices, how)
        time.sleep(rng.random() * 0.01)


def answers_do_not_depend_on_other_clients():
    rng = random.Random(SEED)
    requests = [Request(rng) for _ in range(max(8, COUNT // 4))]
    with Server(TALE, "--max-sequences", "1") as server:
        for request in requests:
            request.wanted = [said_of(choice) for choice in choices_of(server, request.body, request.path)]
    by_generate = sum(request.check_generate() for request in requests[:max(4, COUNT // 20)])
    assert by_generate > 0, "no answer was compared with generate's"
    with Server(TALE, "--max-sequences", "12", "--cache-tokens", "300", "--prefill-chunk", "7", "--draft", "mtp-eagle") as server:
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            for run in [clients.submit(one_client, server, requests, SEED * 1000 + i, COUNT // CLIENTS + 1) for i in range(CLIENTS)]:
                run.result()
        server.wait_for("the end of all", lambda: server.sequences() == 0)
        for name, label in (("num_preemptions_total", ""), ("prefix_cache_hits_total", ""), ("spec_decode_num_accepted_tokens_total", ""),
                            ("request_success_total", "abort")):
            assert server.metric(name, label) > 0, f"{name} {label} is 0: the test shows too little"
        for request in requests[:8]:
            request.check(choices_of(server, request.body, request.path), "afterwards")


if __name__ == "__main__":
    sys.exit(run_tests([answers_do_not_depend_on_other_clients]))
