#!/usr/bin/env python3
"""`verbatim serve`, asked over HTTP: its answers are those of `verbatim generate`, whatever else runs. Needs Python's standard library
alone. Run in the repository's root.

    test_serve.py [VERBATIM [NAME...]]     NAME: these tests alone
"""

import concurrent.futures
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

from serving import PATIENCE, Server, TALE, TINY, VERBATIM, check_against_generate, choices_of, compare, events, generate, run_tests, tale_with

TALES = ["Once upon a time", "The king said to his daughter", "There was once a poor woman who", "Hansel and Gretel went", "In a deep forest"]


def some_requests(rng, model, count):
    """Random requests that `generate` can be asked, too."""
    out = []
    for _ in range(count):
        body = {"max_tokens": rng.choice([1, 7, 24, 60]), "return_token_ids": True}
        if model == TALE and rng.random() < 0.8:
            body["prompt"] = " ".join(rng.choice(TALES) for _ in range(rng.randrange(1, 4)))
        else:
            body["prompt"] = [rng.randrange(2, 60) for _ in range(rng.randrange(1, 40))]
        if rng.random() < 0.5:
            body["temperature"] = 0
        else:
            body.update(temperature=rng.choice([0.7, 1, 1.5]), seed=rng.randrange(1 << 40))
            body.update(rng.choice([{}, {"top_p": 0.9}, {"top_k": 8}, {"min_p": 0.05}, {"presence_penalty": 0.5, "frequency_penalty": 0.25},
                                    {"repetition_penalty": 1.25}, {"logit_bias": {"7": 4, "11": -100}}]))
        if model == TALE and rng.random() < 0.3:
            body["stop"] = rng.choice([" the", ["and", "a man who"], [" h", "e k"]])
        if rng.random() < 0.3:
            body["ignore_eos"] = True
        body["stream"] = rng.random() < 0.5
        body.update(rng.choice([{}, {"draft": "mtp-eagle"}, {"draft": "mtp-vanilla", "draft_tokens": 2}, {"draft": "ngram"},
                                {"draft": "mtp-eagle", "draft_tokens": "auto"}, {"draft": "eagle-reroll", "draft_tokens": 1}, {"draft": "none"},
                                {"draft_tokens": 0}]))
        out.append(body)
    return out


def answers_are_those_of_generate_alone_and_beside_others():
    for model, count in ((TALE, 24), (TINY, 16)):
        requests = some_requests(random.Random(5), model, count)
        with Server(model) as server:
            for body in requests:
                check_against_generate(server, model, body)
            with concurrent.futures.ThreadPoolExecutor(8) as clients:
                list(clients.map(lambda body: check_against_generate(server, model, body), 2 * requests))
            assert server.metric("spec_decode_num_accepted_tokens_total") > 0, "no draft was accepted"
            assert server.metric("prefix_cache_hits_total") > 0, "no row was shared"


def answers_survive_preemption_and_drafts_of_the_server():
    requests = [dict(body, max_tokens=90) for body in some_requests(random.Random(6), TALE, 16)]
    together = {"prompt": [f"{first} {second}" for first in TALES for second in TALES][:12], "max_tokens": 90, "temperature": 0.8, "seed": 3,
                "return_token_ids": True, "ignore_eos": True}
    with Server(TALE, "--cache-tokens", "260", "--draft", "mtp-eagle", "--draft-tokens", "2", "--prefill-chunk", "7") as server:
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            list(clients.map(lambda body: check_against_generate(server, TALE, body), requests))
        for prompt, choice in zip(together["prompt"], choices_of(server, together)):
            compare(choice, generate(TALE, dict(together, prompt=prompt)), prompt)
        assert server.metric("num_preemptions_total") > 0, "no sequence gave its rows back: the test shows nothing"


def drafts_that_lead_depend_on_nothing_but_the_request():
    relaxed = ["--acceptance", "relaxed", "--relaxed-topk", "20", "--relaxed-delta", "0.9", "--thinking-tokens", "0,1", "--draft", "mtp-vanilla",
               "--draft-tokens", "3"]
    small = ["--cache-tokens", "260"]
    rejection = ["--acceptance", "rejection", "--draft", "mtp-eagle", "--draft-tokens", "2"]
    for options in (relaxed, rejection):
        requests = [{"prompt": f"{first} {second}", "max_tokens": 40, "seed": 7, "return_token_ids": True, "ignore_eos": True}
                    for first in TALES[:4] for second in TALES[:4]]
        wanted = [generate(TALE, body, *options) for body in requests]
        assert [generate(TALE, body)["tokens"] for body in requests] != [w["tokens"] for w in wanted], "the drafts do not influence the output"
        with Server(TALE, *options, *small) as server:
            with concurrent.futures.ThreadPoolExecutor(8) as clients:
                for body, choices, want in zip(requests, clients.map(lambda body: choices_of(server, body), requests), wanted):
                    compare(choices[0], want, body["prompt"])
            for wrong, field in (({"draft_tokens": "auto"}, "draft_tokens"), ({"draft": "eagle-reroll"}, None)):
                status, _, text = server.ask("POST", "/v1/completions", dict(requests[0], **wrong))
                assert status == 400 and json.loads(text)["error"]["param"] == field, text
            name = json.loads(server.get("/v1/models"))["data"][0]["system_fingerprint"]
        assert f"/{options[1]}/" in name, name
        assert system_fingerprint(TALE, *options, *small) == name != system_fingerprint(TALE, *options[:-1], "1", *small)
    for more, words in ((["--draft-tokens", "auto"], "with auto"), (["--draft", "eagle-reroll"], "may not depend on the rounds before"),
                        (["--draft-topk", "2"], "draft topk")):
        ran = subprocess.run([VERBATIM, "serve", TALE, "--port", "0", *rejection, *more], capture_output=True, text=True, timeout=PATIENCE)
        assert ran.returncode and words in ran.stderr, ran.stderr


