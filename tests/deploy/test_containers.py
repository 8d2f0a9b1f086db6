"""docker-compose.yml brought up for real: built, played to its end, scaled, killed and restarted.
Nothing is lost.

It needs Docker with compose, or podman with podman-compose; ROLLQ_COMPOSE names another. Run `make
test-containers`.
"""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPO, free_port
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

PROJECT = "rollqtest"
DEMO_JOBS = 128
GROUPS, SIZE = 96, 4


def compose_command() -> list[str]:
    if named := os.environ.get("ROLLQ_COMPOSE"):
        return shlex.split(named)
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "compose", "ls"], capture_output=True).returncode == 0
    ):
        return ["docker", "compose"]
    if found := shutil.which("podman-compose"):
        return [found]
    pytest.fail(
        "no container engine: install Docker with compose, or podman and podman-compose, "
        "or set ROLLQ_COMPOSE"
    )


class Project:
    """The compose file in a clone of its own, with free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = compose_command()
        self.engine = "podman" if "podman" in self.command[0] else "docker"
        subprocess.run(["git", "clone", "-q", str(REPO), str(folder)], check=True)
        subprocess.run(["deploy/secrets.sh"], cwd=folder, check=True, capture_output=True)
        self.flower_port = free_port()
        ports = {"ROLLQ_REDIS_PORT": free_port(), "FLOWER_PORT": self.flower_port}
        with (folder / ".env").open("a") as env:
            env.writelines(f"{name}={value}\n" for name, value in ports.items())

    def compose(self, *arguments: str, check: bool = True) -> str:
        """What the command says on stdout."""
        command = [*self.command, "-p", PROJECT, "--profile", "demo", *arguments]
        ended = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=1200
        )
        assert not check or ended.returncode == 0, (
            f"{command}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
        )
        return ended.stdout

    def ask(self, *arguments: str) -> str:
        return subprocess.run(
            [self.engine, *arguments], check=True, capture_output=True, text=True, timeout=120
        ).stdout

    def containers(self, service: str) -> list[str]:
        labels = [
            f"label=com.docker.compose.{name}"
            for name in (f"project={PROJECT}", f"service={service}")
        ]
        filters = [part for label in labels for part in ("--filter", label)]
        return sorted(self.ask("ps", "-a", *filters, "--format", "{{.Names}}").split())

    def ended(self, service: str) -> int | None:
        """The exit code of a service that has ended, else None."""
        running, code = self.ask(
            "inspect", "-f", "{{.State.Running}} {{.State.ExitCode}}", *self.containers(service)
        ).split()
        return None if running == "true" else int(code)

    def rollq(self, service: str, *arguments: str) -> str:
        return self.compose("run", "--rm", "-T", "--no-deps", service, *arguments)

    def remove(self) -> None:
        """All of it. Some implementations of `down` leave the containers of a service that was
        scaled, and what these depend on.
        """
        self.compose("down", "-v", check=False)
        for service in ("worker", "redis"):
            for container in self.containers(service):
                self.ask("rm", "-f", container)
        self.compose("down", "-v", check=False)

    def play_demo(self) -> None:
        """From `up` to the end of producer and trainer."""
        self.compose("up", "-d", "--scale", "worker=2")
        for service in ("producer", "trainer"):
            until(lambda service=service: self.ended(service) is not None, 300)  # type: ignore[misc]
            assert self.ended(service) == 0, self.ask("logs", *self.containers(service))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("compose") / "rollq")
    try:
        made.remove()  # what a test that was cut off has left
        made.compose("build")
        made.play_demo()
        yield made
    finally:
        made.remove()


def test_the_demo_ends_and_a_second_up_does_too(project: Project) -> None:
    count = ("sh", "-c", "wc -l < /out/demo.jsonl")
    assert int(project.rollq("trainer", *count)) == DEMO_JOBS
    project.play_demo()
    assert int(project.rollq("trainer", *count)) == DEMO_JOBS


def test_what_runs_for_long_is_healthy(project: Project) -> None:
    def healthy(container: str) -> bool:
        if project.engine == "podman":  # where nothing runs them
            return (
                subprocess.run(
                    ["podman", "healthcheck", "run", container], capture_output=True
                ).returncode
                == 0
            )
        return (
            project.ask("inspect", "-f", "{{.State.Health.Status}}", container).strip() == "healthy"
        )

    for service in ("redis", "worker", "flower", "engine"):
        for container in project.containers(service):
            until(lambda container=container: healthy(container), 120)  # type: ignore[misc]


def test_containers_are_confined_and_show_no_password(project: Project) -> None:
    password = (project.folder / "secrets/worker-url").read_text().split(":")[2].split("@")[0]
    for container in project.containers("worker"):
        text = project.ask("inspect", container)
        assert password not in text
        assert json.loads(text)[0]["HostConfig"]["ReadonlyRootfs"] is True
        assert project.ask("exec", container, "id", "-u").strip() == "1000"
        assert password not in project.ask("exec", container, "env")


def test_kills_a_restart_of_redis_and_more_workers_lose_nothing(project: Project) -> None:
    tasks = ["--tasks", f"0-{GROUPS - 1}", "--size", str(SIZE), "--seal"]
    project.rollq("producer", "rollq", "submit", "--run", "faults", "--env", "shop", *tasks)
    first, *_ = project.containers("worker")
    redis = project.containers("redis")[0]
    project.ask("kill", first)
    project.ask("restart", redis)
    project.compose("up", "-d", "--no-recreate", "--scale", "worker=3", "worker")
    project.ask("kill", redis)
    project.ask("start", redis)
    out = ["--out", "/out/faults.jsonl", "--timeout", "300"]
    project.rollq("trainer", "rollq", "pull", "--run", "faults", "--groups", str(GROUPS), *out)
    stats = json.loads(project.rollq("trainer", "rollq", "stats", "--run", "faults", "--json"))
    assert [stats[name] for name in ("done", "delivered", "dead")] == [
        GROUPS * SIZE,
        GROUPS * SIZE,
        0,
    ]
    assert int(project.rollq("trainer", "sh", "-c", "wc -l < /out/faults.jsonl")) == GROUPS * SIZE


def test_a_backup_of_redis_is_enough_to_go_on(project: Project) -> None:
    """As docs/deploy.md says it."""
    project.compose("stop", "redis")
    volume = f"{PROJECT}_redis:/data"
    client = f"{PROJECT}_trainer"
    image = "localhost/rollq-trainer" if project.engine == "podman" else "rollq-trainer"
    tar = ["run", "--rm", "--name", client, "--user", "0", "--entrypoint", "tar", "-v", volume]
    keep = ["-v", f"{project.folder}:/backup", image]
    project.ask(*tar, *keep, "czf", "/backup/redis.tar.gz", "-C", "/data", ".")
    project.ask(
        "run",
        "--rm",
        "--user",
        "0",
        "--entrypoint",
        "sh",
        "-v",
        volume,
        image,
        "-c",
        "rm -r /data/*",
    )
    project.ask(*tar, *keep, "xzf", "/backup/redis.tar.gz", "-C", "/data")
    project.compose("start", "redis")
    stats = json.loads(project.rollq("trainer", "rollq", "stats", "--run", "demo", "--json"))
    assert stats["delivered"] == DEMO_JOBS
