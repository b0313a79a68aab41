"""The package gives what the `verbatim` command gives, bit for bit."""

import ctypes
import itertools
import json
import subprocess
import threading

import numpy as np
import pytest
import verbatim
from conftest import BUILD, PROMPT, assert_same_bits, joined, path, read_safetensors, run
from verbatim import _library

WITH_MTP = ["tiny/v3", "tiny/v3-mtp3", "tiny/glm", "tale"]
SPARSE = ["tiny/v32", "tiny/glm5"]
ALL = WITH_MTP + ["tiny/v2", "tiny/v2-lite", "tiny/moonlight"] + SPARSE
METHODS = ["none"] + [m.name for m in verbatim.draft_methods() if not (m.needs_model or m.needs_head or m.needs_callback)]


# ---- generate -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature, threads", [(0, 2), (0.8, 1)])
@pytest.mark.parametrize("name", WITH_MTP)
def test_generate_is_the_commands_with_any_draft_method(models, name, temperature, threads):
    fingerprints = set()
    for draft in METHODS:
        said = run("generate", path(name), "--tokens", joined(PROMPT), "-n", 40, "--draft", draft, "--temperature", temperature,
                   "--seed", 5)
        result = models(name).generate(PROMPT, 40, draft=draft, temperature=temperature, seed=5, threads=threads)
        assert result.tokens == said["tokens"]
        assert result.fingerprint == said["fingerprint"]
        assert result.finish_reason == said["finish_reason"]
        for key in "forwards", "drafted", "accepted", "tokens_per_forward":
            assert result.stats[key] == pytest.approx(said["stats"][key]), key
        assert result.stats["accepted_by_depth"][: said["draft_tokens"]] == said["stats"]["accepted_by_depth"]
        fingerprints.add(result.fingerprint)
    assert len(fingerprints) == 1


@pytest.mark.parametrize("options", [dict(top_k=7), dict(top_p=0.7), dict(top_k=9, top_p=0.9, threads=1, isa="scalar")])
def test_sampling_options_are_the_commands(models, options):
    arguments = itertools.chain.from_iterable(("--" + name.replace("_", "-"), value) for name, value in options.items())
    said = run("generate", path("tale"), "--tokens", joined(PROMPT), "-n", 30, "--temperature", 1.5, "--seed", 2**64 - 1,
               *arguments)
    assert models("tale").generate(PROMPT, 30, temperature=1.5, seed=2**64 - 1, **options).tokens == said["tokens"]


@pytest.mark.parametrize("options", [
    dict(min_p=0.1, temperature=1), dict(repetition_penalty=1.4), dict(presence_penalty=2, temperature=0.7), dict(frequency_penalty=0.5),
])
def test_penalties_are_the_commands(models, options):
    arguments = itertools.chain.from_iterable(("--" + name.replace("_", "-"), value) for name, value in options.items())
    said = run("generate", path("tale"), "--tokens", joined(PROMPT), "-n", 30, *arguments)
    assert models("tale").generate(PROMPT, 30, **options).tokens == said["tokens"]


def test_stop_strings_are_the_commands(models):
    tokenizer = verbatim.Tokenizer(path("tale"))
    prompt = tokenizer.encode("Once upon a time")
    for stop in ["gambl"], ["never happens", "n, and"], ["never happens"]:
        arguments = itertools.chain.from_iterable(("--stop", text) for text in stop)
        said = run("generate", path("tale"), "--prompt", "Once upon a time", "-n", 40, *arguments)
        for draft in "none", "mtp-eagle":
            result = models("tale").generate(prompt, 40, draft=draft, tokenizer=tokenizer, stop=stop)
            assert (result.tokens, result.text, result.finish_reason) == (said["tokens"], said["text"], said["finish_reason"])
            assert result.stop_string == said["stop_string"]
    with pytest.raises(verbatim.VerbatimError, match="no tokenizer"):
        models("tale").generate(prompt, 4, stop="x")
    with pytest.raises(ValueError, match="null character"):
        models("tale").generate(prompt, 4, stop="a\0b", tokenizer=tokenizer)