def expanded_prompts_are_those_of_generate():
    expanded = ["--prefill", "expanded"]
    requests = [{"prompt": f"{first} {second}", "max_tokens": 20, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
                for first in TALES[:2] for second in TALES[:2]]
    with Server(TALE, *expanded, "--prefill-chunk", "7") as server:
        for body in requests:
            choice, = choices_of(server, body)
            compare(choice, generate(TALE, body, *expanded), body["prompt"])
            assert choice["fingerprint"] != generate(TALE, body)["fingerprint"], "it is the other form of attention"
            longer = dict(body, prompt=body["prompt"] + choice["text"])  # the answer has become a part of the prompt
            compare(choices_of(server, longer)[0], generate(TALE, longer, *expanded), longer["prompt"])
        name = json.loads(server.get("/v1/models"))["data"][0]["system_fingerprint"]
    assert "/prefill-expanded/" in name and name == system_fingerprint(TALE, *expanded) != system_fingerprint(TALE), name


def a_stream_has_an_event_for_each_pass_and_usage_at_the_end():
    body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "draft": "mtp-eagle", "draft_tokens": 3, "return_token_ids": True,
            "stream": True, "stream_options": {"include_usage": True}}
    with Server(TALE) as server:
        whole = server.post("/v1/completions", dict(body, stream=False, stream_options=None))
        for _ in range(3):
            chunks = events(server.ask("POST", "/v1/completions", body)[2])
            assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 40, chunks[-1]
            assert all(chunk["usage"] is None for chunk in chunks[:-1])
            assert len(chunks) - 1 == whole["verbatim"]["passes"] + 1, "the prompt's pass and each other one is an event"
            passes = [{token["pass"] for token in chunk["choices"][0]["verbatim"]["tokens"]} for chunk in chunks[:-1]]
            assert passes == [{i} for i in range(len(passes))], passes
            assert {token["draft"] for token in whole["verbatim"]["tokens"]} > {0, 1}
        for extra, deepest in (({"draft_tokens": 1}, 1), ({"draft_tokens": 0}, 0), ({"draft": "none"}, 0)):
            tokens = server.post("/v1/completions", dict(body, stream=False, stream_options=None, **extra))["verbatim"]["tokens"]
            assert max(token["draft"] for token in tokens) == deepest, extra


