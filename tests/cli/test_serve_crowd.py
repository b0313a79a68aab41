#!/usr/bin/env python3
"""Two hundred connections at once, clients that are killed, connections that send nothing or a byte now and then, and a soak: the server
answers the others as ever, and its memory does not grow. For `make test-all`: minutes. Run in the repository's root;
build/tests/fail_memory.so counts the blocks of memory.

    test_serve_crowd.py [VERBATIM [NAME...]]     SERVE_SOAK: seconds of the soak (default 300)
"""

import concurrent.futures
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serving import PATIENCE, TALE, Server, check_against_generate, choices_of, compare, generate, raw_post, run_tests
from test_serve_memory import FAIL_MEMORY, Memory
from test_serve_random import CLIENTS, Request, one_client, said_of

PLAIN = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "return_token_ids": True}
LONG = dict(PLAIN, max_tokens=1900, ignore_eos=True, stream=True)
SOAK = float(os.environ.get("SERVE_SOAK", "300"))
CROWD = 200


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE)


def two_hundred_connections_get_their_answers():
    """Some of them go away in the middle of a stream; a barrier lets all begin at once."""
    wanted = generate(TALE, PLAIN)
    together = threading.Barrier(CROWD)

    def one(server, number):
        sock = connect(server)
        together.wait(PATIENCE)
        if number % 4:
            sock.close()
            choice, = choices_of(server, dict(PLAIN, stream=number % 2 == 0))
            compare(choice, wanted, number)
            return
        sock.sendall(raw_post(LONG))
        sock.recv(1 + number)
        if number % 8:
            sock.shutdown(socket.SHUT_WR)  # half open: it could still read
            while sock.recv(1 << 16):
                pass
        sock.close()

    with Server(TALE, "--max-waiting", "400") as server:
        with concurrent.futures.ThreadPoolExecutor(CROWD) as clients:
            for run in [clients.submit(one, server, i) for i in range(CROWD)]:
                run.result()
        server.wait_for("the end of streams that nobody reads", lambda: server.sequences() == 0)
        assert server.metric("request_success_total", "abort") == CROWD // 4, server.get("/metrics")
        idle = [connect(server) for _ in range(CROWD)]
        check_against_generate(server, TALE, PLAIN)
        for sock in idle:
            sock.close()


def a_killed_client_is_cancelled():
    code = ("import socket, sys, time\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "s.sendall(sys.stdin.buffer.read())\ns.recv(100)\nprint('reads', flush=True)\ntime.sleep(600)")
    with Server(TALE, "--max-waiting", "400") as server:
        for stream in (True, False):
            body = dict(LONG, stream=stream, n=8 if stream else 16)
            client = subprocess.Popen([sys.executable, "-c", code, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            client.stdin.write(raw_post(body))
            client.stdin.close()
            if stream:
                client.stdout.readline()
            server.wait_for("its sequences", lambda body=body: server.sequences() == body["n"])
            client.send_signal(signal.SIGKILL)
            client.wait()
            client.stdout.close()
            server.wait_for("the end of what it asked for", lambda: server.sequences() == 0)
            check_against_generate(server, TALE, PLAIN)
        assert server.metric("request_success_total", "length") == 2, "what a killed client had asked for was computed to its end"


def a_request_that_comes_byte_by_byte_is_cut_off():
    """One byte each second: never idle, and never there. The deadlines are a minute each for header and body."""
    def slowly(server, begin, byte):
        sock = connect(server)
        sock.sendall(begin)
        sock.settimeout(1)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if not sock.recv(1000):
                    return True
            except TimeoutError:
                pass
            except ConnectionError:
                return True
            try:
                sock.send(byte)
            except OSError:
                return True
        return False

    request = raw_post(dict(PLAIN, user="x" * 1000))
    begins = [(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"a"), (b"", b"G"), (request[:-1000], b" ")]
    with Server(TALE) as server:
        with concurrent.futures.ThreadPoolExecutor(3 * len(begins)) as clients:
            slow = [clients.submit(slowly, server, *begin) for begin in begins for _ in range(3)]
            check_against_generate(server, TALE, PLAIN)
            assert all(run.result() for run in slow), "a request that never ends keeps its connection"
        check_against_generate(server, TALE, PLAIN)


def where_descriptors_are_used_up_the_server_goes_on():
    with Server(TALE) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        idle = []
        for _ in range(CROWD):
            sock = socket.socket()
            sock.settimeout(PATIENCE)
            sock.connect(("127.0.0.1", server.port))
            idle.append(sock)
        descriptors = f"/proc/{server.process.pid}/fd"
        server.wait_for("the last descriptor", lambda: len(os.listdir(descriptors)) == 64)
        for sock in idle:
            sock.close()
        check_against_generate(server, TALE, PLAIN)


def resident(server):
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def at_rest(server, memory, requests):
    server.wait_for("the end of all", lambda: server.sequences() == 0)
    for request in requests:
        choices_of(server, request.body, request.path)
    time.sleep(0.1)
    return resident(server), memory.alive()


def memory_stays_flat():
    """Between the first fifth of the soak and its end, resident memory may grow by 4 MiB: the allocator's own pages, since requests of
    several threads leave gaps. A block of 1 KiB that each of more than 4096 requests left behind would be more than this. Of the blocks
    themselves, one in eight of these requests would leave more than 500 behind."""
    requests = [Request(random.Random(70 + i)) for i in range(40)]
    with tempfile.NamedTemporaryFile() as file:
        memory = Memory(file.name)
        os.environ.update(LD_PRELOAD=FAIL_MEMORY, FAIL_MEMORY=file.name)
        try:
            server = Server(TALE, "--max-sequences", "12", "--cache-tokens", "300", "--prefill-chunk", "7", "--draft", "mtp-eagle", "--log", os.devnull)
        finally:
            del os.environ["LD_PRELOAD"], os.environ["FAIL_MEMORY"]
        with server:
            for request in requests:
                request.wanted = [said_of(choice) for choice in choices_of(server, request.body, request.path)]
            marks, seed = [], 0
            for seconds in (SOAK / 5, SOAK * 4 / 5):
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    seed += CLIENTS
                    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
                        for run in [clients.submit(one_client, server, requests, seed + i, 20) for i in range(CLIENTS)]:
                            run.result()
                marks.append((seed * 20, *at_rest(server, memory, requests)))
            (asked, before, blocks), (asked_later, after, blocks_later) = marks
            print(f"{asked} requests: {before >> 10} KiB, {blocks} blocks; {asked_later} requests: {after >> 10} KiB, {blocks_later} blocks")
            assert asked_later - asked > 4096, "the soak was too short for its bounds"
            assert asked_later >= 3 * asked and after <= before + (4 << 20), f"resident memory has grown from {before} to {after} bytes"
            assert blocks_later <= blocks + 500, f"{blocks} blocks were in use, and now {blocks_later}"


if __name__ == "__main__":
    sys.exit(run_tests([two_hundred_connections_get_their_answers, a_killed_client_is_cancelled, a_request_that_comes_byte_by_byte_is_cut_off,
                        where_descriptors_are_used_up_the_server_goes_on, memory_stays_flat]))
