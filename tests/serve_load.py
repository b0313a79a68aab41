#!/usr/bin/env python3
"""Loads a server with requests for streams, and reports latencies and throughput. Needs Python's standard library alone.

    serve_load.py [OPTIONS] -- MODEL [OPTIONS OF verbatim serve]     starts a server, and stops it at the end
    serve_load.py [OPTIONS] --url http://127.0.0.1:8080              uses a server that runs already

docs/SERVING.md describes the options and the report. The exit code is 1 if a request failed or, with --check, if an answer differs.
"""

import argparse
import heapq
import json
import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

SHARES = (50, 90, 99)
MOST_READ = 1 << 18


class Problem(Exception):
    """One sentence about what keeps the run from starting."""


# ---- requests ----

def read_lines(name):
    """The bodies that a file for `generate --prompts` asks for."""
    bodies = []
    try:
        with open(name, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                body = json.loads(line) if line.strip() else None
                if body is None:
                    continue
                if not isinstance(body, dict) or sum(key in body for key in ("prompt", "tokens", "messages")) != 1:
                    raise Problem(f"{name}: line {number}: wanted an object with one of the keys prompt, tokens, messages")
                bodies.append(body)
    except (OSError, ValueError) as error:
        raise Problem(f"{name}: {error}") from None
    if not bodies:
        raise Problem(f"{name}: there is no prompt in it")
    return bodies


def random_lines(options, vocabulary):
    """Prompts of random tokens; what a model treats as special is among the first and the last ids, which are left out."""
    chance = random.Random(options.seed)
    least, most = options.prompt_tokens
    edge = min(8, vocabulary // 4)
    return [{"tokens": [chance.randrange(edge, vocabulary - edge) for _ in range(chance.randint(least, most))]} for _ in range(options.requests)]


def request_of(line, number, options):
    """(path, body) for the server."""
    body = {"max_tokens": options.max_tokens, "temperature": 0, "seed": options.seed + number}
    body.update({key: value for key, value in line.items() if key not in ("tokens", "id")})
    if "tokens" in line:
        body["prompt"] = line["tokens"]
    if options.ignore_eos:
        body["ignore_eos"] = True
    body.update(options.fields)
    if not options.whole:
        body.update(stream=True, stream_options={"include_usage": True})
    return "/v1/chat/completions" if "messages" in line else "/v1/completions", body


def packet(options, path, body):
    text = json.dumps(body).encode()
    key = f"Authorization: Bearer {options.key}\r\n" if options.key else ""
    head = f"POST {path} HTTP/1.1\r\nHost: {options.host}\r\n{key}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


# ---- answers ----

class Exchange:
    """A request, when it was due, and the bytes of its answer with the times at which they came."""

    def __init__(self, number, due):
        self.number, self.due = number, due
        self.answer, self.sizes, self.times = bytearray(), [], []
        self.head = self.length = None
        self.failure = None

    def took(self, data, now):
        """Returns whether the answer is complete."""
        self.answer += data
        self.sizes.append(len(self.answer))
        self.times.append(now)
        if self.head is None:
            end = self.answer.find(b"\r\n\r\n")
            if end < 0:
                return False
            self.head = end + 4
            found = re.search(rb"\r\ncontent-length: *(\d+)", self.answer[:end], re.I)
            self.length = int(found[1]) if found else None
        if self.length is not None:
            return len(self.answer) >= self.head + self.length
        return self.answer.endswith(b"\r\n0\r\n\r\n")


def without_chunks(exchange):
    """The body of an answer, and for each of its chunks (the end in the body, the end in the answer)."""
    data, at, body, ends = exchange.answer, exchange.head, bytearray(), []
    if exchange.length is not None:
        return bytes(data[at:]), [(exchange.length, len(data))]
    while True:
        line = data.index(b"\r\n", at)
        size = int(data[at:line], 16)
        if not size:
            return bytes(body), ends
        body += data[line + 2:line + 2 + size]
        at = line + 2 + size + 2
        ends.append((len(body), at))


def times_of_events(exchange, events, ends):
    """For each event the time at which its last byte was there."""
    times, end, chunk, read = [], 0, 0, 0
    for event in events:
        end += len(event) + 2
        while ends[chunk][0] < end:
            chunk += 1
        while exchange.sizes[read] < ends[chunk][1]:
            read += 1
        times.append(exchange.times[read])
    return times


def verdict_of(objects):
    """What has to be equal when a request is repeated: text, finish reason and fingerprint of each choice."""
    choices = {}
    for each, piece in ((each, piece) for each in objects for piece in each["choices"]):
        whole = choices.setdefault(piece["index"], {"text": "", "finish_reason": None, "fingerprint": None})
        said = piece.get("delta", piece.get("message", piece))
        whole["text"] += said.get("text") or said.get("content") or ""
        whole["finish_reason"] = piece["finish_reason"] or whole["finish_reason"]
        whole["fingerprint"] = piece.get("verbatim", each.get("verbatim", {})).get("fingerprint") or whole["fingerprint"]
    return choices


def error_in(text):
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"no answer of an OpenAI-compatible server: {text[:80]!r}"


def read_stream(exchange, body, ends, check):
    events = body.split(b"\n\n")[:-1]
    times = times_of_events(exchange, events, ends)
    said = [(event[6:], when) for event, when in zip(events, times) if event.startswith(b"data: ")]
    if not said or said[-1][0] != b"[DONE]":
        return {"error": "the stream ended without [DONE]"}
    objects = [json.loads(event) for event, _ in (said[:-1] if check else said[-3:-1])]
    if failed := [each["error"]["message"] for each in objects if "error" in each]:
        return {"error": failed[0]}
    usage = objects[-1].get("usage") or {}
    return {"times": [when for _, when in said[:-2]], "usage": usage, "verdict": verdict_of(objects) if check else None}


def read_answer(exchange, check):
    """{"error"}, or {"times": of the events with tokens, "usage", "verdict"}."""
    if exchange.failure:
        return {"error": exchange.failure}
    status = exchange.answer.split(b" ", 2)[1].decode()
    body, ends = without_chunks(exchange)
    if status != "200":
        return {"error": f"status {status}: {error_in(body)}"}
    if exchange.length is None:
        return read_stream(exchange, body, ends, check)
    answer = json.loads(body)
    return {"times": [], "usage": answer["usage"], "verdict": verdict_of([answer]) if check else None}


# ---- the run ----

class Load:
    """Sends requests from one thread. What costs time waits until the last answer is there, but for the reading of each answer."""

    def __init__(self, options, packets):
        self.options, self.packets = options, packets
        self.selector, self.idle, self.running = selectors.DefaultSelector(), [], {}
        self.outcomes = [None] * len(packets)
        self.next = self.over = self.tokens = 0
        self.began = self.shown = time.perf_counter()
        self.due = []
        if options.rate:
            chance, at = random.Random(options.seed), 0.0
            for _ in packets:
                heapq.heappush(self.due, at)
                at += chance.expovariate(options.rate)

    def connect(self):
        sock = socket.create_connection((self.options.address, self.options.port), timeout=self.options.timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(sock, selectors.EVENT_READ)
        return sock

    def send(self, due):
        exchange, sock = Exchange(self.next, due), None
        self.next += 1
        try:
            sock = self.idle.pop() if self.idle else self.connect()
            sock.sendall(self.packets[exchange.number])
            self.running[sock] = exchange
        except OSError as error:
            exchange.failure = f"the request could not be sent: {error.strerror or error}"
            self.end(sock, exchange, keep=False)

    def send_what_is_due(self, now):
        while self.next < len(self.packets):
            if self.options.rate:
                if self.began + self.due[0] > now:
                    return
                self.send(self.began + heapq.heappop(self.due))
            elif len(self.running) < self.options.concurrency:
                self.send(time.perf_counter())
            else:
                return

    def end(self, sock, exchange, keep):
        self.running.pop(sock, None)
        if keep:
            self.idle.append(sock)
        elif sock:
            self.selector.unregister(sock)
            sock.close()
        outcome = read_answer(exchange, self.options.check)
        outcome.update(due=exchange.due, end=exchange.times[-1] if exchange.times else time.perf_counter())
        self.outcomes[exchange.number] = outcome
        self.over += 1
        self.tokens += outcome.get("usage", {}).get("completion_tokens", 0)

    def read(self, sock):
        exchange = self.running.get(sock)
        try:
            data = sock.recv(MOST_READ)
        except OSError as error:
            data, reason = b"", error.strerror
        else:
            reason = "the server closed the connection"
        now = time.perf_counter()
        if not exchange: # the server closes a connection that is idle
            self.idle.remove(sock)
            self.selector.unregister(sock)
            sock.close()
        elif not data:
            exchange.failure = reason
            self.end(sock, exchange, keep=False)
        elif exchange.took(data, now):
            self.end(sock, exchange, keep=b"connection: close" not in exchange.answer[:exchange.head].lower())

    def give_up_silent(self, now):
        for sock, exchange in list(self.running.items()):
            if now - (exchange.times[-1] if exchange.times else exchange.due) > self.options.timeout:
                exchange.failure = f"no byte came for {self.options.timeout:g} seconds"
                self.end(sock, exchange, keep=False)

    def show(self, now, last=False):
        if not sys.stderr.isatty() or (now - self.shown < 0.2 and not last):
            return
        self.shown = now
        done = 30 * self.over // len(self.packets)
        bar = f"[{'#' * done}{'.' * (30 - done)}] {self.over} of {len(self.packets)} requests, {len(self.running)} running, "
        sys.stderr.write("\r\033[K" + ("" if last else f"{bar}{self.tokens / (now - self.began):.1f} tokens/s"))
        sys.stderr.flush()

    def run(self):
        """Returns the outcomes, in the order of the requests, and the seconds from the first byte sent to the last one read."""
        now = self.began = time.perf_counter()
        while self.over < len(self.packets):
            self.send_what_is_due(now)
            wait = self.began + self.due[0] - now if self.due else 1.0
            for key, _ in self.selector.select(max(0.0, min(wait, 1.0))):
                self.read(key.fileobj)
            now = time.perf_counter()
            self.give_up_silent(now)
            self.show(now)
        self.show(now, last=True)
        for sock in self.idle:
            sock.close()
        return self.outcomes, max(each["end"] for each in self.outcomes) - self.began


def ask_alone(options, packets):
    """The verdicts when each request has the server to itself."""
    alone = argparse.Namespace(**vars(options))
    alone.rate, alone.concurrency, alone.check = None, 1, True
    outcomes, _ = Load(alone, packets).run()
    return [each.get("verdict", each.get("error")) for each in outcomes]


# ---- the report ----

def percentiles(values):
    """The nearest ranks."""
    values = sorted(values)
    if not values:
        return None
    rank = {f"p{share}": values[max(0, -(-len(values) * share // 100) - 1)] for share in SHARES}
    return {"mean": sum(values) / len(values), **rank, "max": values[-1]}


def report_of(options, outcomes, seconds):
    good = [each for each in outcomes if "error" not in each]
    errors = {}
    for each in outcomes:
        if "error" in each:
            errors[each["error"]] = errors.get(each["error"], 0) + 1
    counts = [each["usage"]["completion_tokens"] for each in good]
    streams = [(each, count) for each, count in zip(good, counts) if each["times"]]
    return {"requests": len(outcomes), "answered": len(good), "errors": errors, "concurrency": options.concurrency, "rate": options.rate, "seed": options.seed,
            "seconds": seconds, "prompt_tokens": sum(each["usage"]["prompt_tokens"] for each in good), "output_tokens": sum(counts),
            "events": sum(len(each["times"]) for each in good), "output_tokens_per_second": sum(counts) / seconds, "requests_per_second": len(good) / seconds,
            "time_to_first_token": percentiles([each["times"][0] - each["due"] for each, _ in streams]),
            "inter_token_latency": percentiles([after - before for each, _ in streams for before, after in zip(each["times"], each["times"][1:])]),
            "time_per_output_token": percentiles([(each["times"][-1] - each["times"][0]) / (count - 1) for each, count in streams if count > 1]),
            "request_latency": percentiles([each["end"] - each["due"] for each in good])}


def print_report(report):
    print(f"{report['answered']} of {report['requests']} requests answered in {report['seconds']:.2f} s: {report['requests_per_second']:.2f} requests/s, "
          f"{report['output_tokens']} output tokens, {report['output_tokens_per_second']:.1f} tokens/s")
    print(f"{'milliseconds':<24}" + "".join(f"{name:>11}" for name in ("mean", "p50", "p90", "p99", "max")))
    for name in ("time_to_first_token", "inter_token_latency", "time_per_output_token", "request_latency"):
        if report[name]:
            print(f"{name.replace('_', ' '):<24}" + "".join(f"{1e3 * value:>11.2f}" for value in report[name].values()))
    used = f"processor seconds: {report['client_processor_seconds']:.2f} of this program"
    if report["server_processor_seconds"] is not None:
        used += f", {report['server_processor_seconds']:.2f} of the server"
    print(used)
    for message, count in report["errors"].items():
        print(f"{count} times: {message}")
    if "checked" in report:
        print(f"{report['checked'] - len(report['different'])} of {report['checked']} answers equal those to the same requests alone")


# ---- the server ----

class OwnServer:
    def __init__(self, verbatim, words):
        self.errors = tempfile.TemporaryFile("w+")
        try:
            self.process = subprocess.Popen([verbatim, "serve", *words, "--port", "0"], stderr=self.errors, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise Problem(f"{verbatim}: {error.strerror}") from None
        while not (found := re.search(r"listening on (http://\S+)\n", self.log())):
            if self.process.poll() is not None:
                raise Problem(f"the server does not start: {self.log().strip()}")
            time.sleep(0.02)
        self.url = found[1]

    def log(self):
        return os.pread(self.errors.fileno(), 1 << 16, 0).decode(errors="replace")

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def vocabulary_of(options):
    if options.vocabulary:
        return options.vocabulary
    key = f"Authorization: Bearer {options.key}\r\n" if options.key else ""
    try:
        with socket.create_connection((options.address, options.port), timeout=options.timeout) as sock:
            sock.sendall(f"GET /tokenizer_info HTTP/1.0\r\nHost: {options.host}\r\n{key}\r\n".encode())
            answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        return int(json.loads(answer.split(b"\r\n\r\n", 1)[1])["vocab_size"])
    except (OSError, ValueError, KeyError, IndexError):
        raise Problem("the server does not say how many tokens its vocabulary has (GET /tokenizer_info); give --vocabulary") from None


def look_at_url(options, url):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise Problem(f"--url {url}: wanted http://HOST:PORT")
    options.address, options.port, options.host = parts.hostname, parts.port or 80, parts.netloc


# ---- the command ----

def positive(text):
    if not 0 < int(text) < 1 << 31:
        raise ValueError
    return int(text)


def lengths(text):
    least, _, most = text.partition(":")
    if not 0 < int(least) <= int(most or least):
        raise ValueError
    return int(least), int(most or least)


def fields(text):
    if not isinstance(json.loads(text), dict):
        raise ValueError
    return json.loads(text)


def rate(text):
    if not 0.0 < float(text) < 1e6:
        raise ValueError
    return float(text)


def read_options(words):
    parser = argparse.ArgumentParser(prog="serve_load.py", usage="%(prog)s [OPTIONS] (--url URL | -- MODEL [OPTIONS OF verbatim serve])",
                                     description="Loads a server with requests, and reports latencies and throughput.", allow_abbrev=False)
    parser.add_argument("--url", help="the address of a server that runs already, http://HOST:PORT")
    parser.add_argument("--verbatim", default="build/verbatim", metavar="FILE", help="the program whose `serve` is started (default %(default)s)")
    parser.add_argument("--concurrency", type=positive, metavar="N", help="keep N requests running (default 1)")
    parser.add_argument("--rate", type=rate, metavar="R", help="send R requests per second at random times (a Poisson process), however many are running")
    parser.add_argument("--requests", type=positive, metavar="N", help="number of requests (default: the prompts in the file, or 64)")
    parser.add_argument("--prompts", metavar="FILE", help="take prompts from FILE, whose lines have the form of `generate --prompts`, in turn")
    parser.add_argument("--prompt-tokens", type=lengths, metavar="N[:M]", help="make prompts of N, or of N to M, random tokens (default 32)")
    parser.add_argument("--vocabulary", type=positive, metavar="N", help="random tokens are below N (default: the server is asked)")
    parser.add_argument("--max-tokens", type=positive, default=128, metavar="N", help="output tokens of a request whose line has no max_tokens (default 128)")
    parser.add_argument("--ignore-eos", action="store_true", help="do not stop at an end token")
    parser.add_argument("--fields", type=fields, default={}, metavar="JSON", help="an object whose fields are added to each request")
    parser.add_argument("--whole", action="store_true", help="ask for whole answers instead of streams")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed for prompts and times; request i is sampled with seed N + i (default 0)")
    parser.add_argument("--timeout", type=rate, default=300.0, metavar="S", help="a request fails if no byte comes for S seconds (default 300)")
    parser.add_argument("--api-key-file", metavar="FILE", help="send the key in FILE")
    parser.add_argument("--check", action="store_true", help="send each request again, alone, and compare text, finish reason and fingerprint")
    parser.add_argument("--write-prompts", metavar="FILE", help="write the prompts to FILE, for `generate --prompts`, and send nothing")
    parser.add_argument("--json", action="store_true", help="print the report as JSON; times are in seconds")
    parser.add_argument("--details", metavar="FILE", help="write a JSON object for each request: when it was sent, and when each event and the end came")
    split = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:split])
    options.server = words[split + 1:]
    if bool(options.url) == bool(options.server):
        parser.error("wanted either --url or a model after --")
    if options.rate and options.concurrency:
        parser.error("wanted --rate or --concurrency, not both")
    if options.prompts and options.prompt_tokens:
        parser.error("wanted --prompts or --prompt-tokens, not both")
    options.concurrency = None if options.rate else options.concurrency or 1
    options.prompt_tokens = options.prompt_tokens or (32, 32)
    return options


def read_key(name):
    try:
        with open(name, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError) as error:
        raise Problem(f"--api-key-file: {error}") from None


def lines_of(options):
    lines = read_lines(options.prompts) if options.prompts else None
    options.requests = options.requests or (len(lines) if lines else 64)
    lines = lines or random_lines(options, vocabulary_of(options))
    return [lines[i % len(lines)] for i in range(options.requests)]


def write_details(name, outcomes, began):
    with open(name, "w", encoding="utf-8") as file:
        for each in outcomes:
            kept = {"sent": each["due"] - began, "end": each["end"] - began, "events": [when - began for when in each.get("times", [])],
                    "usage": each.get("usage"), "error": each.get("error")}
            file.write(json.dumps(kept) + "\n")


def measure(options, own):
    lines = lines_of(options)
    if options.write_prompts:
        with open(options.write_prompts, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return None
    packets = [packet(options, *request_of(line, i, options)) for i, line in enumerate(lines)]
    before, used = own.processor_seconds() if own else 0.0, time.process_time()
    load = Load(options, packets)
    outcomes, seconds = load.run()
    report = report_of(options, outcomes, seconds)
    report["client_processor_seconds"] = time.process_time() - used
    report["server_processor_seconds"] = own.processor_seconds() - before if own else None
    if options.check:
        pairs = zip(outcomes, ask_alone(options, packets))
        report["checked"] = report["answered"]
        report["different"] = [i for i, (loaded, alone) in enumerate(pairs) if "error" not in loaded and loaded["verdict"] != alone]
    if options.details:
        write_details(options.details, outcomes, load.began)
    return report


def main(words):
    options, own = read_options(words), None
    try:
        options.key = read_key(options.api_key_file) if options.api_key_file else None
        own = OwnServer(options.verbatim, options.server) if options.server else None
        look_at_url(options, own.url if own else options.url)
        report = measure(options, own)
    except (Problem, OSError) as error:
        print(f"serve_load.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if own:
            own.stop()
    if not report:
        return 0
    if options.json:
        print(json.dumps(report))
    else:
        print_report(report)
    return int(bool(report["errors"] or report.get("different")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