def several_choices_and_prompts_in_one_request():
    prompts = ["Once upon a time", "In a deep forest"]
    with Server(TALE, "--max-sequences", "3") as server:
        for stream in (False, True):
            body = {"prompt": prompts, "n": 3, "max_tokens": 12, "temperature": 0.9, "seed": 40, "return_token_ids": True, "stream": stream}
            got = choices_of(server, body)
            assert [choice["index"] for choice in got] == list(range(6))
            for choice in got:
                number = choice["index"]
                assert choice["seed"] == 40 + number % 3, f"choice {number} has the seed {choice['seed']}"
                compare(choice, generate(TALE, {"prompt": prompts[number // 3], "max_tokens": 12, "temperature": 0.9, "seed": 40 + number % 3}), body)
        answer = server.post("/v1/completions", {"prompt": prompts, "n": 3, "max_tokens": 5, "return_token_ids": True})
        assert answer["usage"]["completion_tokens"] == 30 and answer["usage"]["prompt_tokens"] == sum(
            len(answer["choices"][i]["prompt_token_ids"]) for i in (0, 3))
        again = server.post("/v1/completions", {"prompt": prompts, "n": 3, "max_tokens": 5, "seed": answer["verbatim"]["seed"]})
        assert [c["text"] for c in again["choices"]] == [c["text"] for c in answer["choices"]], "verbatim.seed does not repeat the answer"


def stop_tokens_end_an_answer():
    body = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "return_token_ids": True}
    with Server(TALE) as server:
        plain = server.post("/v1/completions", body)["choices"][0]
        token = plain["token_ids"][9]
        choice = server.post("/v1/completions", dict(body, stop_token_ids=[token], ignore_eos=True))["choices"][0]
        end = plain["token_ids"].index(token)
        assert choice["token_ids"] == plain["token_ids"][:end + 1] and choice["finish_reason"] == "stop" and choice["stop_reason"] == token
        assert plain["text"].startswith(choice["text"]) and len(choice["text"]) < len(plain["text"])
        words = plain["text"].split(" ")
        phrase = " ".join(words[3:5])
        choice = server.post("/v1/completions", dict(body, stop=[phrase]))["choices"][0]
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] == phrase and choice["text"] == plain["text"][:plain["text"].index(phrase)]
        for stop in ([" ".join(words[4:7])], [f"{words[4]} {words[5]} slept"], [f" {words[5]}", " ".join(words[3:8]) + " g"]):  # held back, and said if it is no stop string
            for extra in ({}, {"draft": "mtp-eagle"}):
                wanted = generate(TALE, dict(body, stop=stop))
                compare(choices_of(server, dict(body, stop=stop, stream=True, **extra))[0], wanted, stop)


# ---- log-probabilities ----

def lm_evaluation_harness_gets_what_it_expects():
    """Its local-completions: lists of ids, echo, max_tokens 1 (or 0), logprobs 1, temperature 0."""
    rng = random.Random(7)
    for model, V in ((TALE, 1024), (TINY, 64)):
        prompts = [[rng.randrange(2, V) for _ in range(rng.randrange(1, 30))] for _ in range(6)]
        with Server(model) as server:
            for generated in (1, 0):
                body = {"prompt": prompts, "max_tokens": generated, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234, "return_token_ids": True}
                answer = server.post("/v1/completions", body)
                for choice, prompt in zip(answer["choices"], prompts):
                    check_echo(choice, prompt, generated)
                    alone = server.post("/v1/completions", dict(body, prompt=prompt))["choices"][0]
                    assert alone["logprobs"] == choice["logprobs"], "log-probabilities differ beside others"
                    streamed, = choices_of(server, dict(body, prompt=[prompt], stream=True))
                    assert streamed["logprobs"] == choice["logprobs"] and streamed["text"] == choice["text"], "a stream says something else"
            check_echo_values(server, model, prompts[0])


def check_echo(choice, prompt, generated):
    rows = choice["logprobs"]
    assert {len(rows[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {len(prompt) + generated}, rows
    assert rows["token_logprobs"][0] is None and rows["top_logprobs"][0] is None
    for name, value, top in list(zip(rows["tokens"], rows["token_logprobs"], rows["top_logprobs"]))[1:]:
        assert top[name] == value, f"{name!r} has {value!r}, and in top_logprobs {top}"
        assert len(top) in (1, 2) and max(top.values()) >= value
    assert len(choice["token_ids"]) == generated and choice["prompt_token_ids"] == prompt


def check_echo_values(server, model, prompt):
    """Row after row from `verbatim generate --logprobs`: the prompt's beginning, and what follows it."""
    rows = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "logprobs": 3, "echo": True, "temperature": 0})["choices"][0]["logprobs"]
    for i in range(1, len(prompt) + 1):
        wanted = generate(model, {"prompt": prompt[:i], "max_tokens": 1, "temperature": 0}, "--logprobs", "1000")["logprobs"][0]
        by_token = {entry["token"]: entry["logprob"] for entry in wanted["top"]}
        token = prompt[i] if i < len(prompt) else wanted["token"]
        if token in by_token:
            assert f"{rows['token_logprobs'][i]:.9g}" == f"{by_token[token]:.9g}", (i, rows["token_logprobs"][i], by_token[token])
        shown = sorted(rows["top_logprobs"][i].values(), reverse=True)[:3]
        assert [f"{x:.9g}" for x in shown] == [f"{entry['logprob']:.9g}" for entry in wanted["top"][:3]], i


def log_probabilities_are_those_of_generate():
    """Each generated token's own row, for completions and chats, whole and streamed, with and without drafts."""
    with Server(TALE) as server:
        for extra in ({"temperature": 0}, {"temperature": 1, "seed": 11}):
            body = {"prompt": "Once upon a time", "max_tokens": 12, "return_token_ids": True, **extra}
            wanted = generate(TALE, body, "--logprobs", "1000")
            by_token = [{entry["token"]: f"{entry['logprob']:.9g}" for entry in row["top"]} for row in wanted["logprobs"]]
            values = [by_token[i][token] for i, token in enumerate(wanted["tokens"])]
            best = [[f"{entry['logprob']:.9g}" for entry in row["top"][:3]] for row in wanted["logprobs"]]
            chat = {key: value for key, value in body.items() if key != "prompt"} | {"messages": [{"role": "user", "content": body["prompt"]}]}
            for variant in ({}, {"stream": True}, {"draft": "mtp-eagle", "draft_tokens": 3}, {"draft": "mtp-eagle", "draft_tokens": 3, "stream": True}):
                rows = choices_of(server, dict(body, logprobs=3, **variant))[0]["logprobs"]
                assert [f"{value:.9g}" for value in rows["token_logprobs"]] == values, (variant, rows["token_logprobs"], values)
                assert [[f"{x:.9g}" for x in sorted(top.values(), reverse=True)[:3]] for top in rows["top_logprobs"]] == best, variant
                rows = choices_of(server, dict(chat, logprobs=True, top_logprobs=3, **variant), "/v1/chat/completions")[0]["logprobs"]["content"]
                assert [f"{row['logprob']:.9g}" for row in rows] == values, variant
                assert [[f"{entry['logprob']:.9g}" for entry in row["top_logprobs"]] for row in rows] == best, variant


def lists_of_the_likeliest_have_lengths_of_their_own():
    body = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}
    with Server(TALE) as server:
        ask = lambda **more: server.post("/v1/completions", dict(body, **more))["choices"][0]
        for few, many in ((1, 4), (4, 1), (0, 3)):
            both = ask(logprobs=few, prompt_logprobs=many)
            assert (both["logprobs"], both["prompt_logprobs"]) == (ask(logprobs=few)["logprobs"], ask(prompt_logprobs=many)["prompt_logprobs"]), (few, many)


def a_choice_waits_for_the_rows_of_its_prompt():
    """The first choice computes the rows of the prompt for both, although the prompt is in the cache."""
    body = {"prompt": [5 + i % 900 for i in range(300)], "max_tokens": 3, "temperature": 1, "seed": 4, "n": 2, "return_token_ids": True}
    with Server(TALE, "--prefill-chunk", "4") as server:
        server.post("/v1/completions", body)
        for asked in ({"echo": True, "logprobs": 1}, {"prompt_logprobs": 1}):
            whole = choices_of(server, dict(body, **asked))
            streamed = choices_of(server, dict(body, stream=True, **asked))
            for a, b in zip(whole, streamed, strict=True):
                assert (a["text"], a["logprobs"], a.get("prompt_logprobs")) == (b["text"], b["logprobs"], b.get("prompt_logprobs")), asked
            assert len(streamed[1]["prompt_logprobs"] if "prompt_logprobs" in asked else streamed[1]["logprobs"]["top_logprobs"]) >= 300


def model_with_twins(folder, token, twin):
    """golden/tale with a tokenizer in which `token`, the product of no further merge, has the text of `twin`."""
    with open(f"{TALE}/tokenizer.json") as file:
        tokenizer = json.load(file)
    name = next(name for name, i in tokenizer["model"]["vocab"].items() if i == token)
    text = next(name for name, i in tokenizer["model"]["vocab"].items() if i == twin).replace("\u0120", " ")
    del tokenizer["model"]["vocab"][name]
    tokenizer["model"]["merges"] = [merge for merge in tokenizer["model"]["merges"] if "".join(merge) != name]
    tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=token, content=text, special=False))
    tale_with(folder, {"tokenizer.json": json.dumps(tokenizer)})
    return text