@pytest.mark.parametrize("options", [
    dict(acceptance="rejection"), dict(acceptance="rejection", draft_sample_method="greedy"),
    dict(acceptance="relaxed", relaxed_topk=3, relaxed_delta=0.5, thinking=(PROMPT[3], 1000)),
    dict(acceptance="relaxed", relaxed_delta=0, thinking=(PROMPT[3], 1000)),
])
def test_acceptance_is_the_commands(models, options):
    names = {name.replace("thinking", "thinking_tokens"): value for name, value in options.items()}
    arguments = itertools.chain.from_iterable(
        ("--" + name.replace("_", "-"), joined(value) if name == "thinking_tokens" else value) for name, value in names.items())
    said = run("generate", path("tale"), "--tokens", joined(PROMPT), "-n", 60, "--ignore-eos", "--temperature", 0.9, "--draft",
               "mtp-vanilla", *arguments)
    result = models("tale").generate(PROMPT, 60, ignore_eos=True, temperature=0.9, draft="mtp-vanilla", threads=1, **options)
    assert (result.tokens, result.fingerprint) == (said["tokens"], said["fingerprint"])
    for key in "first_reject", "relaxed":
        assert result.stats[key] == said["stats"][key], key
    assert result.stats["rejected_by_depth"][:3] == said["stats"]["rejected_by_depth"]
    assert result.stats["relaxed_nats"] == pytest.approx(said["stats"]["relaxed_nats"])
    assert (result.stats["relaxed"] > 0) == (options["acceptance"] == "relaxed")
    assert (result.stats["relaxed_nats"] > 0) == ("relaxed_topk" in options)  # delta 0: only what is best, if not what was sampled


def test_a_draft_as_long_as_asked(models):
    said = run("generate", path("tale"), "--tokens", joined(PROMPT), "-n", 40, "--draft", "mtp-eagle", "--draft-tokens", 7)
    result = models("tale").generate(PROMPT, 40, draft="mtp-eagle", draft_tokens=7, threads=1)
    assert result.stats["accepted_by_depth"][:7] == said["stats"]["accepted_by_depth"]
    assert models("tale").generate(PROMPT, 10, draft="mtp-eagle", draft_tokens=0).stats["drafted"] == 0


def test_drafts_of_a_function_stand_where_they_are_right_and_change_nothing(models):
    model, asked = models("tiny/moonlight"), []
    plain = model.generate(PROMPT, 40, ignore_eos=True)
    timeline = PROMPT + plain.tokens

    def right(tokens, most):
        asked.append((tokens.tolist(), most))
        return timeline[len(tokens) : len(tokens) + most]

    def with_drafts(draft):
        return model.generate(PROMPT, 40, ignore_eos=True, draft=draft, draft_tokens=4, threads=1)

    result = with_drafts(right)
    assert (result.tokens, result.fingerprint) == (plain.tokens, plain.fingerprint)
    assert result.stats["accepted"] == result.stats["drafted"] > 0 and result.stats["forwards"] < 10
    assert all(tokens == timeline[: len(tokens)] and 1 <= most <= 4 for tokens, most in asked)
    for nonsense in lambda t, n: [-1] * n, lambda t, n: [7] * 100, lambda t, n: [model.vocab_size], lambda t, n: []:
        assert with_drafts(nonsense).fingerprint == plain.fingerprint
    for bad in lambda t, n: [0.5], lambda t, n: 1 / 0, lambda t, n: [2**40]:
        with pytest.raises((TypeError, ValueError, ZeroDivisionError)):
            with_drafts(bad)
    said = run("generate", path("tale"), "--tokens", joined(PROMPT * 3), "-n", 40, "--draft", "ngram", "--ngram-min", 1)
    mine = models("tale").generate(PROMPT * 3, 40, draft="ngram", draft_settings={"ngram-min": 1})
    assert (mine.fingerprint, mine.stats["drafted"]) == (said["fingerprint"], said["stats"]["drafted"])


