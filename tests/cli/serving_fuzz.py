"""Malformed requests for test_serve.py: bodies that are no requests, and bytes that are no HTTP."""

import json
import socket

from serving import PATIENCE, events


def mutated(rng, body):
    text = bytearray(json.dumps(body).encode())
    for _ in range(rng.randrange(1, 6)):
        kind, at = rng.randrange(4), rng.randrange(len(text) + 1)
        if kind == 0:
            text[at:at] = rng.choice([b'"', b"{", b"]", b"\\u0000", b"\\ud800", b"\xff", b"1e999", b"-", b"null", b"\0", b",", b"99999999999999999999"])
        elif kind == 1:
            del text[at:at + rng.randrange(1, 9)]
        elif kind == 2 and at < len(text):
            text[at] = rng.randrange(256)
        else:
            begin = rng.randrange(len(text) + 1)
            text[at:at] = text[begin:begin + rng.randrange(20)]
    return bytes(text)


ODD = [None, True, -1, 0, 1, 3, 1e300, -1e300, 0.5, 1 << 62, "", "x", "\u0000", "<|end_of_sentence|>", [], [5], [[5], [6]], ["a", "b"], [None], {}, {"a": 1},
       {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"type": "array", "maxItems": 2, "items": {"enum": [1, "\u0000"]}}}},
       [{"role": "user", "content": "a"}], [{"role": "tool", "content": None}], {"5": 1}]
FIELDS = ["model", "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stop_token_ids", "logprobs",
          "top_logprobs", "echo", "stream", "stream_options", "logit_bias", "repetition_penalty", "draft", "draft_tokens", "response_format", "tools",
          "tool_choice", "chat_template_kwargs", "prompt_logprobs", "return_token_ids", "ignore_eos", "add_special_tokens", "tokens", "max_completion_tokens"]


def fuzz_bodies(server, rng, count):
    statuses = {}
    for _ in range(count):
        path = rng.choice(["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template"])
        body = {"prompt": "Once", "max_tokens": 2, "messages": [{"role": "user", "content": "a"}], "tokens": [5, 6]}
        if rng.random() < 0.5:
            sent = mutated(rng, body)
        else:
            for _ in range(rng.randrange(1, 5)):
                body[rng.choice(FIELDS)] = rng.choice(ODD)
            if body["max_tokens"] is None or body.get("max_completion_tokens", 0) is None:
                body["ignore_eos"] = False
            sent = json.dumps(body).encode()
        status, headers, text = server.ask("POST", path, sent)
        assert status in (200, 400, 404), (sent, status, text)
        if headers["Content-Type"].startswith("application/json"):
            answer = json.loads(text)
            assert (status == 200) != ("error" in answer), (sent, status, text)
        else:
            events(text)
        statuses[status] = statuses.get(status, 0) + 1
    assert statuses.get(200, 0) > count // 20 and statuses.get(400, 0) > count // 5, statuses


def fuzz_bytes(server, rng, count):
    """What is no HTTP, or only its beginning."""
    whole = b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n{"prompt": "a", "max_tokens": 2}'
    for _ in range(count):
        text = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(text))
            text[at:at + rng.randrange(3)] = bytes(rng.randrange(256) for _ in range(rng.randrange(4)))
        sock = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        try:
            sock.sendall(bytes(text[:rng.randrange(len(text) + 1)]))
            sock.settimeout(0.01)
            sock.recv(10000)
        except (TimeoutError, ConnectionError):
            pass
        sock.close()


def fuzz_without_tokenizer(server, rng, count):
    for _ in range(count // 4):
        status, _, text = server.ask("POST", rng.choice(["/v1/completions", "/tokenize", "/v1/chat/completions"]),
                                     mutated(rng, {"prompt": [5, 6], "max_tokens": 2, "stop": ["a"] if rng.random() < 0.2 else None, "echo": True, "logprobs": 2}))
        assert status in (200, 400, 404), text
