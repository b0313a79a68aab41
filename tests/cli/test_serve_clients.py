#!/usr/bin/env python3
"""`verbatim serve` and clients that are wrong, slow, gone or forbidden: errors, keys, signals, the log, malformed requests. Needs
Python's standard library alone. Run in the repository's root.

    test_serve_clients.py [VERBATIM [NAME...]]     NAME: these tests alone
"""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from serving import PATIENCE, TALE, TINY, VERBATIM, Server, check_against_generate, events, generate, join, run_tests
from serving_fuzz import fuzz_bodies, fuzz_bytes, fuzz_without_tokenizer

TURN = int(os.environ.get("VERBATIM_TURN") or 0)  # of `make test`: at each commit other malformed requests, and one of two signals


# ---- errors ----

def refusals_name_the_field():
    chat, text = "/v1/chat/completions", "/v1/completions"
    ok = {"prompt": "Once", "max_tokens": 1}
    hello = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    cases = [
        (text, {}, 400, "prompt"), (text, {"prompt": ""}, 400, "prompt"), (text, {"prompt": []}, 400, "prompt"), (text, {"prompt": [[]]}, 400, "prompt"),
        (text, {"prompt": [1024]}, 400, "prompt"), (text, {"prompt": [-1]}, 400, "prompt"), (text, {"prompt": [5, "a"]}, 400, "prompt"),
        (text, {"prompt": {"a": 1}}, 400, "prompt"), (text, {"prompt": [1.5]}, 400, "prompt"), (text, {"prompt": ["a"] * 600}, 400, "prompt"),
        (text, {"prompt": [5] * 2048}, 400, "prompt"), (text, dict(ok, model="gpt"), 404, "model"), (text, dict(ok, model=5), 400, "model"),
        (text, dict(ok, n=17), 400, "n"), (text, dict(ok, n=0), 400, "n"), (text, dict(ok, n=1.5), 400, "n"), (text, dict(ok, temperature=-1), 400, "temperature"),
        (text, dict(ok, temperature="hot"), 400, "temperature"), (text, dict(ok, temperature=1e-9), 400, "temperature"),
        (text, dict(ok, top_p=1.5), 400, "top_p"), (text, dict(ok, seed=-1), 400, "seed"), (text, dict(ok, seed="x"), 400, "seed"),
        (text, dict(ok, max_tokens=-1), 400, "max_tokens"), (text, dict(ok, stop=""), 400, "stop"), (text, dict(ok, stop=["a"] * 17), 400, "stop"),
        (text, dict(ok, stop=[5]), 400, "stop"), (text, dict(ok, stop_token_ids=[99999]), 400, "stop_token_ids"), (text, dict(ok, stream="yes"), 400, "stream"),
        (text, dict(ok, logprobs=21), 400, "logprobs"), (text, dict(ok, logit_bias={"a": 1}), 400, "logit_bias"),
        (text, dict(ok, logit_bias={"5": 101}), 400, "logit_bias"), (text, dict(ok, logit_bias={"05": 1, "5": 2}), 400, "logit_bias"),
        (text, dict(ok, logit_bias=[1]), 400, "logit_bias"), (text, dict(ok, draft="magic"), 400, "draft"), (text, dict(ok, draft="callback"), 400, "draft"),
        (text, dict(ok, draft="draft-model"), 400, "draft"), (text, dict(ok, draft_tokens=16), 400, "draft_tokens"),
        (text, dict(ok, draft_tokens="many"), 400, "draft_tokens"), (text, dict(ok, best_of=3), 400, "best_of"), (text, dict(ok, suffix="x"), 400, "suffix"),
        (text, dict(ok, stream_options={"include_usage": True}), 400, "stream_options"),
        (text, dict(ok, response_format={"type": "grammar"}), 400, "response_format"), (text, dict(ok, guided_json={"type": "object"}), 400, "guided_json"),
        (chat, {}, 400, "messages"), (chat, {"messages": []}, 400, "messages"), (chat, {"messages": [5]}, 400, "messages"),
        (chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"), (chat, {"messages": [{"content": "x"}]}, 400, "messages"),
        (chat, dict(hello, tool_choice="required", tools=[]), 400, "tool_choice"), (chat, dict(hello, tools={}), 400, "tools"),
        (chat, dict(hello, logprobs=3), 400, "logprobs"), (chat, dict(hello, top_logprobs=3), 400, "top_logprobs"),
        (chat, dict(hello, functions=[{"name": "f"}]), 400, "functions"), (chat, dict(hello, chat_template_kwargs=5), 400, "chat_template_kwargs"),
        ("/tokenize", {}, 400, "prompt"), ("/tokenize", {"prompt": 5}, 400, "prompt"), ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {"tokens": [99999]}, 400, "tokens"), ("/apply-template", {}, 400, "messages"),
        (text, [1], 400, None), (text, "{", 400, None), (text, "", 400, None), (text, '{"prompt": "a", "prompt": "b"}', 400, None),
        (text, b'{"prompt": "\xff"}', 400, None), (text, "[" * 100000, 400, None), (text, '{"a": 1' + "0" * 500 + "}", 400, None),
        (text, '{"a": 1' + "0" * 100 + "}", 400, None), (text, '{"a": ' + "t" * 101 + "}", 400, None),
    ]
    with Server(TALE) as server:
        for path, body, wanted, field in cases:
            status, _, answer = server.ask("POST", path, body)
            about = f"{path} {str(body)[:100]}: {status} {answer[:300]}"
            error = json.loads(answer)["error"]
            assert status == wanted and error["param"] == field, about
            assert len(error["message"]) > 10 and error["type"] and set(error) == {"message", "type", "param", "code"}, about
        for body in (dict(ok, stop=None, seed=None, n=None, user="me", banana=5), dict(ok, best_of=1, suffix="", response_format={"type": "text"}),
                     json.dumps(ok)[:-1] + ", \"banana\": 0." + "5" * 98 + "}"):
            server.post(text, body)
        assert server.log().count("banana") == 1, "an unknown field is named once"
        server.post(text, dict(ok, banana=6))
        assert server.log().count("banana") == 1, "an unknown field is named once"


