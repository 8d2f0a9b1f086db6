"""Harbor's tasks in real containers by real workers, which are killed again and again. Run `make
test-containers`.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollq import Client, Job
from rollq.events import Sampled
from rollq_integrations.sandbox import Container
from rollq_integrations.sandbox.containers.hosts import hosts
from rollq_integrations.sandbox.containers.lease import LEASE_S
from rollq_worker.agents.known_agents import add_file as add_agent_file
from rollq_worker.environments.files import add_file
from tests import container_engine
from tests.container_engine import containers
from tests.e2e.stack import Stack
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900), container_engine.UNCLOSED]
EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = f"harbor:{EXAMPLES / 'harbor'}"
SIZE, KILLS = 8, 6


@pytest.fixture(autouse=True)
def served() -> Iterator[None]:
    with container_engine.served():
        yield


@pytest.mark.parametrize("isolated", [False, True])
def test_no_container_is_left_after_a_storm_of_kills(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, isolated: bool
) -> None:
    monkeypatch.setenv("ROLLQ_ENV_FILES", "")
    name, run = add_file(TASKS), f"storm-{isolated}"
    monkeypatch.setenv("ROLLQ_ISOLATE", name if isolated else "")
    stack.engine("--env", TASKS, "--latency", "0.5")
    with Client(stack.redis_url, run=run) as client:
        client.submit([Job(env=name, task=0, size=SIZE, group=f"g{n}") for n in range(2)])
        client.seal()
        for _ in range(KILLS):
            worker = stack.worker(SIZE, "--env", TASKS)
            stack.wait(lambda: len(containers(run=run)) >= SIZE // 2, 150, "containers")
            worker.send_signal(signal.SIGKILL)
            worker.wait(60)
        until(lambda: not containers(run=run), 2 * LEASE_S)
        stack.worker(SIZE, "--env", TASKS)
        rewards = [t.reward for batch in client.batches(2, timeout=300) for t in batch.trajectories]
        stats = client.stats()
    assert rewards == [1.0] * 2 * SIZE
    assert stats["dead"] == 0 and stats["resumed"] > 0
    until(lambda: not containers(run=run), 2 * LEASE_S)


@pytest.mark.skipif(not shutil.which("podman"), reason="it stops a service of its own, Podman's")
@pytest.mark.parametrize("isolated", [False, True])
def test_an_outage_of_the_container_engine_kills_no_job(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, isolated: bool
) -> None:
    monkeypatch.setenv("ROLLQ_ENV_FILES", "")
    name, run = add_file(TASKS), f"outage-{isolated}"
    monkeypatch.setenv("ROLLQ_ISOLATE", name if isolated else "")
    stack.engine("--env", TASKS, "--latency", "1")
    with tempfile.TemporaryDirectory() as folder, Client(stack.redis_url, run=run) as client:
        socket = Path(folder, "engine.sock")
        service = container_engine.podman(socket)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
        client.submit([Job(env=name, task=0, size=SIZE, group=f"g{n}") for n in range(3)])
        client.seal()
        stack.worker(SIZE, "--env", TASKS)
        stack.wait(lambda: len(containers(run=run)) >= SIZE // 2, 150, "containers")
        service.kill()
        service.wait(60)
        stack.wait(lambda: "does not answer" in stack.run("top", "--once").stdout, 60, "a word")
        socket.unlink()
        service = container_engine.podman(socket)
        try:
            batches = client.batches(3, timeout=300)
            rewards = [t.reward for batch in batches for t in batch.trajectories]
            stats = client.stats()
            assert rewards == [1.0] * 3 * SIZE
            assert stats["dead"] == 0 and set(stats["failures"]) <= {"worker"}
            until(lambda: not containers(run=run), 2 * LEASE_S)
        finally:
            service.terminate()
            service.wait(60)


@pytest.mark.skipif(not shutil.which("podman"), reason="it starts a second engine, Podman's")
def test_a_host_that_dies_kills_no_job(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_ENV_FILES", "")
    name, run, groups = add_file(TASKS), "hosts", 3
    stack.engine("--env", TASKS, "--latency", "1")
    with (
        container_engine.other_host() as (address, other),
        Client(stack.redis_url, run=run) as client,
    ):
        monkeypatch.setenv("ROLLQ_SANDBOX_HOSTS", f"{address}, {os.environ['DOCKER_HOST']}")
        client.submit([Job(env=name, task=0, size=SIZE, group=f"g{n}") for n in range(groups)])
        client.seal()
        stack.worker(SIZE, "--env", TASKS)
        stack.wait(
            lambda: all(host.client.containers.list() for host in hosts()), 150, "both hosts"
        )
        other.kill()
        batches = client.batches(groups, timeout=600)
        rewards = [t.reward for batch in batches for t in batch.trajectories]
        stats = client.stats()
        assert rewards == [1.0] * groups * SIZE
        assert stats["dead"] == 0 and set(stats["failures"]) == {"worker"}
        until(lambda: not containers(run=run), 2 * LEASE_S)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An internal network, with the worker's endpoints at its gateway, which is there while a
    container is.
    """
    networks = hosts()[0].client.networks
    network = networks.create("rollq-test-agents", driver="bridge", internal=True)
    try:
        [subnet] = networks.get(network.id).attrs["IPAM"]["Config"]
        monkeypatch.setenv("ROLLQ_SANDBOX_NETWORK", network.name)
        monkeypatch.setenv("ROLLQ_AGENT_HOST", subnet["Gateway"])
        with Container(container_engine.IMAGE) as first:
            first.run(["true"])
            yield
    finally:
        network.remove()


def test_an_agent_plays_inside_of_its_container(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, network: None
) -> None:
    tasks = tmp_path / "tasks"
    shutil.copytree(EXAMPLES / "harbor", tasks)
    shutil.copy(
        Path(__file__).with_name("container_agent.py"),
        tasks / "fix-the-median" / "environment" / "agent.py",
    )
    with (tasks / "fix-the-median" / "environment" / "Dockerfile").open("a") as dockerfile:
        dockerfile.write("COPY agent.py /agent.py\n")
    for variable in ("ROLLQ_ENV_FILES", "ROLLQ_AGENT_FILES"):
        monkeypatch.setenv(variable, "")
    agent = str(EXAMPLES / "agents" / "in_container.py")
    job = Job(
        env=add_file(f"harbor:{tasks}"),
        task=0,
        size=4,
        group="g",
        agent=add_agent_file(f"{agent}:play"),
        agent_args={"command": "python3 /agent.py"},
    )
    stack.engine("--env", f"harbor:{tasks}")
    stack.worker(4, "--env", f"harbor:{tasks}", "--agent", f"{agent}:play")
    with Client(stack.redis_url, run="inside") as client:
        client.submit([job])
        client.seal()
        [batch] = client.batches(1, timeout=150)
        assert [t.reward for t in batch.trajectories] == [1.0] * 4
        assert all(
            len([e for e in t.events if isinstance(e, Sampled)]) == 2 for t in batch.trajectories
        )
        batch.ack()
    until(lambda: not containers(run="inside"), 60)