@pytest.mark.parametrize("draft, head", [("eagle", "eagle/eagle1-v3"), ("eagle3", "eagle/eagle3-v3"), ("parallel-heads", "heads/parallel-v3")])
def test_a_published_head_drafts(models, draft, head):
    model = models("tiny/v3")
    plain = model.generate(PROMPT, 30, ignore_eos=True)
    result = model.generate(PROMPT, 30, ignore_eos=True, draft=draft, draft_head=path(head))
    assert result.stats["drafted"] > 0 and result.fingerprint == plain.fingerprint
    with pytest.raises(verbatim.VerbatimError, match="wants the directory of a draft head"):
        model.generate(PROMPT, 30, draft=draft)


def test_draft_methods_are_listed():
    methods = {m.name: m for m in verbatim.draft_methods()}
    assert set(METHODS) - {"none"} < set(methods)
    assert methods["ngram"].settings == {"ngram-min": "2", "ngram-max": "4"} and not methods["ngram"].trees
    assert methods["mtp-eagle"].trees and methods["mtp-eagle"].needs_modules and methods["eagle3"].needs_head
    assert methods["eagle-reroll"].by_history and methods["mtp-eagle"].keeps_state and not methods["ngram"].keeps_state


def test_heads_and_instruction_sets_are_told(models):
    assert [verbatim.draft_head(path(p)) for p in ("eagle/eagle1-v3", "eagle/eagle3-v3", "heads/parallel-v3", "tiny/v3")] == [1, 3, 100, 0]
    names = verbatim.instruction_sets()
    assert names[-1] == "scalar" and len(set(names)) == len(names)
    assert len({models("tiny/v3").generate(PROMPT, 3, ignore_eos=True, isa=name).fingerprint for name in names}) == 1


def test_trees_of_drafts(models):
    model = models("tiny/v3")
    plain = model.generate(PROMPT, 30, ignore_eos=True)
    tree = dict(draft="mtp-eagle", draft_tokens=4, draft_topk=3, draft_nodes=20)
    result = model.generate(PROMPT, 30, ignore_eos=True, **tree)
    assert result.fingerprint == plain.fingerprint and result.stats["accepted"] > 0
    said = run("draft", path("tiny/v3"), "--tokens", joined(PROMPT), "--draft", "mtp-eagle", "--draft-tokens", 4, "--draft-topk", 3, "--draft-nodes", 20)
    with model.session(context=60, **tree) as session:
        session.append(PROMPT)
        token, nodes = session.draft_tree()
    assert (token, [n[0] for n in nodes], [n[1] for n in nodes]) == (said["next"], said["drafts"], said["parents"])
    assert [n[2] for n in nodes] == sorted((n[2] for n in nodes), reverse=True) and len(nodes) == 20
    with pytest.raises(verbatim.VerbatimError, match="chains"):
        model.generate(PROMPT, 30, draft="mtp-vanilla", draft_topk=3)


def test_a_draft_vocabulary_changes_drafts_and_no_bit(models):
    model = models("tale")
    plain = model.generate(PROMPT, 40, ignore_eos=True)
    vocab = model.draft_vocab(sorted(set(plain.tokens))[:20])
    drafted = model.generate(PROMPT, 40, ignore_eos=True, draft="mtp-eagle", draft_tokens=2, draft_vocab=vocab)
    assert drafted.fingerprint == plain.fingerprint and drafted.stats["drafted"] > 0 and vocab.bytes > 0
    session = model.session(context=60, draft="mtp-eagle", draft_vocab=vocab)
    vocab.close()
    with pytest.raises(ValueError, match="the session is closed"):
        session.append(PROMPT)
    with pytest.raises(ValueError, match="the draft vocabulary is closed"):
        model.session(context=60, draft="mtp-eagle", draft_vocab=vocab)
    with pytest.raises(verbatim.VerbatimError, match="listed twice"):
        model.draft_vocab([3, 3])


