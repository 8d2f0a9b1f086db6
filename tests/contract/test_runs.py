"""A run of real workers on a real server, SGLang or vLLM: the server dies and gets new weights by
command, and a worker dies.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollq import Budget, Client, Job
from rollq.export.record import record
from rollq.weights import Fleet
from tests.contract.conftest import ONLY_REAL, VLLM, Server
from tests.e2e.stack import Stack
from tests.recorder import Recorder, recording

HERE = Path(__file__).parent
GROUPS, SIZE = 6, 4
JOBS = GROUPS * SIZE


@pytest.fixture
def stack(tmp_path: Path, redis_url: str) -> Iterator[Stack]:
    stack = Stack(tmp_path, redis_url)
    yield stack
    stack.close()


@pytest.fixture
def server(slow_server: Server) -> Iterator[Server]:
    """Has its own weights again after the test."""
    model = slow_server.model_path()
    yield slow_server
    Fleet([slow_server.url]).update(model, "restored")


def submit(client: Client) -> None:
    """Episodes of some seconds."""
    client.publish(0, "default")
    client.limit_staleness(groups_per_batch=GROUPS, max_staleness=1)
    budget = Budget(max_turns=8, max_new_tokens=300)
    jobs = [Job(env="shop", task=task, size=SIZE, budget=budget) for task in range(GROUPS)]
    client.submit(jobs)
    client.seal()


def wait_for_turns(more: int, stack: Stack, proxy: Recorder) -> None:
    def answered() -> int:
        return [call["status"] for call in proxy.calls()].count(200)

    target = answered() + more
    stack.wait(lambda: answered() >= target, 300, "turns")


def assert_seen(line: dict[str, Any], proxy: Recorder) -> None:
    """Each sampled token of the line is one of a reply to the tokens before it, with its logprob
    and version.
    """
    tokens = line["tokens"]
    seen: dict[int, tuple[float, str]] = {}
    for call in proxy.calls():
        if call["status"] != 200 or not call["request"]["rid"].startswith(line["job"] + "/"):
            continue
        before, after = call["request"]["input_ids"], call["reply"]["output_ids"]
        start = len(before)
        if tokens[: start + len(after)] != before + after:
            continue  # sampled for a worker that died
        meta = call["reply"]["meta_info"]
        versions = [
            span["version"]
            for span in meta["weight_versions"]
            for _ in range(span["end"] - span["start"])
        ]
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]]
        seen |= dict(enumerate(zip(logprobs, versions, strict=True), start))
    sampled = [at for at, bit in enumerate(line["mask"]) if bit]
    assert [line["versions"][at] for at in sampled] == [seen[at][1] for at in sampled]
    assert [line["logprobs"][at] for at in sampled] == pytest.approx(
        [seen[at][0] for at in sampled], abs=1e-6
    )


@pytest.mark.parametrize("slow_server", [*ONLY_REAL, VLLM], indirect=True)
def test_a_run_through_deaths_and_new_weights(server: Server, stack: Stack, tmp_path: Path) -> None:
    if server.process is None:
        pytest.skip("this server was running before the tests")
    model, other = server.model_path(), str(tmp_path / "other")
    python = server.venv / "bin/python"
    subprocess.run([python, HERE / "other_weights.py", model, other], check=True)
    with (
        recording(server.url, tmp_path / "calls.jsonl") as proxy,
        Client(stack.redis_url, run="run") as client,
    ):
        submit(client)
        workers = ("--tokenizer", model)
        first = stack.worker(8, *workers, engine_url=proxy.url)
        wait_for_turns(3, stack, proxy)
        server.process.crash()

        wait_for_turns(3, stack, proxy)
        where = ["--engine", server.url, "--run", "run", "--step", "1"]
        synced = stack.run("engines", "sync", "--path", other, "--version", "w1", *where)
        assert synced.returncode == 0, synced.stderr
        assert client.stats()["done"] < JOBS

        wait_for_turns(3, stack, proxy)
        assert client.stats()["leased"] > 0
        first.kill()
        stack.worker(8, *workers, engine_url=proxy.url)
        [batch] = client.batches(groups=GROUPS, timeout=600)
        client.publish(2, "w2")
        batch.ack()
        stats = client.stats()
        lines = [record(trajectory) for trajectory in batch.trajectories]
        for line in lines:
            assert_seen(line, proxy)
    assert len({line["job"] for line in lines}) == len(lines) == JOBS
    assert (stats["done"], stats["delivered"], stats["dead"]) == (JOBS, JOBS, 0)
    assert not stats["failures"].keys() - {"worker"}, stack.logs()
    assert batch.staleness.max <= 1

    (file := tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for folder, version in ((model, "default"), (other, "w1")):
        command = (python, HERE / "rescore.py", folder, file, version)
        scored = subprocess.run(command, capture_output=True, check=True)
        found = json.loads(scored.stdout)
        assert found["tokens"] == sum(line["versions"].count(version) for line in lines) > 0
        assert found["mean"] < 0.02 and found["max"] < 0.5 and found["shifted"] > 0.2, found
