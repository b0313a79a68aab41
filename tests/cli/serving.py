"""What tests of `verbatim serve` share: a server on a free port, answers in one form, and what `verbatim generate` says to the same
request. Needs Python's standard library alone. The program is the first argument; run in the repository's root."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import running

VERBATIM = sys.argv[1] if len(sys.argv) > 1 else "build/verbatim"
TALE, TINY = "golden/tale", "golden/tiny/v3-mtp3"
PATIENCE = 600  # seconds after which something hangs, under sanitizers on a busy machine too; no test measures time


class Server:
    def __init__(self, model, *options):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([VERBATIM, "serve", model, "--port", "0", *options], stderr=self.errors, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(r"listening on http://\S*:(\d+)\n", self.log())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server does not start: {self.log()}")
            time.sleep(0.02)
        self.port = int(found[1])

    def log(self):
        return os.pread(self.errors.fileno(), 1 << 24, 0).decode(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        if self.process.poll() is None and kind is None:
            self.stop()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if kind:
            print(self.log()[-2000:])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert code == 0, f"after SIGTERM the exit code is {code}: {self.log()[-4000:]}"

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, text)"""
        connection = self.connect()
        try:
            send = {"Content-Type": "application/json"} if body is not None else {}
            send.update(headers or {})
            connection.request(method, path, body if body is None or isinstance(body, (bytes, str)) else json.dumps(body), send)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def get(self, path):
        status, _, text = self.ask("GET", path)
        assert status == 200, f"{path}: {status} {text}"
        return text

    def post(self, path, body):
        status, _, text = self.ask("POST", path, body)
        assert status == 200, f"{path} {json.dumps(body)[:300]}: {status} {text}"
        return json.loads(text)

    def metric(self, name, label=""):
        for line in self.get("/metrics").split("\n"):
            if line.startswith(f"verbatim:{name}{{") and label in line:
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def sequences(self):
        """How many run or wait."""
        return self.metric("num_requests_running") + self.metric("num_requests_waiting")

    def send(self, body, path="/v1/completions", small=False):
        """A socket that has sent a request, in HTTP 1.0, and reads nothing. `small`: with little room for what it does not read."""
        sock = socket.socket()
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", self.port))
        sock.sendall(raw_post(body, path, "1.0"))
        return sock

    def wait_for(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.01)


def raw_post(body, path="/v1/completions", version="1.1"):
    """A request's bytes."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


def tale_with(folder, files):
    """Makes of `folder` a copy of golden/tale in which these files have other texts, or are left out (None)."""
    os.makedirs(folder, exist_ok=True)
    for name in set(os.listdir(TALE)) - set(files):
        os.symlink(os.path.abspath(f"{TALE}/{name}"), f"{folder}/{name}")
    for name, text in files.items():
        if text is not None:
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)
    return folder


def events(text):
    """The objects of a stream that ended as it should."""
    lines = [line for line in text.split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines), lines[:5]
    assert lines[-1] == "data: [DONE]", lines[-1]
    return [json.loads(line[6:]) for line in lines[:-1]]


def join(chunks):
    """What the chunks of a stream say together, as the choices of a whole answer."""
    choices = {}
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for piece in chunk["choices"]:
            whole = choices.setdefault(piece["index"], {"index": piece["index"], "text": "", "token_ids": [], "logprobs": None})
            assert whole.get("finish_reason") is None, "an event after the last one"
            delta = piece.get("delta")
            whole["text"] += piece["text"] if delta is None else delta["content"]
            whole["token_ids"] += piece.get("token_ids", [])
            if piece.get("logprobs"):
                whole["logprobs"] = whole["logprobs"] or {}
                for key, value in piece["logprobs"].items():
                    if isinstance(value, list):
                        whole["logprobs"].setdefault(key, []).extend(value)
            whole["finish_reason"] = piece["finish_reason"]
            for key in ("prompt_token_ids", "prompt_logprobs"):
                whole.setdefault(key, piece.get(key))
            if piece["finish_reason"]:
                whole["fingerprint"] = piece["verbatim"]["fingerprint"]
                whole["seed"] = piece["verbatim"]["seed"]
    return [choices[i] for i in sorted(choices)]


def choices_of(server, body, path="/v1/completions"):
    """The choices of an answer, whole or streamed, in one form."""
    if body.get("stream"):
        status, _, text = server.ask("POST", path, body)
        assert status == 200, text
        return join(events(text))
    answer = server.post(path, body)
    for choice in answer["choices"]:
        verdict = choice.get("verbatim") or answer["verbatim"]
        choice["fingerprint"], choice["seed"] = verdict["fingerprint"], verdict["seed"]
        if "message" in choice:
            choice["text"] = choice["message"]["content"]
    return answer["choices"]


# ---- what generate says ----

WORDS = {"temperature": "--temperature", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "seed": "--seed", "max_tokens": "-n",
         "repetition_penalty": "--repetition-penalty", "presence_penalty": "--presence-penalty", "frequency_penalty": "--frequency-penalty"}
told = {}
told_lock = threading.Lock()


def generate(model, body, *more):
    """{text, tokens, finish_reason, fingerprint} of `verbatim generate --json` with what the body asks for."""
    words = [VERBATIM, "generate", model, "--json", *more]
    if isinstance(body.get("prompt"), str):
        words += ["--prompt", body["prompt"]]
    elif "prompt" in body:
        words += ["--tokens", ",".join(map(str, body["prompt"]))]
    for field, option in WORDS.items():
        if field in body:
            words += [option, str(body[field])]
    if "temperature" not in body:
        words += ["--temperature", "1"]
    for text in [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop", []):
        words += ["--stop", text]
    if body.get("logit_bias"):
        words += ["--logit-bias", ",".join(f"{token}:{value}" for token, value in body["logit_bias"].items())]
    if body.get("ignore_eos"):
        words += ["--ignore-eos"]
    key = tuple(words)
    with told_lock:
        if key not in told:
            ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
            assert ran.returncode == 0, f"{words}: {ran.stdout} {ran.stderr}"
            told[key] = json.loads(ran.stdout)
        return told[key]


def compare(choice, wanted, about):
    assert choice["token_ids"] == wanted["tokens"], f"{about}: ids {choice['token_ids']}, generate says {wanted['tokens']}"
    assert choice["text"] == (wanted["text"] or ""), f"{about}: text {choice['text']!r}, generate says {wanted['text']!r}"
    assert choice["finish_reason"] == wanted["finish_reason"], f"{about}: {choice['finish_reason']}, generate says {wanted['finish_reason']}"
    assert choice["fingerprint"] == wanted["fingerprint"], f"{about}: fingerprint {choice['fingerprint']}, generate says {wanted['fingerprint']}"


def check_against_generate(server, model, body):
    wanted = generate(model, body)
    choice, = choices_of(server, body)
    compare(choice, wanted, json.dumps(body))


def run_tests(tests):
    """Runs them, or those that the command line names; returns the exit code."""
    asked = subprocess.run([VERBATIM, "serve", TALE, "--port", "0", "--host", "256.1.1.1"], capture_output=True, text=True, timeout=PATIENCE)
    if "this build has no HTTP server" in asked.stderr:
        print("skipped: this build has no HTTP server")
        return 0
    return running.run_tests(tests)