def test_a_draft_model_drafts_and_lives_as_long_as_its_session(models):
    plain = models("tale").generate(PROMPT, 40)
    small = verbatim.Model(path("tale"), precision="bf16")
    session = models("tale").session(context=100, draft="draft-model", draft_model=small, draft_tokens=5, draft_p_min=0.1)
    session.append(PROMPT)
    result = session.generate(40)
    assert (result.tokens, result.fingerprint) == (plain.tokens, plain.fingerprint)
    assert result.stats["accepted"] > 10 and result.stats["draft_seconds"] > 0
    small.close()
    with pytest.raises(ValueError):
        session.generate(1)
    tokenizer = verbatim.Tokenizer(path("tale"))
    tokenizer.match(tokenizer)
    with pytest.raises(verbatim.VerbatimError, match="token"):
        tokenizer.match(verbatim.Tokenizer(path("tokenizer")))


@pytest.mark.parametrize("system, conventions, draft, padded", [
    ("vllm-2025", "as=vllm-2025", "mtp-eagle", False),
    ("mindie", "as=mindie,concat=hidden-embedding", "eagle-keep", True),
])
def test_conventions_are_the_commands(system, conventions, draft, padded):
    arguments = ["--padded"] * padded + (["--convention", "concat=hidden-embedding"] if "concat" in conventions else [])
    said = run("generate", path("tale"), "--tokens", joined(PROMPT), "-n", 40, "--draft", draft, "--as", system, *arguments)
    fillings = []
    with verbatim.Model(path("tale"), conventions=conventions) as model:
        result = model.generate(PROMPT, 40, draft=draft, padded=padded, threads=1,
                                on_tap=lambda tap: fillings.append((tap.rows["draft"] == -1).any()))
    assert any(fillings) == padded
    assert (result.tokens, result.fingerprint) == (said["tokens"], said["fingerprint"])
    assert (result.stats["drafted"], result.stats["accepted"]) == (said["stats"]["drafted"], said["stats"]["accepted"])


def test_logits_of_generate_chose_its_tokens_and_make_its_fingerprint(models):
    result = models("tiny/v3-mtp3").generate(PROMPT, 30, draft="mtp-eagle", logits=True)
    assert result.logits.shape == (len(result.tokens), models("tiny/v3-mtp3").vocab_size)
    assert result.logits.argmax(axis=1).tolist() == result.tokens
    rows = np.ascontiguousarray(result.logits)
    pointer = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    assert "%016x" % _library.library().vb_fingerprint(14695981039346656037, pointer, rows.size) == result.fingerprint


def test_a_session_goes_on_and_is_cut_with_the_bits_of_a_new_one(models):
    model = models("tiny/v3-mtp3")
    whole = model.generate(PROMPT, 24, draft="mtp-eagle", ignore_eos=True)
    with model.session(context=64, draft="mtp-eagle") as session:
        session.append(PROMPT)
        first = session.generate(10, ignore_eos=True).tokens
        assert session.tokens == PROMPT + first
        rest = session.generate(14, ignore_eos=True).tokens
        assert first + rest == whole.tokens
        session.truncate(len(PROMPT))
        again = session.generate(24, ignore_eos=True)
    assert (again.tokens, again.fingerprint) == (whole.tokens, whole.fingerprint)


def test_on_token_is_told_of_each_and_may_stop(models):
    events = []
    result = models("tale").generate(PROMPT, 40, draft="mtp-eagle", logits=True, threads=1,
                                     on_token=lambda e: events.append((e, e.logits.copy())) or len(events) == 12)
    assert result.finish_reason == "stopped" and len(result.tokens) == 12
    assert [e.token for e, _ in events] == result.tokens
    assert [e.index for e, _ in events] == list(range(len(PROMPT), len(PROMPT) + 12))
    assert sum(e.draft_depth > 0 for e, _ in events) == result.stats["accepted"] > 0
    assert_same_bits(np.array([row for _, row in events]), result.logits)


