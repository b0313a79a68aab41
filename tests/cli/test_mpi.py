#!/usr/bin/env python3
"""test_mpi.py VERBATIM [--all] [TEST...]: verbatim-mpi and verbatim-mpich, which lie beside VERBATIM, compute on several ranks what VERBATIM
computes in one process. Expected results always come from VERBATIM, which knows no MPI. Without --all, a sample in half a minute.

Runs in the repository's root, with Python's standard library alone. An implementation of MPI that is missing is skipped."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request

VERBATIM = sys.argv[1] if len(sys.argv) > 1 else "build/verbatim"
ALL = "--all" in sys.argv
ONLY = [a for a in sys.argv[2:] if a != "--all"]
TALE = "golden/tale"
PROMPT = ["--prompt", "Once upon a time"]
ONE = ["--threads", "1"]
PATIENCE = 300  # seconds after which something hangs, on a busy machine too
SOON = 10  # seconds in which all ranks end after one of them did

os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_plm_rsh_agent="/bin/false")
IMPLEMENTATIONS = {"mpi": ("mpirun.openmpi", ["--oversubscribe", "--bind-to", "none"]), "mpich": ("mpirun.mpich", [])}
HERE = [m for m, (launcher, _) in IMPLEMENTATIONS.items() if os.path.exists(f"{VERBATIM}-{m}") and shutil.which(launcher)]


def command(mpi, ranks, arguments):
    """A launcher's command line. `ranks`: the number of ranks, or a list of each rank's own arguments. If these begin with a folder, the rank runs there."""
    launcher, options = IMPLEMENTATIONS[mpi]
    program = os.path.abspath(f"{VERBATIM}-{mpi}")
    if isinstance(ranks, int):
        return [launcher, *options, "-n", str(ranks), program, *arguments]
    line = [launcher, *options]
    for i, own in enumerate(ranks):
        there = ["--wdir" if mpi == "mpi" else "-wdir", own[0]] if own and os.path.isdir(own[0]) else []
        line += [":"] * (i > 0) + ["-n", "1", *there, program, *arguments, *own[len(there) // 2:]]
    return line


def run(line, **how):
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, **{"stdin": subprocess.DEVNULL, **how})


def output(line, code=0, **how):
    ran = run(line, **how)
    assert ran.returncode == code, f"{line}: exit code {ran.returncode}, wanted {code}\n{ran.stdout[-1000:]}{ran.stderr[-3000:]}"
    return ran.stdout


def alone(*arguments, **how):
    return output([VERBATIM, *arguments], **how)


def ours(text):
    """The lines of stderr that the launcher did not write."""
    return [line for line in text.split("\n") if line.startswith("verbatim: ")]


def read(path):
    """The bytes of a file, or of the files of a folder."""
    if os.path.isdir(path):
        return {name: read(f"{path}/{name}") for name in os.listdir(path)}
    with open(path, "rb") as file:
        return file.read()


# ---- results --------------------------------------------------------------------------------------------------------


def said(answer):
    """The keys of generate --json that depend on the model and its drafts, not on the machine."""
    answer = json.loads(answer)
    stats = answer.pop("stats")
    return answer | {key: stats.get(key) for key in ("drafted_by_depth", "accepted_by_depth")}


def generate_is_the_same_with_unequal_shares_and_mixed_instruction_sets():
    isas = ["--isa=scalar", "--isa=avx2"] if os.uname().machine == "x86_64" else ["--isa=scalar", "--isa=neon"]
    for draft in ["none", "mtp-eagle", "mtp-vanilla", "ngram"] if ALL else ["mtp-eagle"]:
        arguments = ["generate", TALE, *PROMPT, "-n", "24", "--json", "--draft", draft, *ONE]
        expected = said(alone(*arguments))
        for mpi in HERE:
            line = command(mpi, [[isas[0]], ["--isa", "best"], [isas[1], "-t", "2"]], arguments + ["--ranks-weights", "5,1,3"])
            assert said(output(line)) == expected, line
            assert said(output(command(mpi, 2, arguments + ["--ranks-weights", "measured"]))) == expected


def drafts_from_a_list_of_tokens_are_the_same():
    with tempfile.NamedTemporaryFile("w") as file:
        with open(f"{TALE}/config.json", encoding="utf-8") as config:
            V = json.load(config)["vocab_size"]
        file.write("\n".join(str(t) for t in range(V) if t % 5 < 3))
        file.flush()
        for draft in ["mtp-eagle", "mtp-vanilla"] if ALL else ["mtp-eagle"]:
            arguments = ["generate", TALE, *PROMPT, "-n", "24", "--json", "--draft", draft, "--draft-vocab", f"@{file.name}", *ONE]
            expected = said(alone(*arguments))
            assert sum(expected["accepted_by_depth"]), "no listed draft is accepted"
            for mpi in HERE if ALL else HERE[:1]:
                for weights in ("5,1,3", "1,1") if ALL else ("5,1,3",):
                    line = command(mpi, weights.count(",") + 1, [*arguments, "--ranks-weights", weights])
                    assert said(output(line)) == expected, line


def verify_prints_the_fingerprints_of_one_process():
    def rows(text):
        said = json.loads(text)
        assert said["equal"]
        return [(r["draft"], r["auto"] or r["draft_tokens"], r["draft_topk"], r["threads"], r["chunk"], r["isa"], r["fingerprint"]) for r in said["rows"]]

    models = [TALE, "golden/tiny/v3-mtp3", "golden/tiny/v32", "golden/tiny/glm5", "golden/tiny/v2", "golden/gguf/tiny-quantized.gguf"] if ALL else [TALE]
    for model in models:
        arguments = ["verify", model, "--tokens", "5,6,7,8,9,5,6,7", "-n", "8", "--json"]
        expected = rows(alone(*arguments))
        for mpi in HERE:
            for ranks in [1, 2, 3, 4] if ALL else [4 if mpi == "mpi" else 2]:
                got = rows(output(command(mpi, ranks, arguments)))
                assert got == expected, f"{mpi}, {ranks} ranks, {model}: {[g for g in got if g not in expected]}"


def files_have_the_bytes_of_one_process():
    commands = {"logits": ["--tokens", "5,6,7,8"], "dump": ["--tokens", "5,6,7,8", "-n", "3"], "score": ["--file", f"{TALE}/prompts.jsonl"]}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, arguments) in enumerate(commands.items()):
            arguments = [name, TALE, *arguments, *ONE]
            alone(*arguments, "-o", f"{folder}/{name}")
            for mpi in HERE if ALL else HERE[number % len(HERE):][:1]:
                path = f"{folder}/{name}-{mpi}"
                output(command(mpi, 2, [*arguments, "-o", path]))
                assert read(path) == read(f"{folder}/{name}"), f"{name} on 2 ranks of {mpi} writes another file"


def other_commands_print_what_one_process_prints():
    eval_ = ["eval", TALE, "--tokens", "5,6,7,8,9,10,11,12", "--json"]
    drop = re.compile(r'"(seconds|tokens_per_second)": [0-9.e+-]*')
    for arguments in [eval_] if not ALL else [eval_, ["draft", TALE, *PROMPT, "--draft", "mtp-eagle"], ["trace", TALE, *PROMPT, "-n", "6"],
                                              ["conventions", "golden/tiny/v3-mtp3", "--tokens", "5,6,7"], ["inspect", TALE]]:
        expected = drop.sub("", alone(*arguments))
        for mpi in HERE if ALL else HERE[:1]:
            assert drop.sub("", output(command(mpi, 3, arguments))) == expected, arguments
    if ALL:
        for mpi in HERE:
            output(command(mpi, 2, ["bench", TALE, "--rounds", "1", "--only", "generate", *ONE]))
            demo = json.loads(output(command(mpi, 2, ["demo", TALE, *PROMPT, "-n", "12", "--rounds", "1", "--json", *ONE])))
            assert demo["equal"]


def batch_of(folder, name):
    path = f"{folder}/{name}"
    return path, ["generate", TALE, "--prompts", f"{TALE}/prompts.jsonl", "-n", "40", "-o", path, "--max-sequences", "5", "--cache-tokens", "400",
                  "--draft", "mtp-eagle", *ONE]


def answers(path):
    out = {}
    for line in read(path).decode().split("\n")[:-1]:
        answer = json.loads(line)
        out[answer["index"]] = {key: answer[key] for key in ("tokens", "fingerprint", "finish_reason")}
    return out


def batches_with_preemption_have_the_answers_of_one_process():
    with tempfile.TemporaryDirectory() as folder:
        path, arguments = batch_of(folder, "alone")
        preempted = json.loads(alone(*arguments, "--json"))["preemptions"]
        assert preempted, "the cache is so large that no sequence is preempted"
        for mpi in HERE if ALL else HERE[:1]:
            got, arguments = batch_of(folder, mpi)
            assert json.loads(output(command(mpi, 3, [*arguments, "--json"])))["preemptions"] == preempted
            assert answers(got) == answers(path), f"{mpi}: other answers"


def sessions_are_loaded_by_any_number_of_ranks():
    more = ["--prompt", " and then", "-n", "12", "--json", "--draft", "mtp-eagle", *ONE]
    with tempfile.TemporaryDirectory() as folder:
        first = ["generate", TALE, *PROMPT, "-n", "9", "--draft", "mtp-eagle", *ONE, "--save-session"]
        alone(*first, f"{folder}/alone")
        expected = said(alone("generate", TALE, "--session", f"{folder}/alone", *more))
        for mpi in HERE if ALL else HERE[-1:]:
            output(command(mpi, 2, [*first, f"{folder}/{mpi}"]))
            goes_on = ["generate", TALE, "--session", f"{folder}/{mpi}", *more]
            assert said(output(command(mpi, 3, goes_on))) == expected, f"{mpi}: saved with 2 ranks, loaded with 3"
            assert said(alone(*goes_on)) == expected, f"{mpi}: saved with 2 ranks, loaded by one process"


def chat_reads_stdin_on_rank_0():
    lines = "Tell me of the king.\nAnd the queen?\n"
    arguments = ["chat", TALE, "-n", "10", *ONE]
    expected = alone(*arguments, stdin=None, input=lines)
    for mpi in HERE if ALL else HERE[:1]:
        assert output(command(mpi, 2, arguments), stdin=None, input=lines) == expected, mpi


def one_rank_without_a_launcher_is_as_one_process():
    for mpi in HERE:
        for arguments in [["--help"], ["generate", TALE, *PROMPT, "-n", "5", "--ranks-weights", "7"]]:
            mine = [a for a in arguments if a not in ("--ranks-weights", "7")]
            assert output([f"{VERBATIM}-{mpi}", *arguments]) == alone(*mine), arguments


def traffic_is_what_the_document_says():
    """docs/RANKS.md: a layer has four gathers, and the output head one; these are their f32 numbers"""
    with open(f"{TALE}/config.json", encoding="utf-8") as file:
        c = json.load(file)
    dense, sparse = c["first_k_dense_replace"], c["num_hidden_layers"] - c["first_k_dense_replace"]
    expert = (c["moe_intermediate_size"] + 31) // 32 * 32
    middle = dense * c["intermediate_size"] + sparse * expert * (c["num_experts_per_tok"] + c["n_shared_experts"])
    numbers = c["num_hidden_layers"] * (c["num_attention_heads"] * c["v_head_dim"] + 2 * c["hidden_size"]) + middle + c["vocab_size"]
    mpi = HERE[0]
    runs = [json.loads(output(command(mpi, 2, ["generate", TALE, "--tokens", "5,6", "-n", n, "--ignore-eos", "--json", *ONE])))["stats"]["ranks"] for n in ("4", "14")]
    change = [runs[1][key] - runs[0][key] for key in ("passes", "gathers", "gathered_bytes")]
    assert change == [10, 10 * (4 * c["num_hidden_layers"] + 1), 10 * 4 * numbers], change
    for rank in runs[0]["ranks"]:
        assert rank["host"] and rank["weight_bytes"] and rank["resident_bytes"] and rank["gather_seconds"] > 0, rank
    text = run(command(mpi, 2, ["generate", TALE, "--tokens", "5,6", "-n", "4", "--stats", *ONE])).stderr
    assert len(re.findall(r"^rank [01] on \S+: weights [0-9.]+ MB, memory in use [0-9.]+ MB$", text, re.M)) == 2, text
    assert len(re.findall(r"^rank [01] on .* s in gathers$", text, re.M)) == 2, text


# ---- errors ---------------------------------------------------------------------------------------------------------


def errors_are_one_sentence():
    generate = ["generate", TALE, *PROMPT, "-n", "4"]
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/a/model")
        os.makedirs(f"{folder}/b/model")
        for name in os.listdir(TALE):
            for side in "ab":
                shutil.copy(f"{TALE}/{name}", f"{folder}/{side}/model/{name}")
        weights = next(n for n in sorted(os.listdir(f"{folder}/b/model")) if n.endswith(".safetensors"))
        with open(f"{folder}/b/model/{weights}", "r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last[0] ^ 1]))
        os.makedirs(f"{folder}/c")
        wrong = [
            ([[], ["--seed", "1"]], generate, 2, "rank 1 (.*) has another command line than rank 0 .*; only --isa and --threads may differ"),
            ([[f"{folder}/a"], [f"{folder}/b"]], ["generate", "model", *PROMPT], 1, "model: rank 1 has another model there than rank 0 .*"),
        ]
        more = [
            (2, [*generate, "--bogus"], 2, "unknown option --bogus.*"),
            (2, [*generate, "--threads", "none"], 2, "--threads is none, wanted an integer from 1 to 4096"),
            ([[], ["--threads", "none"]], generate, 2, "rank 1 (.*): --threads is none, wanted an integer from 1 to 4096"),
            ([[], ["--isa", "mmx"]], generate, 2, "rank 1 (.*): unknown instruction set mmx.*"),
            (3, [*generate, "--ranks-weights", "1,1"], 2, "--ranks-weights is 1,1, wanted \"measured\", or 3 numbers above 0 .*"),
            (2, [*generate, "--prefill", "onednn"], 2, "prefill onednn is for one process.*"),
            (2, [*generate, "--numa", "bind"], 2, "numa bind is for one process.*"),
            ([[f"{folder}/a"], [f"{folder}/c"]], ["generate", "model", *PROMPT], 1, "rank 1 (.*): model.*No such file or directory"),
        ]
        for i, (ranks, arguments, code, sentence) in enumerate(wrong + more if ALL else wrong + more[::3]):
            for mpi in HERE if ALL else HERE[:1] if i == 1 else HERE[-1:]:  # Open MPI's launcher takes seconds to report a code
                ran = run(command(mpi, ranks, arguments))
                found = ours(ran.stderr)
                pattern = "verbatim: " + sentence.replace("(.*)", r"\(.*\)")
                assert ran.returncode == code and len(found) == 1 and re.fullmatch(pattern, found[0]), f"{mpi} {arguments}: {ran.returncode} {ran.stderr}"
    refused = run([VERBATIM, *generate, "--ranks-weights", "1,1"])
    assert refused.returncode == 2 and "verbatim-mpi" in refused.stderr, refused.stderr


# ---- ends -----------------------------------------------------------------------------------------------------------


def ranks_of(launcher):
    """{rank: pid} of the processes below a launcher"""
    children, out = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = read(f"/proc/{pid}/stat").decode(errors="replace")
            children.setdefault(int(stat[stat.rindex(")") + 2:].split()[1]), []).append(int(pid))
        except OSError:
            pass
    below = [launcher]
    for pid in below:
        below += children.get(pid, [])
        try:
            rank = re.search(rb"\0(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)\0", b"\0" + read(f"/proc/{pid}/environ"))
            if rank and b"verbatim" in read(f"/proc/{pid}/comm"):
                out[int(rank[1])] = pid
        except OSError:
            pass
    return out


def is_there(pid):
    try:
        return ") Z " not in read(f"/proc/{pid}/stat").decode(errors="replace")
    except OSError:
        return False


running = []  # all of them; what a failed test leaves is killed


class Running:
    """A run that the test will end, after all its ranks have started."""

    def __init__(self, mpi, ranks, arguments, machines=None):
        self.errors = tempfile.TemporaryFile("w+")
        line = machines.command(mpi, arguments) if machines else command(mpi, ranks, arguments)
        self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.errors)
        running.append(self)
        self.pids = {}
        self.wait_for(lambda: len(ranks_of(self.process.pid)) == ranks)
        self.pids = ranks_of(self.process.pid)

    def said(self):
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, f"it ended or hangs: {self.said()}"
            time.sleep(0.02)

    def kill(self):
        for pid in filter(is_there, [self.process.pid, *self.pids.values()]):
            os.kill(pid, signal.SIGKILL)

    def ended(self):
        """Returns the exit code. Fails if a rank still runs after SOON seconds."""
        began = time.monotonic()
        try:
            code = self.process.wait(PATIENCE)
            while any(map(is_there, self.pids.values())):
                assert time.monotonic() < began + PATIENCE, f"ranks remain: {self.pids}"
                time.sleep(0.02)
        finally:
            self.kill()
        took = time.monotonic() - began
        assert took < SOON, f"the ranks ended after {took:.1f} s"
        return code


def a_killed_rank_ends_all_and_a_batch_goes_on():
    chance = random.Random(19)
    with tempfile.TemporaryDirectory() as folder:
        expected, arguments = batch_of(folder, "alone")
        alone(*arguments)
        for i in range(20 if ALL else 2):
            mpi = HERE[i % len(HERE)]
            path, arguments = batch_of(folder, str(i))
            went = Running(mpi, 2 + i % 2, arguments)
            time.sleep(chance.random())
            victim = chance.randrange(2 + i % 2)
            if went.process.poll() is None and is_there(went.pids[victim]):
                os.kill(went.pids[victim], chance.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM]))
                code = went.ended()
                there = answers(path) if os.path.exists(path) else {}
                assert code or len(there) == len(answers(expected)), f"a rank was killed, and the exit code is 0: {went.said()}"
            output(command(mpi, 2, arguments) if i % 2 else [VERBATIM, *arguments])
            assert answers(path) == answers(expected), f"after the death of rank {victim}, the batch ends with other answers"


def ctrl_c_ends_a_run_as_in_one_process():
    for mpi in HERE if ALL else HERE[:1]:
        with tempfile.TemporaryDirectory() as folder:
            arguments = ["generate", TALE, "--prompts", f"{TALE}/prompts.jsonl", "-n", "400", "--ignore-eos", "-o", f"{folder}/out", *ONE]
            went = Running(mpi, 2, arguments)
            went.wait_for(lambda: os.path.exists(f"{folder}/out") and read(f"{folder}/out"))
            os.kill(went.pids[0], signal.SIGINT)
            code = went.ended()
            assert code == 130 and "the same command goes on" in went.said(), f"{mpi}: {code} {went.said()}"


def a_file_that_is_cut_short_names_rank_and_file():
    """A follower maps a file that another program then truncates. It ends by _exit, without MPI_Finalize."""
    mpi = HERE[-1]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(TALE, f"{folder}/model")
        server = Served(mpi, 2, f"{folder}/model")
        for name in os.listdir(f"{folder}/model"):
            if name.endswith(".safetensors"):
                os.truncate(f"{folder}/model/{name}", 4096)
        try:
            server.ask("Once")
        except urllib.error.HTTPError as error:
            raise AssertionError("the request was refused") from error
        except OSError:  # the connection is closed
            pass
        assert server.went.ended() != 0
        found = ours(server.went.said())
        assert found and all(re.fullmatch(r"verbatim: rank [01] \(.*\): .*/model/.*: it was cut short.*", line) for line in found), server.went.said()


class Served:
    def __init__(self, mpi, ranks, model=TALE, *options):
        self.went = Running(mpi, ranks, ["serve", model, "--port", "0", *ONE, *options])
        self.went.wait_for(lambda: "listening on" in self.went.said() and "rank 0 is process" in self.went.said())
        self.port = int(re.search(r"listening on http://\S*:(\d+)", self.went.said())[1])

    def ask(self, prompt):
        body = json.dumps({"prompt": prompt, "max_tokens": 24, "temperature": 0}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())["choices"][0]["text"]


def seconds_of(pid):
    fields = read(f"/proc/{pid}/stat").decode().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve_answers_and_sleeps_and_ends():
    expected = alone("generate", TALE, *PROMPT, "-n", "24", "--no-bos")
    expected_bos = alone("generate", TALE, *PROMPT, "-n", "24")
    for mpi in HERE:
        server = Served(mpi, 2, TALE, "--draft", "mtp-eagle")
        for _ in range(2):
            assert server.ask("Once upon a time") in (expected[:-1], expected_bos[:-1]), mpi
            before = seconds_of(server.went.pids[1])
            time.sleep(2)
            used = seconds_of(server.went.pids[1]) - before
            assert used < 0.4, f"{mpi}: a rank that waits for requests used {used} s of 2 s"
            if not ALL:
                break
        number = int(re.search(r"rank 0 is process (\d+)", server.went.said())[1])
        assert number == server.went.pids[0]
        os.kill(number, signal.SIGTERM)
        assert server.went.ended() == 0, server.went.said()
        if ALL or mpi == "mpich":  # Open MPI's launcher always returns 1 after a signal
            server = Served(mpi, 2)
            server.went.process.send_signal(signal.SIGTERM)
            code = server.went.ended()
            assert code == (0 if mpi == "mpich" else 1) and "stopping: requests" in server.went.said(), f"{mpi}: {code} {server.went.said()}"


def a_signal_to_one_rank_alone_ends_all():
    for mpi in HERE:
        server = Served(mpi, 2)
        os.kill(server.went.pids[1], signal.SIGINT)
        assert server.went.ended() != 0


# ---- two machines ---------------------------------------------------------------------------------------------------

AGENT = """#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac do shift; done # options of ssh
[ "$1" = 10.77.19.1 ] && name=NAME1 || name=NAME2
shift
exec ip netns exec $name unshare --uts sh -c "hostname $name; $*"
"""


class TwoMachines:
    """Two network namespaces, each with its own address and host name, connected only by a veth pair."""

    def __enter__(self):
        self.names = [f"verbatim{os.getpid()}{side}" for side in "ab"]
        self.folder = tempfile.TemporaryDirectory()
        self.agent = f"{self.folder.name}/agent"
        with open(self.agent, "w") as file:
            file.write(AGENT.replace("NAME1", self.names[0]).replace("NAME2", self.names[1]))
        os.chmod(self.agent, 0o755)
        for name in self.names:
            output(["ip", "netns", "add", name])
        output(["ip", "link", "add", "veth0", "netns", self.names[0], "type", "veth", "peer", "name", "veth0", "netns", self.names[1]])
        for number, name in enumerate(self.names):
            output(["ip", "-n", name, "addr", "add", f"10.77.19.{number + 1}/24", "dev", "veth0"])
            for device in ("veth0", "lo"):
                output(["ip", "-n", name, "link", "set", device, "up"])
        for name in self.names:
            while json.loads(output(["ip", "-n", name, "-j", "link", "show", "veth0"]))[0]["operstate"] != "UP":
                time.sleep(0.02)
        return self

    def __exit__(self, *rest):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        self.folder.cleanup()

    def command(self, mpi, arguments):
        """Two ranks, one on each machine; the launcher is on the first."""
        if mpi == "mpi":
            options = ["--host", "10.77.19.1:1,10.77.19.2:1", "--bind-to", "none", "--mca", "plm_rsh_agent", self.agent, "--mca", "pml", "ob1", "--mca", "btl",
                       "tcp,self", "--mca", "btl_tcp_if_include", "veth0", "--mca", "oob_tcp_if_include", "veth0"]
        else:
            options = ["-launcher", "ssh", "-launcher-exec", self.agent, "-hosts", "10.77.19.1,10.77.19.2", "-genv", "UCX_TLS", "tcp", "-genv", "UCX_NET_DEVICES", "veth0"]
        here = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c", f'hostname {self.names[0]}; exec "$@"', "sh"]
        return [*here, IMPLEMENTATIONS[mpi][0], *options, "-n", "2", os.path.abspath(f"{VERBATIM}-{mpi}"), *arguments]

    def sent(self):
        """Bytes that were sent over the network so far."""
        said = [json.loads(output(["ip", "-n", name, "-s", "-j", "link", "show", "veth0"])) for name in self.names]
        return sum(one[0]["stats64"]["tx"]["bytes"] for one in said)


def can_make_machines():
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare"))) and run(["unshare", "--net", "--uts", "true"]).returncode == 0


def two_machines_compute_over_tcp():
    if not can_make_machines():
        print("skipped: two network namespaces need root, `ip netns` and `unshare`; not tested: ranks on two machines over TCP")
        return
    arguments = ["generate", TALE, *PROMPT, "-n", "40", "--json", "--draft", "mtp-eagle", *ONE]
    expected = said(alone(*arguments))
    with TwoMachines() as machines:
        for mpi in HERE:
            before = machines.sent()
            answer = output(machines.command(mpi, arguments))
            ranks = json.loads(answer)["stats"]["ranks"]
            assert said(answer) == expected, f"{mpi}: two machines compute something else"
            assert [rank["host"] for rank in ranks["ranks"]] == machines.names, ranks
            assert machines.sent() - before > ranks["gathered_bytes"], "the bytes did not go through the network"
            verified = json.loads(output(machines.command(mpi, ["verify", "golden/tiny/v3-mtp3", "--tokens", "5,6,7,8", "-n", "6", "--json"])))
            assert verified["equal"], verified
            for victim in (0, 1):
                went = Running(mpi, 2, ["generate", TALE, "--prompts", f"{TALE}/prompts.jsonl", "-n", "400", "--ignore-eos", *ONE], machines)
                os.kill(went.pids[victim], signal.SIGKILL)
                assert went.ended() != 0


TESTS = [generate_is_the_same_with_unequal_shares_and_mixed_instruction_sets, drafts_from_a_list_of_tokens_are_the_same, verify_prints_the_fingerprints_of_one_process,
         files_have_the_bytes_of_one_process, other_commands_print_what_one_process_prints, batches_with_preemption_have_the_answers_of_one_process,
         sessions_are_loaded_by_any_number_of_ranks, chat_reads_stdin_on_rank_0, one_rank_without_a_launcher_is_as_one_process,
         traffic_is_what_the_document_says, errors_are_one_sentence, a_killed_rank_ends_all_and_a_batch_goes_on,
         ctrl_c_ends_a_run_as_in_one_process, a_file_that_is_cut_short_names_rank_and_file, serve_answers_and_sleeps_and_ends]
if ALL:
    TESTS += [a_signal_to_one_rank_alone_ends_all, two_machines_compute_over_tcp]


def main():
    failed = 0
    for mpi, (launcher, _) in IMPLEMENTATIONS.items():
        if mpi not in HERE:
            print(f"skipped: {VERBATIM}-{mpi} or {launcher} is not there (`make deps MPI=yes` installs MPI)")
    for test in TESTS if HERE else []:
        if ONLY and test.__name__ not in ONLY:
            continue
        began = time.monotonic()
        try:
            test()
            print(f"ok {test.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {test.__name__}\n{traceback.format_exc()}", flush=True)
            for one in running:
                one.kill()
    passed = len(ONLY or TESTS) - failed if HERE else 0
    print(f"[  PASSED  ] {passed} test(s).")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