def tokens_with_the_same_text_have_keys_of_their_own():
    body = {"prompt": list(range(260, 460)), "max_tokens": 0, "logprobs": 20, "echo": True}
    with open(f"{TALE}/tokenizer.json") as file:
        model = json.load(file)["model"]
    parts = {part for merge in model["merges"] for part in merge}
    # Words after a space: in the vocabulary such a name has another character for the space, so that an added token with the same text has another name.
    plain = {i for name, i in model["vocab"].items() if name not in parts and i > 300 and name[0] == "\u0120" and name[1:].isascii()}
    with Server(TALE) as server:
        rows = server.post("/v1/completions", dict(body, echo=False, logprobs=None, prompt_logprobs=20))["choices"][0]["prompt_logprobs"]
        names = server.post("/v1/completions", body)["choices"][0]["logprobs"]
    # A pair among the likeliest of one row, neither of which is the row's token.
    row, token, twin = next((i, int(a), int(b)) for i, row in enumerate(rows) if row for a in list(row)[1:] for b in list(row)[1:]
                            if a != b and int(a) in plain and int(b) in plain)
    with tempfile.TemporaryDirectory() as folder:
        text = model_with_twins(folder, token, twin)
        with Server(folder) as server:
            answer = server.post("/v1/completions", body)["choices"][0]["logprobs"]
    later = max(token, twin, key=lambda i: list(rows[row]).index(str(i)))
    assert answer["top_logprobs"][row][f"token_id:{later}"] == rows[row][str(later)]["logprob"], answer["top_logprobs"][row]
    assert answer["top_logprobs"][row][text] == rows[row][str(token + twin - later)]["logprob"]
    assert answer["token_logprobs"] == names["token_logprobs"] and len(answer["top_logprobs"][row]) == len(names["top_logprobs"][row]) in (20, 21)
    with Server(TINY) as server:  # no token has a text
        rows = server.post("/v1/completions", {"prompt": list(range(2, 30)), "max_tokens": 1, "logprobs": 20, "echo": True})["choices"][0]["logprobs"]
        assert all(name in top and len(top) in (20, 21) for name, top in zip(rows["tokens"][1:], rows["top_logprobs"][1:]))