def test_bias_and_mask_decide(models):
    model = models("tale")
    assert model.generate(PROMPT, 5, bias={7: 1e6}).tokens == [7] * 5
    even = np.arange(model.vocab_size) % 2 == 0
    seen = []
    result = model.generate(PROMPT, 20, ignore_eos=True, draft="mtp-eagle",
                            mask=lambda tokens: seen.append(tokens.copy()) is None and even)
    assert len(result.tokens) == 20 and all(t % 2 == 0 for t in result.tokens)
    assert any(t % 2 for t in model.generate(PROMPT, 20, ignore_eos=True).tokens)
    assert seen[0].tolist() == PROMPT


@pytest.mark.parametrize("options", [
    dict(max_sequences=1), dict(draft="mtp-eagle", max_sequences=3), dict(draft="mtp-vanilla", cache_tokens=130, threads=1),
    dict(max_sequences=64, keep_apart=True, draft="ngram"), dict(temperature=0.9, draft="mtp-eagle", cache_tokens=130, bias={7: 2.5}),
    dict(temperature=0.9, acceptance="rejection", draft="mtp-vanilla", prefill_chunk=3),
])
def test_many_prompts_give_what_each_gives_alone(models, options):
    model, tokenizer = models("tale"), verbatim.Tokenizer(path("tale"))
    texts = ["Once upon a time", "The King", "And then the wolf", "Once upon a time there was a poor", "Now", "The fox"] * 2
    prompts, seeds, seen = [tokenizer.encode(text) for text in texts], list(range(len(texts))), {}
    results = model.generate_many(prompts, 50, seeds=seeds, tokenizer=tokenizer, stop=["King", "house"], on_result=seen.setdefault, **options)
    assert [seen[i] for i in seeds] == results
    own = {k: v for k, v in options.items() if k not in ("max_sequences", "cache_tokens", "keep_apart")}
    for prompt, seed, result in zip(prompts, seeds, results):
        alone = model.generate(prompt, 50, seed=seed, tokenizer=tokenizer, stop=["King", "house"], **own)
        for name in "tokens", "fingerprint", "finish_reason", "text", "stop_string":
            assert getattr(result, name) == getattr(alone, name), name


def test_many_prompts_that_go_wrong(models):
    model = models("tiny/v2")
    assert model.generate_many([], 4) == []
    for prompts, options, kind, sentence in [
        ([[5], []], {}, ValueError, "prompt 1 has no tokens"), ([[5]], dict(seeds=[1, 2]), ValueError, "2 seeds for 1 prompts"),
        ([[5]], dict(max_sequences=65), verbatim.VerbatimError, "wanted 1 to 64"), ([[5]], dict(on_tap=print), TypeError, "on_tap"),
        ([[5], [10**6]], {}, verbatim.VerbatimError, "outside the vocabulary"), ([[5]], dict(prefill="onednn"), verbatim.VerbatimError, "prefill"),
        ([[5] * 20], dict(cache_tokens=30), verbatim.VerbatimError, "do not fit into a cache"),
        ([[5]] * 3, dict(temperature=-1), verbatim.VerbatimError, "prompt 0: temperature"),
    ]:
        with pytest.raises(kind, match=sentence):
            model.generate_many(prompts, 4, **options)
    told = []
    with pytest.raises(KeyError, match="mine"):
        model.generate_many([[5]] * 100, 4, max_sequences=2, on_result=lambda number, result: told.append(number) or {}["mine"])
    assert len(told) == 1
    with pytest.raises(KeyError, match="mine"):
        model.generate_many([[5]] * 3, 4, mask=lambda tokens: {}["mine"])


def test_draft_is_the_commands(models):
    said = run("draft", path("tiny/v3-mtp3"), "--tokens", joined(PROMPT), "--draft", "mtp-vanilla", "--draft-tokens", 3)
    with models("tiny/v3-mtp3").session(context=64, draft="mtp-vanilla", draft_tokens=3) as session:
        session.append(PROMPT)
        assert session.draft() == (said["next"], said["drafts"])


# ---- logits and taps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_logits_are_the_commands_bit_for_bit(models, name, tmp_path):
    run("logits", path(name), "--tokens", joined(PROMPT), "-o", tmp_path / "l.safetensors")
    theirs = read_safetensors(tmp_path / "l.safetensors")["logits"]
    for options in {}, dict(prefill_chunk=3, threads=1), dict(isa="scalar", prefill_chunk=7):
        assert_same_bits(models(name).logits(PROMPT, **options), theirs, options)