def methods_paths_and_bodies():
    with Server(TALE) as server:
        for method, path, status in (("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("GET", "/nothing", 404), ("POST", "/v1/responses", 404),
                                     ("GET", "/v1/models/other", 404), ("OPTIONS", "/v1/completions", 405), ("DELETE", "/health", 405)):
            got, headers, text = server.ask(method, path, {} if method == "POST" else None)
            assert got == status and json.loads(text)["error"]["message"], (method, path, got, text)
            assert (headers["Allow"] is not None) == (status == 405)
        assert server.ask("HEAD", "/health")[0] == 200
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
            assert server.ask("POST", "/v1/completions", "{}", {"Content-Type": kind})[0] == 415
        assert server.ask("POST", "/v1/completions", '{"prompt": "a", "max_tokens": 1}', {"Content-Type": "application/json; charset=utf-8"})[0] == 200
        assert server.ask("POST", "/v1/completions", b" " * ((16 << 20) + 1))[0] == 413
        assert server.ask("POST", "/v1/completions", b" " * (16 << 20))[0] == 400
        connection = server.connect()
        connection.request("POST", "/v1/completions", iter([b" " * (1 << 20)] * 17), {"Content-Type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413
        assert server.ask("POST", "/v1/completions", b"", {"Content-Length": str(1 << 40)})[0] == 413
        connection = server.connect() # more than one request on a connection
        for _ in range(3):
            connection.request("POST", "/tokenize", '{"prompt": "a"}', {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200 and answer.read()


def keys_hosts_and_origins():
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("sesame\n")
        file.flush()
        with Server(TALE, "--api-key-file", file.name, "--cors", "https://example.org") as server:
            for key, status in ((None, 401), ("Bearer sesamf", 401), ("Bearer sesame1", 401), ("Bearer sesam", 401), ("Bearer ", 401), ("sesame", 401),
                                ("Bearer sesame", 200), ("bearer sesame", 200)):
                got, headers, text = server.ask("GET", "/v1/models", headers={"Authorization": key} if key else {})
                assert got == status, (key, got, text)
                assert headers["Access-Control-Allow-Origin"] == "https://example.org"
            assert server.ask("GET", "/health")[0] == 200 and server.ask("GET", "/metrics")[0] == 401
            assert server.ask("POST", "/v1/completions", {"prompt": "a"})[0] == 401
            status, headers, _ = server.ask("OPTIONS", "/v1/completions", headers={"Origin": "https://example.org", "Access-Control-Request-Method": "POST"})
            assert status == 204 and "authorization" in headers["Access-Control-Allow-Headers"]
            assert server.ask("GET", "/v1/models", headers={"Authorization": "Bearer sesame", "Host": "evil.example"})[0] == 200
    with Server(TALE) as server:
        for host, status in (("evil.example", 403), ("evil.example:80", 403), ("localhost:5", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("127.0.0.1.nip.io", 403)):
            got, headers, _ = server.ask("GET", "/v1/models", headers={"Host": host})
            assert got == status, (host, got)
            assert headers["Access-Control-Allow-Origin"] is None
        assert "reachable from other machines" not in server.log()
    with Server(TALE, "--host", "0.0.0.0") as server:
        assert "reachable from other machines" in server.log()


def wrong_command_lines_are_refused():
    with tempfile.NamedTemporaryFile() as empty:
        for options, code in ((["--port", "70000"], 2), (["--host", "256.1.1.1"], 1), (["--api-key-file", "/nonexistent"], 1), (["--api-key-file", empty.name], 2),
                              (["--context", "4096"], 2), (["--max-sequences", "65"], 2), (["--draft", "magic"], 2), (["--prompt", "x"], 2)):
            ran = subprocess.run([VERBATIM, "serve", TALE, "--port", "0", *options], capture_output=True, text=True, timeout=PATIENCE)
            assert ran.returncode == code and ran.stderr.startswith("verbatim: "), (options, ran)
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    ran = subprocess.run([VERBATIM, "serve", TALE, "--port", str(taken.getsockname()[1])], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 1 and "in use" in ran.stderr, ran
    assert subprocess.run([VERBATIM, "serve", "golden/nothing", "--port", "0"], capture_output=True, timeout=PATIENCE).returncode == 1


# ---- clients that go away, that are slow, and signals ----

LONG = {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "temperature": 0, "logprobs": 20, "n": 4, "stream": True}


def read_all(sock):
    """Comments keep a stream alive that has no news, so there is a limit on the whole of it, too."""
    parts, deadline = [], time.monotonic() + 3 * PATIENCE
    while part := sock.recv(1 << 16):
        parts.append(part)
        assert time.monotonic() < deadline, b"".join(parts)[-200:]
    return b"".join(parts).decode()


def a_client_that_goes_away_is_cancelled():
    with Server(TALE) as server:
        sock = server.send(LONG, small=True)
        sock.recv(100)
        sock.close()
        server.wait_for("the end of a stream that nobody reads", lambda: server.sequences() == 0)
        assert server.metric("request_success_total", "abort") == 4, server.get("/metrics")
        connection = server.connect() # one that waits for its whole answer, behind others
        slow = server.send(dict(LONG, n=8), small=True)
        connection.request("POST", "/v1/completions", json.dumps(dict(LONG, stream=False, n=16)), {"Content-Type": "application/json"})
        server.wait_for("both requests", lambda: server.sequences() == 24)
        connection.close()
        slow.close()
        server.wait_for("the end of requests that nobody reads", lambda: server.sequences() == 0)
        assert server.metric("request_success_total", "length") == 0, "a client went away, and its answer was computed to the end"
        check_against_generate(server, TALE, {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "return_token_ids": True})


def a_client_may_go_away_while_its_prompt_is_read():
    """The rows of its prompt, which echo and log-probabilities want, are then incomplete. It shuts down its side and reads on."""
    prompt = [5 + i % 900 for i in range(1500)]
    with Server(TALE, "--prefill-chunk", "1") as server:
        for i in range(10):
            sock = server.send({"prompt": prompt[i:], "max_tokens": 2, "echo": True, "logprobs": 2, "prompt_logprobs": 2, "n": 2, "stream": True}, small=True)
            server.wait_for("the request", lambda: server.sequences() == 2)
            sock.shutdown(socket.SHUT_WR)
            read_all(sock)
            sock.close()
            server.wait_for("its end", lambda: server.sequences() == 0)
        assert server.metric("request_success_total", "abort") > 10, "no prompt was left: the test shows nothing"
        check_against_generate(server, TALE, {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "return_token_ids": True})


def a_slow_reader_stalls_nobody_and_loses_nothing():
    with Server(TALE, "--max-sequences", "4") as server:
        slow = server.send(LONG, small=True)
        server.wait_for("the first tokens", lambda: server.metric("time_to_first_token_seconds_count") >= 4)
        for _ in range(3):
            check_against_generate(server, TALE, {"prompt": "In a deep forest", "max_tokens": 30, "temperature": 0, "return_token_ids": True})
        server.wait_for("the slow reader's sequences alone", lambda: server.sequences() == 4)  # the last answer may be sent before its end is counted
        head, _, text = read_all(slow).partition("\r\n\r\n")
        assert " 200 " in head.split("\r\n")[0]
        wanted = generate(TALE, {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "temperature": 0})
        chunks = events(text)
        assert [sum(chunk["choices"][0]["index"] == i for chunk in chunks) for i in range(4)] == 4 * [2000], "passes share an event where the reader is slow"
        for choice in join(chunks):
            assert choice["text"] == wanted["text"] and choice["fingerprint"] == wanted["fingerprint"]
            assert len(choice["logprobs"]["tokens"]) == 2000


def a_full_line_refuses():
    with Server(TALE, "--max-sequences", "1", "--max-waiting", "3") as server:
        slow = server.send(LONG, small=True)
        server.wait_for("the first request", lambda: server.sequences() == 4)
        status, headers, text = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert status == 429 and headers["Retry-After"] and json.loads(text)["error"]["code"] == "queue_full", text
        slow.close()
        server.wait_for("room", lambda: server.sequences() == 0)
        server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})


def sigterm_lets_requests_finish_and_refuses_new_ones():
    for number in (signal.SIGTERM, signal.SIGINT)[TURN % 2:][:1] if TURN else (signal.SIGTERM, signal.SIGINT):
        with Server(TALE) as server:
            slow = server.send(LONG, small=True)
            server.wait_for("the first request", lambda: server.sequences() == 4)
            server.process.send_signal(number)
            server.wait_for("a refusal", lambda: server.ask("GET", "/health")[0] == 503)
            status, headers, _ = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
            assert status == 503 and headers["Retry-After"]
            text = read_all(slow).partition("\r\n\r\n")[2]
            assert {choice["finish_reason"] for choice in join(events(text))} == {"length"}
            assert server.process.wait(PATIENCE) == 0


def refuses(server):
    """None: it is gone."""
    try:
        return server.ask("GET", "/health")[0] == 503
    except ConnectionError:
        return None


def an_answer_that_is_computed_is_sent_before_the_end():
    """Its tokens are too few for a pause, and too many bytes for the buffers of the sockets."""
    with Server(TALE) as server:
        slow = server.send(dict(LONG, max_tokens=900), small=True)
        server.wait_for("the end of its sequences", lambda: server.metric("request_success_total", "length") == 4)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("a refusal", lambda: refuses(server) is not False)
        for _ in range(200):  # a server that does not wait is gone meanwhile
            assert refuses(server), "the server ended before it had sent an answer"
        text = read_all(slow).partition("\r\n\r\n")[2]
        assert [len(choice["logprobs"]["tokens"]) for choice in join(events(text))] == 4 * [900]
        assert server.process.wait(PATIENCE) == 0


def a_second_signal_ends_at_once():
    with Server(TALE) as server:
        slow = server.send(LONG, small=True)
        server.wait_for("the first request", lambda: server.sequences() == 4)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("a refusal", lambda: server.ask("GET", "/health")[0] == 503)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 128 + signal.SIGTERM
        slow.close()


def the_log_has_lines_and_no_prompts():
    with tempfile.TemporaryDirectory() as folder:
        for options, has_prompt in (([], False), (["--log-prompts"], True)):
            log = os.path.join(folder, f"log{len(options)}")
            with Server(TALE, "--log", log, *options) as server:
                server.post("/v1/completions", {"prompt": "In a deep\nforest", "max_tokens": 3})
                server.wait_for("a line", lambda: os.path.getsize(log) > 0)
                os.rename(log, log + ".1")
                server.process.send_signal(signal.SIGHUP)
                server.wait_for("the new file", lambda: os.path.exists(log))
                server.get("/version")
                server.wait_for("a line", lambda: os.path.getsize(log) > 0)
                first, second = open(log + ".1").read(), open(log).read()
                assert re.fullmatch(r"\S+ \S+ POST /v1/completions 200 cmpl-\w+ prompt \d+ new 3 seconds [\d.]+( .*)?\n", first), first
                assert ('"In a deep\\nforest"' in first) == has_prompt and re.fullmatch(r"\S+ \S+ GET /version 200\n", second), (first, second)


# ---- what is no request ----

def malformed_requests_do_no_harm():
    count = int(os.environ.get("SERVE_FUZZ", "100"))
    for model in (TALE, TINY):
        with Server(model) as server:
            fuzz_bodies_of = fuzz_bodies if model == TALE else fuzz_without_tokenizer
            fuzz_bodies_of(server, random.Random(8 + TURN), count)
            fuzz_bytes(server, random.Random(9 + TURN), count // 4)
            server.wait_for("the end of all", lambda: server.sequences() == 0)
            check_against_generate(server, model, {"prompt": [5, 6, 7], "max_tokens": 30, "temperature": 0, "return_token_ids": True})


TESTS = [refusals_name_the_field, methods_paths_and_bodies, keys_hosts_and_origins, wrong_command_lines_are_refused,
         a_client_that_goes_away_is_cancelled, a_client_may_go_away_while_its_prompt_is_read, a_slow_reader_stalls_nobody_and_loses_nothing, a_full_line_refuses,
         sigterm_lets_requests_finish_and_refuses_new_ones, an_answer_that_is_computed_is_sent_before_the_end, a_second_signal_ends_at_once, the_log_has_lines_and_no_prompts,
         malformed_requests_do_no_harm]


if __name__ == "__main__":
    sys.exit(run_tests(TESTS))