def log_probabilities_of_a_chat():
    messages = [{"role": "user", "content": "Once upon a time"}]
    with Server(TALE) as server:
        body = {"messages": messages, "max_tokens": 9, "temperature": 0, "logprobs": True, "top_logprobs": 3}
        choice = server.post("/v1/chat/completions", body)["choices"][0]
        rows = choice["logprobs"]["content"]
        assert len(rows) == 9 and b"".join(bytes(row["bytes"]) for row in rows).decode() == choice["message"]["content"]
        for row in rows:
            assert len(row["top_logprobs"]) == 3
            assert {key: row[key] for key in ("token", "logprob", "bytes")} == row["top_logprobs"][0], "at temperature 0 the token is the likeliest"
        streamed, = choices_of(server, dict(body, stream=True, draft="mtp-eagle"), "/v1/chat/completions")
        assert streamed["logprobs"]["content"] == rows, "drafts or a stream change log-probabilities"
        prompt = server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 1, "prompt_logprobs": 2})["choices"][0]["prompt_logprobs"]
        assert prompt[0] is None and len(prompt) == 7 and all(len(row) in (2, 3) for row in prompt[1:])
        for row in prompt[1:]:
            for entry in row.values():
                assert entry["rank"] <= 2 or entry is list(row.values())[0]


# ---- chats and tokens ----

def chats_are_those_of_generate():
    conversations = [[{"role": "user", "content": "Once upon a time"}],
                     [{"role": "system", "content": "In a deep forest"}, {"role": "user", "content": "there lived"}, {"role": "assistant", "content": " a king"},
                      {"role": "user", "content": "who had \u00e9 \u4e2d"}]]
    with Server(TALE) as server:
        for messages in conversations:
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump(messages, file)
                file.flush()
                wanted = generate(TALE, {"max_tokens": 20, "temperature": 0}, "--chat", "--messages", file.name)
            parts = [dict(m, content=[{"type": "text", "text": part} for part in (m["content"][:3], m["content"][3:])]) for m in messages]
            renamed = [dict(m, role="developer" if m["role"] == "system" else m["role"]) for m in messages]
            for variant in (messages, parts, renamed):
                for stream in (False, True):
                    body = {"messages": variant, "max_tokens": 20, "temperature": 0, "return_token_ids": True, "stream": stream}
                    choice, = choices_of(server, body, "/v1/chat/completions")
                    compare(choice, wanted, body)
        chunks = events(server.ask("POST", "/v1/chat/completions", {"messages": conversations[0], "max_tokens": 5, "stream": True})[2])
        assert list(chunks[0]["choices"][0]["delta"])[0] == "role" and chunks[0]["object"] == "chat.completion.chunk"
        assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
        default = server.post("/v1/chat/completions", {"messages": conversations[0], "temperature": 0, "ignore_eos": True})
        assert default["usage"]["total_tokens"] == 2048 and default["choices"][0]["finish_reason"] == "length", "a chat may fill the context"


def special_tokens_in_other_members_of_messages_are_text():
    end = "<|end_of_sentence|>"
    with tempfile.TemporaryDirectory() as folder:
        template = "{% for m in messages %}{{ m.role }}:{{ m.name }}:{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
        tale_with(folder, {"chat_template.jinja": template})
        with Server(folder) as server:
            for message in ({"role": f"user{end}", "name": "n"}, {"role": "user", "name": end},
                            {"role": "assistant", "name": "n", "tool_calls": [{"function": {"arguments": f"{{\"a\": \"{end}\"}}"}}]}):
                body = {"messages": [dict(message, content="")]}
                ids = server.post("/tokenize", body)["tokens"]
                assert not {0, 1} & set(ids), f"{message} made special tokens: {ids}"
                assert end in server.post("/apply-template", body)["prompt"]
                assert 1 in server.post("/tokenize", dict(body, allow_special_tokens=True))["tokens"]


def tools_and_roles_reach_the_template():
    with tempfile.TemporaryDirectory() as folder:
        template = ("{% for t in tools or [] %}T{{ t.function.name }};{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
                    "{% if add_generation_prompt %}A{% endif %}{{ extra or '' }}")
        tale_with(folder, {"chat_template.jinja": template})
        with Server(folder, "--served-model-name", "t") as server:
            tools = [{"type": "function", "function": {"name": "f"}}]
            for body, wanted in (({}, "system:be;user:hi;A"), ({"tools": tools}, "Tf;system:be;user:hi;A"), ({"tools": tools, "tool_choice": "none"}, "system:be;user:hi;A"),
                                 ({"add_generation_prompt": False, "chat_template_kwargs": {"extra": "E"}}, "system:be;user:hi;E")):
                body["messages"] = [{"role": "developer", "content": "be"}, {"role": "user", "content": "hi"}]
                assert server.post("/apply-template", body)["prompt"] == wanted, body


