#!/usr/bin/env python3
"""`verbatim serve`, asked over HTTP: its answers are those of `verbatim generate`, whatever else runs; errors; clients that go away;
signals. Needs Python's standard library alone. Run in the repository's root.

    test_serve.py [VERBATIM [NAME...]]     NAME: these tests alone
"""

import concurrent.futures
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import traceback

from serving import PATIENCE, TALE, TINY, VERBATIM, Server, choices_of, compare, events, generate, join
from serving_fuzz import fuzz_bodies, fuzz_bytes, fuzz_without_tokenizer

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


def check_against_generate(server, model, body):
    wanted = generate(model, body)
    choice, = choices_of(server, body)
    compare(choice, wanted, json.dumps(body))


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
                assert choice["seed"] == 40 + number % 3
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
        choice = server.post("/v1/completions", dict(body, stop=["a man"]))["choices"][0]
        assert choice["finish_reason"] == "stop" and choice["stop_reason"] == "a man" and choice["text"] == " there was "
        for stop in (["man who did"], ["man who slept"], [" who", "a man who did nothing but g"]):  # held back, and said when it is no stop string
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


def model_with_twins(folder, token, twin):
    """golden/tale with a tokenizer in which `token`, the product of no further merge, has the text of `twin`."""
    for name in os.listdir(TALE):
        if name != "tokenizer.json":
            os.symlink(os.path.abspath(f"{TALE}/{name}"), f"{folder}/{name}")
    with open(f"{TALE}/tokenizer.json") as file:
        tokenizer = json.load(file)
    name = next(name for name, i in tokenizer["model"]["vocab"].items() if i == token)
    text = next(name for name, i in tokenizer["model"]["vocab"].items() if i == twin).replace("\u0120", " ")
    del tokenizer["model"]["vocab"][name]
    tokenizer["model"]["merges"] = [merge for merge in tokenizer["model"]["merges"] if "".join(merge) != name]
    tokenizer["added_tokens"].append(dict(tokenizer["added_tokens"][0], id=token, content=text, special=False))
    with open(f"{folder}/tokenizer.json", "w") as file:
        json.dump(tokenizer, file)
    return text


def tokens_with_the_same_text_have_keys_of_their_own():
    body = {"prompt": list(range(260, 460)), "max_tokens": 0, "logprobs": 20, "echo": True}
    with open(f"{TALE}/tokenizer.json") as file:
        model = json.load(file)["model"]
    parts = {part for merge in model["merges"] for part in merge}
    plain = {i for name, i in model["vocab"].items() if name not in parts and i > 300 and name.replace("\u0120", "").isascii()}
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


def tools_and_roles_reach_the_template():
    with tempfile.TemporaryDirectory() as folder:
        for name in os.listdir(TALE):
            if name != "chat_template.jinja":
                os.symlink(os.path.abspath(f"{TALE}/{name}"), f"{folder}/{name}")
        with open(f"{folder}/chat_template.jinja", "w") as file:
            file.write("{% for t in tools or [] %}T{{ t.function.name }};{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
                       "{% if add_generation_prompt %}A{% endif %}{{ extra or '' }}")
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
    with Server(TALE, "--cache-tokens", "700", "--prefill-chunk", "7") as server:
        free = {"prompt": "In a deep forest", "max_tokens": 90, "temperature": 0, "return_token_ids": True}
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
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
    ]
    with Server(TALE) as server:
        for path, body, wanted, field in cases:
            status, _, answer = server.ask("POST", path, body)
            about = f"{path} {str(body)[:100]}: {status} {answer[:300]}"
            error = json.loads(answer)["error"]
            assert status == wanted and error["param"] == field, about
            assert len(error["message"]) > 10 and error["type"] and set(error) == {"message", "type", "param", "code"}, about
        for body in (dict(ok, stop=None, seed=None, n=None, user="me", banana=5), dict(ok, best_of=1, suffix="", response_format={"type": "text"})):
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


