#!/usr/bin/env python3
"""Requests of the openai Python client, recorded from the client itself, get the same answers as the same bodies with no header but the
necessary ones. tests/cli/serve_openai.sh runs the client itself, and records. Needs Python's standard library alone.

    test_serve_openai.py [VERBATIM [NAME...]]
"""

import json
import re
import sys
import tempfile

from serving import TALE, Server, events, run_tests

RECORDED = "tests/cli/recorded/openai.jsonl"


def plain(text):
    """An answer without what differs between equal requests."""
    return re.sub(r'"(id|created|seed|cached_tokens|passes)": ("(chat)?cmpl-[^"]*"|\d+)', "", text)


def recorded_requests_get_their_answers():
    with open(RECORDED) as file:
        requests = [json.loads(line) for line in file]
    assert {request["status"] for request in requests} == {200, 400, 401, 404} and len(requests) > 10
    with tempfile.NamedTemporaryFile("w") as key:
        key.write("sesame")
        key.flush()
        with Server(TALE, "--api-key-file", key.name) as server:
            for request in requests:
                about = json.dumps(request)[:600]
                path, body, headers = request["path"], request["body"], request["headers"]
                status, got, text = server.ask(request["method"], path, body, headers)
                assert status == request["status"], f"{status} {text}: {about}"
                bare = {"Authorization": next(value for name, value in headers.items() if name.lower() == "authorization")}
                again, _, same = server.ask(request["method"], path, body, bare)
                assert (again, plain(same)) == (status, plain(text)), f"the client's headers change the answer: {about}"
                if body and body.get("stream"):
                    assert got["Content-Type"].startswith("text/event-stream") and len(events(text)) > 2, about
                else:
                    assert got["Content-Type"] == "application/json" and (status == 200) == ("error" not in json.loads(text)), about


if __name__ == "__main__":
    sys.exit(run_tests([recorded_requests_get_their_answers]))