def special_tokens_in_messages_are_text():
    end = "<|end_of_sentence|>"
    with Server(TALE) as server:
        tokenize = lambda body: server.post("/tokenize", body)["tokens"]
        for content in (f"Hello {end} there", end, f"{end}{end}", f"a{end[:5]}{end}b", f"{end[:4]}{end}", "plain"):
            body = {"messages": [{"role": "user", "content": content}]}
            ids = tokenize(body)
            assert ids[0] == 0 and not {0, 1} & set(ids[1:]), f"{content!r} made special tokens: {ids}"
            assert server.post("/detokenize", {"tokens": ids[1:]})["prompt"] == content
            assert server.post("/apply-template", body)["prompt"] == "<|begin_of_sentence|>" + content
            assert (1 in tokenize(dict(body, allow_special_tokens=True))) == (end in content)
        assert tokenize({"messages": [{"role": "user", "content": "Once upon a time"}]}) == tokenize({"prompt": "Once upon a time"})


def tokens_and_texts():
    with Server(TALE) as server:
        for text in ("Once upon a time", "\u00e9\u4e2d\U0001f600 \u0000 end", "", "a\nb"):
            answer = server.post("/tokenize", {"prompt": text, "return_token_strs": True})
            assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) and answer["max_model_len"] == 2048 and answer["tokens"][0] == 0
            plain = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
            assert plain["tokens"] == answer["tokens"][1:]
            assert server.post("/detokenize", {"tokens": plain["tokens"]})["prompt"] == text
            if text and "\0" not in text:
                told_ids = subprocess.run([VERBATIM, "tokenize", TALE, text], capture_output=True, text=True).stdout
                assert plain["tokens"] == [int(n) for n in re.findall(r"\d+", told_ids.split("\n")[0])], told_ids
        info = json.loads(server.get("/tokenizer_info"))
        assert (info["bos_token"], info["eos_token"]) == ("<|begin_of_sentence|>", "<|end_of_sentence|>") and "message" in info["chat_template"]
        models = json.loads(server.get("/v1/models"))
        assert models["data"][0]["id"] == "tale" and json.loads(server.get("/v1/models/tale"))["id"] == "tale"
        assert json.loads(server.get("/version"))["version"] and json.loads(server.get("/health")) == {"status": "ok"}
    with Server(TINY, "--served-model-name", "x/y") as server:
        assert json.loads(server.get("/v1/models/x/y"))["id"] == "x/y"
        assert server.ask("POST", "/tokenize", {"prompt": "a"})[0] == 400
        assert server.ask("POST", "/v1/completions", {"prompt": "a"})[0] == 400


def system_fingerprint(model, *options):
    with Server(model, *options) as server:
        name = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1})["system_fingerprint"]
        assert json.loads(server.get("/v1/models"))["data"][0]["system_fingerprint"] == name
        return name


def the_system_fingerprint_names_what_answers_depend_on():
    plain = system_fingerprint(TALE)
    assert re.fullmatch(r"verbatim-[\d.]+/tale/f32/[0-9a-f]{16}", plain), plain
    for same in (["--threads", "1"], ["--isa", "scalar"], ["--draft", "mtp-eagle"], ["--max-sequences", "3"]):
        assert system_fingerprint(TALE, *same) == plain, same
    seen = [plain] + [system_fingerprint(TALE, *other) for other in (
        ["--precision", "q8"], ["--convention", "yarn=max-len"], ["--context", "100"], ["--fingerprint-sample"], ["--served-model-name", "x"])]
    assert "/sampled-" in seen[4] and "/yarn=max-len/" in seen[2] and "/q8/" in seen[1], seen
    changes = [("model.safetensors", lambda b: b[:-1000] + bytes([b[-1000] ^ 1]) + b[-999:]), ("chat_template.jinja", lambda b: b + b" "),
               ("tokenizer_config.json", lambda b: b.replace(b'"add_bos_token": true', b'"add_bos_token": false')),
               ("generation_config.json", lambda b: b.replace(b'"eos_token_id": 1', b'"eos_token_id": 2'))]
    for name, change in changes:
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "tale")
            shutil.copytree(TALE, copy)
            assert system_fingerprint(copy) == plain
            with open(os.path.join(copy, name), "rb") as file:
                before = file.read()
            assert change(before) != before, name
            with open(os.path.join(copy, name), "wb") as file:
                file.write(change(before))
            seen.append(system_fingerprint(copy))
    assert len(set(seen)) == len(seen), seen