def open_stream(server, body):
    """A connection that has sent a request for a stream and reads nothing."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(PATIENCE)
    sock.connect(("127.0.0.1", server.port))
    text = json.dumps(body).encode()
    sock.sendall(b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
    return sock


def read_all(sock):
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts).decode()


def running(server):
    return server.metric("num_requests_running") + server.metric("num_requests_waiting")


def a_client_that_goes_away_is_cancelled():
    with Server(TALE) as server:
        sock = open_stream(server, LONG)
        sock.recv(100)
        sock.close()
        server.wait_for("the end of a stream that nobody reads", lambda: running(server) == 0)
        assert server.metric("request_success_total", "abort") == 4, server.get("/metrics")
        connection = server.connect() # one that waits for its whole answer, behind others
        slow = open_stream(server, dict(LONG, n=8))
        connection.request("POST", "/v1/completions", json.dumps(dict(LONG, stream=False, n=16)), {"Content-Type": "application/json"})
        server.wait_for("both requests", lambda: running(server) == 24)
        connection.close()
        slow.close()
        server.wait_for("the end of requests that nobody reads", lambda: running(server) == 0)
        assert server.metric("request_success_total", "length") == 0, "a client went away, and its answer was computed to the end"
        check_against_generate(server, TALE, {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0, "return_token_ids": True})


def a_slow_reader_stalls_nobody_and_loses_nothing():
    with Server(TALE, "--max-sequences", "4") as server:
        slow = open_stream(server, LONG)
        server.wait_for("the first tokens", lambda: server.metric("time_to_first_token_seconds_count") >= 4)
        for _ in range(3):
            check_against_generate(server, TALE, {"prompt": "In a deep forest", "max_tokens": 30, "temperature": 0, "return_token_ids": True})
        assert running(server) == 4, "the slow reader's sequences ended without it"
        head, _, text = read_all(slow).partition("\r\n\r\n")
        assert " 200 " in head.split("\r\n")[0]
        wanted = generate(TALE, {"prompt": "Once upon a time", "max_tokens": 2000, "ignore_eos": True, "temperature": 0})
        for choice in join(events(text)):
            assert choice["text"] == wanted["text"] and choice["fingerprint"] == wanted["fingerprint"]
            assert len(choice["logprobs"]["tokens"]) == 2000


def a_full_line_refuses():
    with Server(TALE, "--max-sequences", "1", "--max-waiting", "3") as server:
        slow = open_stream(server, LONG)
        server.wait_for("the first request", lambda: running(server) == 4)
        status, headers, text = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert status == 429 and headers["Retry-After"] and json.loads(text)["error"]["code"] == "queue_full", text
        slow.close()
        server.wait_for("room", lambda: running(server) == 0)
        server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})


def sigterm_lets_requests_finish_and_refuses_new_ones():
    for number in (signal.SIGTERM, signal.SIGINT):
        with Server(TALE) as server:
            slow = open_stream(server, LONG)
            server.wait_for("the first request", lambda: running(server) == 4)
            server.process.send_signal(number)
            server.wait_for("a refusal", lambda: server.ask("GET", "/health")[0] == 503)
            status, headers, _ = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
            assert status == 503 and headers["Retry-After"]
            text = read_all(slow).partition("\r\n\r\n")[2]
            assert {choice["finish_reason"] for choice in join(events(text))} == {"length"}
            assert server.process.wait(PATIENCE) == 0


def a_second_signal_ends_at_once():
    with Server(TALE) as server:
        slow = open_stream(server, LONG)
        server.wait_for("the first request", lambda: running(server) == 4)
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
    count = int(os.environ.get("SERVE_FUZZ", "400"))
    for model in (TALE, TINY):
        with Server(model) as server:
            fuzz_bodies_of = fuzz_bodies if model == TALE else fuzz_without_tokenizer
            fuzz_bodies_of(server, random.Random(8), count)
            fuzz_bytes(server, random.Random(9), count // 4)
            server.wait_for("the end of all", lambda: running(server) == 0)
            check_against_generate(server, model, {"prompt": [5, 6, 7], "max_tokens": 30, "temperature": 0, "return_token_ids": True})


TESTS = [answers_are_those_of_generate_alone_and_beside_others, answers_survive_preemption_and_drafts_of_the_server,
         a_stream_has_an_event_for_each_pass_and_usage_at_the_end, several_choices_and_prompts_in_one_request, stop_tokens_end_an_answer,
         lm_evaluation_harness_gets_what_it_expects, tokens_with_the_same_text_have_keys_of_their_own, log_probabilities_of_a_chat,
         chats_are_those_of_generate, tools_and_roles_reach_the_template, special_tokens_in_messages_are_text, tokens_and_texts,
         schemas_hold_with_and_without_drafts_and_beside_others, formats_of_other_shapes, unsupported_schemas_are_refused_by_name, refusals_name_the_field, methods_paths_and_bodies,
         keys_hosts_and_origins, wrong_command_lines_are_refused, a_client_that_goes_away_is_cancelled, a_slow_reader_stalls_nobody_and_loses_nothing,
         a_full_line_refuses, sigterm_lets_requests_finish_and_refuses_new_ones, a_second_signal_ends_at_once, the_log_has_lines_and_no_prompts, malformed_requests_do_no_harm]


def main():
    asked = subprocess.run([VERBATIM, "serve", TALE, "--port", "0", "--host", "256.1.1.1"], capture_output=True, text=True)
    if "libmicrohttpd" in asked.stderr:
        print("skipped: this build has no HTTP server")
        return 0
    failed = passed = 0
    for test in TESTS:
        if len(sys.argv) > 2 and test.__name__ not in sys.argv[2:]:
            continue
        try:
            test()
            passed += 1
            print(f"[       OK ] {test.__name__}", flush=True)
        except Exception:  # of whatever kind: the others shall run, too
            failed += 1
            traceback.print_exc()
            print(f"[  FAILED  ] {test.__name__}", flush=True)
    print(f"[  PASSED  ] {passed} test(s).")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
