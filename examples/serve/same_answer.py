#!/usr/bin/env python3
"""Asks a server the same request alone and beside eight others, and compares the answers byte by byte.

    same_answer.py [http://127.0.0.1:8080/v1 [REQUESTS]]

Prints what was compared. The exit status is 1 if an answer differs. REQUESTS is how often the comparison is made (default 4), each
time with another prompt and seed. If $OPENAI_API_KEY is set, it is the key."""

import concurrent.futures
import json
import os
import sys
import urllib.request

PROMPTS = ["Once upon a time", "The king said to his daughter", "There was once a poor woman who", "In a deep forest", "Hansel and Gretel went"]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(base_url, prompt, seed, **more):
    """The bytes of an answer's text, log-probabilities, finish reason and fingerprints."""
    body = dict({"prompt": prompt, "max_tokens": 64, "seed": seed, "logprobs": 5}, **more)
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "none")}
    with DIRECT.open(urllib.request.Request(base_url + "/completions", json.dumps(body).encode(), headers)) as reply:
        answer = json.load(reply)
    return json.dumps([answer["choices"], answer["verbatim"]["fingerprint"], answer["system_fingerprint"]], sort_keys=True).encode()


def main():
    base_url = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
    differ = total = compared = 0
    for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 4):
        prompt = PROMPTS[number % len(PROMPTS)]
        alone = ask(base_url, prompt, number)
        with concurrent.futures.ThreadPoolExecutor(9) as clients:
            others = [clients.submit(ask, base_url, PROMPTS[i % len(PROMPTS)] + " and" * i, i, temperature=1.3, max_tokens=96) for i in range(8)]
            beside = clients.submit(ask, base_url, prompt, number).result()
            for other in others:
                other.result()
        differ += alone != beside
        total += 1
        compared += len(alone)
    print(f"{total - differ} of {total} answers are the same alone and beside eight other requests ({compared} bytes compared)")
    return differ > 0


if __name__ == "__main__":
    sys.exit(main())