def the_template_is_told_wherever_it_is_kept():
    with open(os.path.join(TALE, "chat_template.jinja"), encoding="utf-8") as file:
        source = file.read()
    with tempfile.TemporaryDirectory() as folder:
        copy, gguf = os.path.join(folder, "tale"), os.path.join(folder, "tale.gguf")
        shutil.copytree(TALE, copy)
        subprocess.run([VERBATIM, "quantize", copy, "-o", gguf, "--type", "bf16"], check=True, capture_output=True)
        os.remove(os.path.join(copy, "chat_template.jinja"))
        path = os.path.join(copy, "tokenizer_config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": source}]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        for model in (copy, gguf):
            with Server(model) as server:
                assert json.loads(server.get("/tokenizer_info"))["chat_template"] == source, model


# ---- response_format ----

STORY = {"type": "object", "required": ["name", "trade", "sons"],
         "properties": {"name": {"type": "string", "maxLength": 24}, "trade": {"enum": ["king", "miller", "fisherman"]}, "age": {"type": "integer"},
                        "sons": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}}}
AMBIGUOUS = {"anyOf": [{"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [
    {"type": "array", "minItems": 1, "items": {"enum": [100 * i + j]}} for j in range(20)]}}} for i in range(20)]}


def format_of(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def check_story(text):
    story = json.loads(text)
    assert set(STORY["required"]) <= set(story) <= set(STORY["properties"]), text
    assert isinstance(story["name"], str) and len(story["name"]) <= 24 and story["trade"] in STORY["properties"]["trade"]["enum"], text
    assert 1 <= len(story["sons"]) <= 3 and all(isinstance(son, bool) for son in story["sons"]) and isinstance(story.get("age", 0), int), text


def constrained_requests():
    requests = []
    for prompt, extra in ((TALES[0], {"temperature": 0}), (TALES[1], {"temperature": 1, "seed": 3}), (TALES[2], {"temperature": 0.8, "seed": 5, "n": 2}),
                          (TALES[3], {"temperature": 1.5, "seed": 8, "top_p": 0.9, "repetition_penalty": 1.25, "logprobs": 2})):
        for path, asked in (("/v1/completions", {"prompt": prompt}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]})):
            if "chat" in path and "logprobs" in extra:
                extra = dict(extra, logprobs=True, top_logprobs=2)
            requests.append((path, dict(asked, max_tokens=300, response_format=format_of(STORY), return_token_ids=True, **extra)))
    return requests


def schemas_hold_with_and_without_drafts_and_beside_others():
    variants = [{"stream": True}, {"draft": "mtp-eagle", "draft_tokens": 3}, {"draft": "ngram", "stream": True}, {"draft": "mtp-eagle", "draft_tokens": "auto"}]
    keys = ("text", "token_ids", "finish_reason", "fingerprint")
    rows = lambda choice: {key: value for key, value in (choice["logprobs"] or {}).items() if isinstance(value, list)}
    said = lambda server, path, body: [[choice[key] for key in keys] + [rows(choice)] for choice in choices_of(server, body, path)]
    with Server(TALE) as server:
        wanted = [(path, body, said(server, path, body)) for path, body in constrained_requests()]
        for path, body, choices in wanted:
            for text, _, finish, *_ in choices:
                assert finish == "stop", f"{body}: {finish}: {text!r}"
                check_story(text)
            for variant in variants:
                assert said(server, path, dict(body, **variant)) == choices, (body, variant)
        assert server.metric("spec_decode_num_accepted_tokens_total") > 0, "no draft was accepted under the mask"
    with Server(TALE, "--cache-tokens", "350", "--prefill-chunk", "7") as server:  # two of the longest texts do not fit
        free = {"prompt": "In a deep forest", "max_tokens": 90, "temperature": 0, "return_token_ids": True}
        with concurrent.futures.ThreadPoolExecutor(16) as clients:
            others = [clients.submit(check_against_generate, server, TALE, free) for _ in range(3)]
            runs = [(clients.submit(said, server, path, dict(body, **variant)), choices, body, variant)
                    for variant in [{}] + variants[:3] for path, body, choices in wanted]
            for run, choices, body, variant in runs:
                assert run.result() == choices, (body, variant)
            for run in others:
                run.result()
        assert server.metric("num_preemptions_total") > 0, "no sequence gave its rows back: the test shows nothing"


