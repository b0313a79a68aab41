#!/usr/bin/env python3
"""tests/serve_load.py: its counts are right, its percentiles too, and it notices failures and answers that differ. No test looks at
how long something takes. Needs Python's standard library alone. Run in the repository's root.

    test_serve_load.py [VERBATIM [NAME...]]     NAME: these tests alone
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

from serving import PATIENCE, TALE, VERBATIM, run_tests

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import serve_load  # noqa: E402


def load(*words, code=0):
    ran = subprocess.run([sys.executable, "tests/serve_load.py", "--verbatim", VERBATIM, *words], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == code, f"{words}: {ran.returncode} {ran.stdout} {ran.stderr}"
    return ran


def report(*words, code=0):
    return json.loads(load("--json", *words, code=code).stdout)


def check_times(found, count):
    """What is true of every run, however fast."""
    for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token", "request_latency"):
        row = found[name]
        assert 0 <= row["p50"] <= row["p90"] <= row["p99"] <= row["max"] <= found["seconds"], (name, row)
    assert found["time_to_first_token"]["max"] <= found["request_latency"]["max"]
    assert abs(found["output_tokens_per_second"] * found["seconds"] - count) < 1e-6 * count
    assert found["client_processor_seconds"] > 0


def counts_are_those_of_the_requests():
    found = report("--concurrency", "3", "--requests", "9", "--prompt-tokens", "5", "--max-tokens", "11", "--ignore-eos", "--check", "--", TALE)
    assert (found["requests"], found["answered"], found["errors"]) == (9, 9, {}), found
    assert (found["prompt_tokens"], found["output_tokens"], found["events"]) == (45, 99, 99), found
    assert (found["checked"], found["different"]) == (9, []), found
    check_times(found, 99)
    found = report("--rate", "200", "--requests", "7", "--prompt-tokens", "3:6", "--max-tokens", "4", "--ignore-eos", "--whole", "--check", "--", TALE)
    assert (found["answered"], found["output_tokens"], found["events"]) == (7, 28, 0) and 21 <= found["prompt_tokens"] <= 42, found
    assert found["inter_token_latency"] is None and not found["different"]


def drafts_share_an_event():
    found = report("--prompts", "golden/tale/prompts.jsonl", "--requests", "3", "--max-tokens", "24", "--ignore-eos", "--", TALE, "--draft", "mtp-eagle")
    assert found["output_tokens"] == 72 and 3 <= found["events"] < 72, found


def lines_are_those_of_generate():
    with tempfile.TemporaryDirectory() as folder:
        prompts, answers, details = (os.path.join(folder, name) for name in ("prompts", "answers", "details"))
        load("--requests", "4", "--prompt-tokens", "2:9", "--vocabulary", "1000", "--seed", "3", "--write-prompts", prompts, "--url", "http://127.0.0.1:9")
        with open(prompts, "a", encoding="utf-8") as file:
            file.write('{"prompt": "Once", "max_tokens": 3, "id": 5}\n\n{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}\n')
        subprocess.run([VERBATIM, "generate", TALE, "--prompts", prompts, "-o", answers, "-n", "6"], check=True, capture_output=True, timeout=PATIENCE)
        with open(answers, encoding="utf-8") as file:
            wanted = [json.loads(line) for line in file]
        found = report("--prompts", prompts, "--max-tokens", "6", "--details", details, "--", TALE)
        assert found["requests"] == 6 and found["output_tokens"] == sum(len(each["tokens"]) for each in wanted), found
        assert found["prompt_tokens"] == sum(each["prompt_tokens"] for each in wanted), found
        with open(details, encoding="utf-8") as file:
            kept = [json.loads(line) for line in file]
        assert sorted(each["usage"]["completion_tokens"] for each in kept) == sorted(len(each["tokens"]) for each in wanted)
        assert all(0 <= each["sent"] <= each["events"][0] <= each["events"][-1] <= each["end"] for each in kept), kept


def failures_are_counted_by_reason():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write('{"prompt": "Once", "max_tokens": 2}\n{"tokens": [99999]}\n{"tokens": [99998]}\n')
        file.flush()
        found = report("--prompts", file.name, "--", TALE, code=1)
        assert (found["requests"], found["answered"], sum(found["errors"].values())) == (3, 1, 2), found
        assert all(message.startswith("status 400: ") for message in found["errors"]), found
        plain = load("--prompts", file.name, "--", TALE, code=1).stdout
        assert "1 of 3 requests answered" in plain and "1 times: status 400" in plain, plain


# ---- servers that are wrong ----

def event(text, **more):
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": None}], **more}).encode() + b"\n\n"


def chunked(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"


def against(answers, *words, code):
    """The report about a server that gives these answers, one on each connection."""
    def serve():
        for answer in answers:
            client, _ = listener.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(answer)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        requests = len(answers) // 2 if "--check" in words else len(answers)
        return report("--url", f"http://127.0.0.1:{listener.getsockname()[1]}", "--requests", str(requests), "--prompt-tokens", "1", "--vocabulary", "9",
                      *words, code=code)


def wrong_servers_are_noticed():
    whole = HEAD + chunked(event("a"), event("b"), USAGE, DONE) + b"0\r\n\r\n"
    cut = chunked(event("a"))
    found = against([whole, HEAD + cut, HEAD + cut + b"0\r\n\r\n", HEAD + chunked(b'data: {"error": {"message": "no"}}\n\n', DONE) + b"0\r\n\r\n",
                     b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"], code=1)
    assert found["answered"] == 1 and found["output_tokens"] == 2 and found["events"] == 2, found
    assert sorted(found["errors"]) == ["no", "status 500: no answer of an OpenAI-compatible server: b'no'", "the server closed the connection",
                                       "the stream ended without [DONE]"], found


def events_may_be_cut_anywhere():
    body = b"".join((event("a"), event("b"), USAGE, DONE))
    for size in (1, 7, 64):
        found = against([HEAD + chunked(*(body[i:i + size] for i in range(0, len(body), size))) + b"0\r\n\r\n"], code=0)
        assert (found["answered"], found["events"], found["output_tokens"]) == (1, 2, 2), found


def answers_that_differ_are_noticed():
    same, other = (HEAD + chunked(event("a"), event(text), USAGE, DONE) + b"0\r\n\r\n" for text in "bc")
    found = against([same, same, same, other], "--check", code=1)
    assert found["different"] == [1] and found["checked"] == 2, found


def percentiles_are_nearest_ranks():
    found = serve_load.percentiles(range(1, 101))
    assert found == {"mean": 50.5, "p50": 50, "p90": 90, "p99": 99, "max": 100}, found
    assert serve_load.percentiles([3.0]) == {"mean": 3.0, "p50": 3.0, "p90": 3.0, "p99": 3.0, "max": 3.0}
    assert serve_load.percentiles([]) is None


def wrong_words_are_refused():
    for words, code in ((["--url", "http://127.0.0.1:1", "--vocabulary", "9"], 1), (["--url", "ftp://x"], 1), ([], 2), (["--url", "http://x", "--", TALE], 2),
                        (["--rate", "5", "--concurrency", "2", "--", TALE], 2), (["--prompts", "/nonexistent", "--", TALE], 1), (["--", "golden/nothing"], 1),
                        (["--prompt-tokens", "5:3", "--", TALE], 2), (["--prompts", "README.md", "--", TALE], 1)):
        ran = load(*words, code=code)
        assert "serve_load.py: " in ran.stderr or ran.stdout, ran
        assert "Traceback" not in ran.stderr, ran.stderr


if __name__ == "__main__":
    sys.exit(run_tests([counts_are_those_of_the_requests, drafts_share_an_event, lines_are_those_of_generate, failures_are_counted_by_reason,
                        wrong_servers_are_noticed, events_may_be_cut_anywhere, answers_that_differ_are_noticed, percentiles_are_nearest_ranks,
                        wrong_words_are_refused]))