@pytest.mark.parametrize("name", ALL)
def test_taps_are_the_dumps_bit_for_bit(models, name, tmp_path):
    shows_scores = name not in SPARSE  # a tap has the scores of the kept tokens only, the dump those of all tokens
    for glob, scores in [(None, False), ("*", True)][:1 + shows_scores]:
        taps = models(name).taps(PROMPT, scores=scores)
        run("dump", path(name), "--tokens", joined(PROMPT), "--force", "-o", tmp_path / "d.safetensors", *(("--taps", glob) if glob else ()))
        theirs = read_safetensors(tmp_path / "d.safetensors")
        assert set(taps) == set(theirs)
        for tensor in theirs:
            assert_same_bits(taps[tensor], theirs[tensor], tensor)
        for line in map(json.loads, (tmp_path / "d.jsonl").read_text().splitlines()):
            for field in "token", "index", "position", "slot", "draft":
                assert taps.rows[line["name"]][field].tolist() == line[field], line["name"]
    by_chunks = models(name).taps(PROMPT, scores=shows_scores, prefill_chunk=7, threads=1)
    assert set(by_chunks) == set(taps)
    for tensor in taps:
        assert_same_bits(by_chunks[tensor], taps[tensor], tensor)


@pytest.mark.parametrize("name", WITH_MTP)
def test_mtp_logits_are_the_taps_of_the_heads(models, name):
    model = models(name)
    rows = model.mtp_logits(PROMPT)
    taps = model.taps(PROMPT, "*.shared_head.head.output")
    heads = [taps[key] for key in sorted(taps)]
    assert len(rows) == len(heads) == model.mtp_modules > 0
    for ours, theirs in zip(rows, heads):
        assert_same_bits(ours, theirs)
    more = model.mtp_logits(PROMPT[:4], depths=model.mtp_modules + 2)
    assert [len(r) for r in more] == [max(3 - k, 0) for k in range(model.mtp_modules + 2)]


def test_taps_by_name(models):
    model = models("tiny/v3-mtp3")
    everything = model.taps(PROMPT)
    some = model.taps(PROMPT, ["*.mlp.gate.experts", "lm_head.output"], mtp=0)
    assert sorted(some) == ["lm_head.output", "model.layers.1.mlp.gate.experts", "model.layers.2.mlp.gate.experts"]
    assert some["model.layers.1.mlp.gate.experts"].dtype == np.int32
    for name in some:
        assert_same_bits(some[name], everything[name], name)
    assert_same_bits(some["lm_head.output"], model.logits(PROMPT))
    for expert in set(some["model.layers.1.mlp.gate.experts"].ravel()):
        chose = np.flatnonzero((some["model.layers.1.mlp.gate.experts"] == expert).any(axis=1))
        assert everything.rows["model.layers.1.mlp.experts.%d.output" % expert]["index"].tolist() == chose.tolist()
    with pytest.raises(ValueError, match="named nothing.here"):
        model.taps(PROMPT, ["*.output", "nothing.here"])
    with pytest.raises(ValueError, match="scores=True"):
        model.taps(PROMPT, "*.self_attn.scores.0")
    with pytest.raises(ValueError, match="3 modules"):
        model.taps(PROMPT, mtp=4)
    with pytest.raises(ValueError, match="one pass drafts nothing"):  # its modules would be told of twice
        model.taps(PROMPT, draft="mtp-eagle")


# ---- tokenizer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "Once upon a time", "naïve — ‘quotes’ \U0001f409\n\n  x", "<|end_of_sentence|>a", "a\0b"])
def test_tokenizer_is_the_commands(text, tmp_path):
    tokenizer = verbatim.Tokenizer(path("tale"))
    (tmp_path / "text").write_bytes(text.encode())
    ids = tokenizer.encode(text, bos=False)
    assert ids == run("tokenize", path("tale"), "--file", tmp_path / "text")
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text) == [tokenizer.bos_token] + ids and tokenizer.add_bos
    half = [t for t in range(1024) if tokenizer.piece(t) == b"\xf0"] + ids[:1]
    assert tokenizer.decode(half) == run("tokenize", path("tale"), "--decode", joined(half))["text"]
    assert tokenizer.piece(10**6) is None