def formats_of_other_shapes():
    with Server(TALE) as server:
        ask = lambda kind, **more: server.post("/v1/completions", {"prompt": "Once", "max_tokens": 200, "temperature": 0, "response_format": kind, **more})["choices"][0]
        close, = server.post("/tokenize", {"prompt": "}", "add_special_tokens": False})["tokens"]
        choice = ask({"type": "json_object"}, logit_bias={str(close): 100})
        assert json.loads(choice["text"]) == {} and choice["finish_reason"] == "stop", choice
        choice = ask({"type": "json_object"}, max_tokens=30)
        assert choice["text"].lstrip().startswith("{") and choice["finish_reason"] == "length", "what max_tokens cuts is the beginning of an object"
        for schema, values in (({"const": "a\u4e2d\"b"}, ["a\u4e2d\"b"]), ({"enum": [True, 17, None]}, [True, 17, None]),
                               ({"$ref": "#/$defs/x", "$defs": {"x": {"enum": ["king"]}}}, ["king"])):
            choice = ask(format_of(schema))
            assert json.loads(choice["text"]) in values and choice["finish_reason"] == "stop", (schema, choice)
        assert ask(format_of(STORY), max_tokens=0)["text"] == ""
        assert ask({"type": "text"})["text"] == ask(None)["text"]
        # A mask that fails at some token fails its request alone.
        with concurrent.futures.ThreadPoolExecutor(4) as clients:
            good = [clients.submit(ask, format_of(STORY)) for _ in range(3)]
            for more in ({}, {"draft": "mtp-eagle"}):
                status, _, text = server.ask("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 50, "response_format": format_of(AMBIGUOUS), **more})
                assert status == 400 and "ambiguous" in json.loads(text)["error"]["message"], text
            for run in good:
                check_story(run.result()["text"])


def characters_of_several_tokens_are_streamed_whole():
    word = "\u4e2d\U0001f600\u00e9"
    body = {"prompt": "Once", "max_tokens": 60, "temperature": 0, "return_token_ids": True, "stream": True, "response_format": format_of({"enum": [word]})}
    with Server(TALE) as server:
        choice, = choices_of(server, body)
        assert json.loads(choice["text"]) == word, f"it is {choice['text']!r}"
        assert len(choice["token_ids"]) > len(word) + 2, "no character had several tokens"


def unsupported_schemas_are_refused_by_name():
    cases = [({"type": "string", "pattern": "a"}, "pattern"), ({"properties": {"a": {"type": "string", "format": "date"}}}, "#/properties/a: the keyword format"),
             ({"allOf": [{}]}, "allOf"), ({"type": "foo"}, "type"), ({"enum": []}, "enum"), ({"$ref": "https://example.org/x"}, "$ref"), (5, "schema"), (None, "schema")]
    shapes = [(5, "object"), ({}, "type"), ({"type": "grammar"}, "grammar"), ({"type": "json_schema"}, "json_schema"),
              ({"type": "json_object", "schema": STORY}, "schema"), ({"type": "json_schema", "json_schema": {"schema": STORY, "name": 5}}, "name"),
              ({"type": "json_schema", "json_schema": {"schema": STORY, "strict": "yes"}}, "strict")]
    with Server(TALE) as server:
        for kind, word in [(format_of(schema), word) for schema, word in cases] + shapes:
            for path, asked in (("/v1/completions", {"prompt": "Once"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once"}]})):
                status, _, text = server.ask("POST", path, dict(asked, max_tokens=1, response_format=kind))
                error = json.loads(text)["error"]
                assert status == 400 and error["param"] == "response_format" and word in error["message"], (kind, text)
        status, _, text = server.ask("POST", "/v1/completions", {"prompt": "Once", "ignore_eos": True, "response_format": {"type": "json_object"}})
        assert status == 400 and json.loads(text)["error"]["param"] == "ignore_eos", text
    with Server(TINY) as server:
        status, _, text = server.ask("POST", "/v1/completions", {"prompt": [5], "response_format": {"type": "json_object"}})
        assert status == 400 and "tokenizer" in json.loads(text)["error"]["message"], text


TESTS = [answers_are_those_of_generate_alone_and_beside_others, drafts_that_lead_depend_on_nothing_but_the_request, expanded_prompts_are_those_of_generate,
         answers_survive_preemption_and_drafts_of_the_server,
         a_stream_has_an_event_for_each_pass_and_usage_at_the_end, several_choices_and_prompts_in_one_request,
         stop_tokens_end_an_answer, lm_evaluation_harness_gets_what_it_expects, log_probabilities_are_those_of_generate,
         lists_of_the_likeliest_have_lengths_of_their_own,
         a_choice_waits_for_the_rows_of_its_prompt,
         tokens_with_the_same_text_have_keys_of_their_own, log_probabilities_of_a_chat, chats_are_those_of_generate,
         tools_and_roles_reach_the_template, special_tokens_in_messages_are_text,
         special_tokens_in_other_members_of_messages_are_text, tokens_and_texts,
         the_system_fingerprint_names_what_answers_depend_on, the_template_is_told_wherever_it_is_kept,
         schemas_hold_with_and_without_drafts_and_beside_others, formats_of_other_shapes,
         characters_of_several_tokens_are_streamed_whole, unsupported_schemas_are_refused_by_name]


if __name__ == "__main__":
    sys.exit(run_tests(TESTS))
