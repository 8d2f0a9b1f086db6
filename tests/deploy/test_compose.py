"""docker-compose.yml: every part comes to Redis as its own user, and Redis starts as it says there."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from rollq.servers.health import check_redis
from tests.conftest import REPO, free_port, redis_binary, started_redis

ENTRYPOINT = """#!/bin/sh
# Stands for the image's: it starts the server that is at hand, which may know no keys that are read only.
shift
sed -i 's/%[RW]~/~/g' "$2"
exec {binary} --port {port} --bind 127.0.0.1 --dir {folder} "$@"
"""


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((REPO / "docker-compose.yml").read_text())["services"]
    return found


def filled(text: str, env: dict[str, str]) -> str:
    """What compose makes of `${NAME}`, `${NAME:-default}`, `${NAME:?message}` and `$$`."""

    def value(found: "re.Match[str]") -> str:
        name, operator, rest = found[1], found[2], found[3]
        if env.get(name):
            return env[name]
        assert operator != ":?", f"{name}: {rest}"
        return rest or ""

    return re.sub(r"(?<!\$)\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, text).replace("$$", "$")


def made_passwords() -> dict[str, str]:
    out = subprocess.run([REPO / "deploy/redis/passwords.sh"], capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in out.splitlines())


@pytest.mark.parametrize(
    ("service", "variable", "user"),
    [
        ("worker", "ROLLQ_REDIS_URL", "worker"),
        ("producer", "ROLLQ_REDIS_URL", "producer"),
        ("producer", "TRAINER_URL", "trainer"),
        ("flower", "CELERY_BROKER_URL", "flower"),
    ],
)
def test_each_part_is_its_own_user(services: dict[str, Any], service: str, variable: str, user: str) -> None:
    made = made_passwords()
    address = filled(services[service]["environment"][variable], made)
    assert address == f"redis://{user}:{made[f'ROLLQ_{user.upper()}_PASSWORD']}@redis:6379/0"


def test_no_password_has_a_default(services: dict[str, Any]) -> None:
    text = (REPO / "docker-compose.yml").read_text()
    for name in made_passwords():
        required = re.findall(rf"\$\{{{name}:\?[^}}]*passwords\.sh[^}}]*\}}", text)
        assert required, f"{name} must be required, with the remedy"
        assert f"${{{name}:-" not in text
    assert "change-me" not in text


def test_ports_are_bound_to_this_machine(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) >= 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_redis_starts_as_it_says_and_a_restart_loses_nothing(services: dict[str, Any], tmp_path: Path) -> None:
    made, port = made_passwords(), free_port()
    service = services["redis"]
    assert "./deploy/redis:/rollq:ro" in service["volumes"]
    env = {name: filled(value, made) for name, value in service["environment"].items()}
    entrypoint = tmp_path / "docker-entrypoint.sh"
    entrypoint.write_text(ENTRYPOINT.format(binary=redis_binary(), port=port, folder=tmp_path))
    entrypoint.chmod(0o755)
    shell, flag, line = service["command"]
    line = filled(line, made).replace("/rollq/", f"{REPO}/deploy/redis/").replace("/data/", f"{tmp_path}/")
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = ["env", f"PATH={path}", *(f"{name}={value}" for name, value in env.items()), shell, flag, line]
    address = f"redis://worker:{made['ROLLQ_WORKER_PASSWORD']}@127.0.0.1:{port}/0"
    with started_redis(command, port) as process, redis.Redis.from_url(address) as client:
        assert check_redis(client) == []  # it keeps everything and evicts nothing
        client.eval("for _, key in ipairs(KEYS) do redis.call('SET', key, 'kept') end", 2, "rollq:a", "rollq:b")
        process.terminate()
        process.wait(30)
    with started_redis(command, port) as process, redis.Redis.from_url(address) as client:
        found = client.mget("rollq:a", "rollq:b")
        process.kill()
    assert found == [b"kept", b"kept"]
    assert (tmp_path / "users.acl").stat().st_mode & 0o077 == 0
