#!/usr/bin/env python3
"""Every allocation of `verbatim serve` fails in its turn, those of jansson and libmicrohttpd too: the request gets status 500, or its
connection is closed, and the server goes on. The next request gets the same bytes as ever, and no block is left behind. Run in the
repository's root; build/tests/fail_memory.so is preloaded.

    test_serve_memory.py [--all] [VERBATIM [NAME...]]     --all: every allocation, not a sample. NAME: these requests alone
"""

import http.client
import json
import mmap
import os
import re
import sys
import tempfile
import time

ALL = "--all" in sys.argv
if ALL:
    sys.argv.remove("--all")

from serving import TALE, VERBATIM, Server, run_tests  # noqa: E402  (it reads the command line)
from test_serve_meaning import FORCED, MARKS, V31, Model, history  # noqa: E402

SAMPLE = 3            # of so many allocations one fails in `make test`
NEVER = 1 << 60
HAS_ASAN = "ASAN_OPTIONS" in os.environ # which finds leaks itself, and allocates some blocks by other names
FAIL_MEMORY = os.path.abspath(os.path.join(os.path.dirname(VERBATIM), "tests/fail_memory.so"))

SCHEMA = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 3}, "sons": {"enum": [1, 2.5]}}}
SAID = [{"role": "system", "content": [{"type": "text", "text": "In a \"deep\" forest"}]}, {"role": "user", "content": "there lived\n<|end_of_sentence|>"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "number", "minimum": 0.12345678901234567}}}}}]
ESCAPES = "a" + 60 * "\x01"  # jansson's buffer has to grow, to 512 bytes, between a backslash and its u
PLAIN = {"prompt": "Once upon a time \"there\"", "max_tokens": 4, "temperature": 0, "seed": 3}
REQUESTS = {
    "completion": ("/v1/completions", dict(PLAIN, stop=["never said"], logit_bias={"7": 1.2345678901234567}, return_token_ids=True, stop_token_ids=[9], user=ESCAPES)),
    "drafts": ("/v1/completions", dict(PLAIN, max_tokens=9, draft="mtp-eagle", draft_tokens=2)),
    "stream": ("/v1/completions", dict(PLAIN, stream=True, stream_options={"include_usage": True}, logprobs=2)),
    "chat": ("/v1/chat/completions", {"messages": SAID, "tools": TOOLS, "max_tokens": 3, "temperature": 0, "seed": 3, "logprobs": True, "top_logprobs": 1}),
    "choices": ("/v1/completions", dict(PLAIN, n=2, logprobs=3, seed=5, temperature=1, prompt=["Once", "In a deep"])),
    "schema": ("/v1/completions", dict(PLAIN, max_tokens=40, response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}})),
    "echo": ("/v1/completions", dict(PLAIN, echo=True, logprobs=1, max_tokens=1, prompt=[5, 6, 7, 8], prompt_logprobs=1)),
    "tokenize": ("/tokenize", {"prompt": "Once \u00e9\u4e2d upon", "return_token_strs": True}),
    "template": ("/apply-template", {"messages": SAID, "chat_template_kwargs": {"a_long_enough_name": True}}),
    "no_json": ("/v1/completions", '{"prompt": "Once", "max_tokens": 1234567890123456789012}'),
    "models": ("/v1/models", None),
    "calls": ("/v1/chat/completions", dict(FORCED, messages=history()[:3], tool_choice="required", parallel_tool_calls=False, max_tokens=60)),
}
CALLING = Model(V31, [*MARKS[V31], "<think>", "</think>"])  # answers "calls"


class Memory:
    """The numbers of tests/support/fail_memory.c."""

    def __init__(self, path):
        with open(path, "wb") as file:
            file.write(NEVER.to_bytes(8, "little") + (1).to_bytes(8, "little") + bytes(16))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 32)

    def numbers(self):
        return memoryview(self.map).cast("q")

    def arm(self, after, burst):
        self.numbers()[1] = burst
        self.numbers()[0] = after

    def disarm(self):
        """Whether an allocation failed."""
        reached = self.numbers()[0] < 0
        self.numbers()[0] = NEVER
        return reached

    def alive(self):
        return self.numbers()[3]


def ask(server, name):
    """(status, text) without what differs between equal requests; (0, "") where the connection was closed."""
    path, body = REQUESTS[name]
    try:
        status, _, text = server.ask("GET" if body is None else "POST", path, body)
    except (http.client.HTTPException, ConnectionError):
        return 0, ""
    text = re.sub(r'"(id|created|cached_tokens|preemptions|passes|drafted|accepted)": ("(cht)?cmpl-[^"]*"|"chatcmpl-[^"]*"|\d+)', "", text)
    return status, text


def check(name, number, got, wanted):
    status, text = got
    if got == wanted or status == 0:
        return
    if status == 200 and '"error"' in text:  # of a stream that had begun
        error = re.search(r'data: (\{"error".*\})', text)
        assert error and json.loads(error[1])["error"]["type"] == "server_error", f"{name}, allocation {number}: {text}"
        return
    assert status == 500, f"{name}, allocation {number} fails: {got}\ninstead of {wanted}"
    error = json.loads(text)["error"]
    assert error["type"] == "server_error" and len(error["message"]) > 10, f"{name}, allocation {number}: {text}"


def sweep(server, memory, name, burst):
    """Lets one allocation after the other fail. Returns how many there are, how many requests failed, and how many of them were
    answered; the others found their connection closed."""
    wanted = ask(server, name)
    number = failures = answered = 0
    while True:
        memory.arm(number, burst)
        got = ask(server, name)
        if not memory.disarm():
            return number, failures, answered
        assert server.process.poll() is None, f"{name}, allocation {number} fails: the server ended: {server.log()[-2000:]}"
        check(name, number, got, wanted)
        failures += got != wanted
        answered += got != wanted and got[0] != 0
        again = ask(server, name)
        assert again == wanted, f"{name}, after allocation {number} had failed: {again}\ninstead of {wanted}"
        number += 1 if ALL else SAMPLE


def blocks_at_rest(server, memory, name):
    """How many blocks are in use between requests: the library frees those of a connection a little after its client has read all."""
    for _ in range(20):
        ask(server, name)
    least = memory.alive()
    for _ in range(20):
        time.sleep(0.005)
        least = min(least, memory.alive())
    return least


def run(name):
    """Starts a server and lets the allocations of a request fail; a burst of failures, too."""
    with tempfile.NamedTemporaryFile() as file:
        memory = Memory(file.name)
        os.environ.update(LD_PRELOAD=FAIL_MEMORY, FAIL_MEMORY=file.name)
        try:
            server = Server(CALLING.folder.name if name == "calls" else TALE, "--max-sequences", "4")
        finally:
            del os.environ["LD_PRELOAD"], os.environ["FAIL_MEMORY"]
        with server:
            before = blocks_at_rest(server, memory, name)
            for burst in (1, 7) if ALL else (1,):
                count, failures, answered = sweep(server, memory, name, burst)
                after = blocks_at_rest(server, memory, name)
                print(f"{name}: {count} allocations, {failures} requests failed, {answered} with an answer, {after} blocks")
                assert after <= before or HAS_ASAN, f"{name}: {before} blocks were in use, and now {after}"
                assert failures > 0, "no request failed: the test shows nothing"
                # Of a short request a burst takes the memory of the answer as well.
                assert answered > 0 or burst > 1, f"{name}: no failure was answered"


def test_of(name):
    def test():
        run(name)
    test.__name__ = name
    return test


if __name__ == "__main__":
    sys.exit(run_tests([test_of(name) for name in REQUESTS]))