# ---- threads ------------------------------------------------------------------------------------------------------------


def test_threads_share_a_model_beside_a_busy_numpy(models):
    model, results, failures, over = models("tale"), [], [], threading.Event()
    wanted = model.generate(PROMPT, 60, threads=1).fingerprint

    def products():
        a = np.random.default_rng(0).standard_normal((300, 300))
        while not over.is_set():
            a = np.tanh(a @ a / 300)

    def decode(threads, draft):
        try:
            results.append(model.generate(PROMPT, 60, threads=threads, draft=draft).fingerprint)
        except BaseException as e:
            failures.append(e)

    others = threading.Thread(target=products)
    others.start()
    workers = [threading.Thread(target=decode, args=(1 + i % 3, METHODS[i % 3])) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    over.set()
    others.join()
    assert not failures and results == [wanted] * 6


# ---- sessions in files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("draft", METHODS)
def test_a_loaded_session_goes_on_as_the_saved_one(models, tmp_path, draft, hidden):
    model, file = models("tiny/v3-mtp3"), tmp_path / "session"
    whole = model.generate(PROMPT, 20, temperature=0.9, seed=3, ignore_eos=True).tokens
    options = dict(context=60, draft=draft, temperature=0.9, seed=3, threads=1)
    with model.session(**options) as session:
        session.append(PROMPT)
        assert session.generate(8, ignore_eos=True).tokens == whole[:8]
        session.save(file, hidden=hidden)
        assert session.generate(12, ignore_eos=True).tokens == whole[8:]
        with pytest.raises(verbatim.VerbatimError, match="it exists"):
            session.save(file)
        session.save(file, hidden=hidden, replace=True)
        with model.session(load=file, **options) as loaded:
            assert loaded.tokens == session.tokens == PROMPT + whole


def test_a_prompt_is_read_here_and_continued_by_the_command(models, tmp_path):
    file = tmp_path / "session"
    with models("tale").session(context=64, draft="mtp-eagle") as session:
        session.append(PROMPT)
        session.prefill()
        session.save(file)
    info = verbatim.session_info(file, check_all=True)
    assert (info["tokens"], info["computed"], info["draft"], info["with_hidden"]) == (20, 19, "mtp-eagle", True)
    assert info == {key: value for key, value in run_info(file).items() if key != "file"}
    said = run("generate", path("tale"), "--session", file, "-n", 20, "--draft", "mtp-eagle")
    assert said["fingerprint"] == models("tale").generate(PROMPT, 20).fingerprint


def run_info(file):
    done = subprocess.run([str(BUILD / "verbatim"), "session", "info", str(file), "--json"], stdout=subprocess.PIPE, timeout=600, check=True)
    return json.loads(done.stdout)


def test_a_damaged_file_is_an_exception_with_the_librarys_sentence(models, tmp_path):
    file = tmp_path / "session"
    with models("tiny/v3").session(context=30) as session:
        session.append(PROMPT)
        session.save(file)
    with pytest.raises(verbatim.VerbatimError, match="another model"):
        models("tiny/v3-mtp3").session(load=file)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(verbatim.VerbatimError, match="damaged|cut short") as raised:
        models("tiny/v3").session(load=file)
    assert raised.value.code == verbatim.Code.BAD_CHECKPOINT
    with pytest.raises(verbatim.VerbatimError, match="No such file"):
        verbatim.session_info(tmp_path / "nothing")


def test_exactly_as_many_threads_compute_as_are_asked_for(models):
    with models("tale").session(context=64, threads=3, exact_threads=True) as session:
        session.append(PROMPT)
        session.generate(10)
        use = session.threads
    assert (use["most"], use["mean"], use["left_out"]) == (3, 3.0, 0)
    assert use["passes"] >= 10
