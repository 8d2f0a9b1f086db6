"""Set-ups that are broken in one place, with real servers: the doctor names that place, and what to
do there.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rollq_worker.commands.doctor import checks
from rollq_worker.environments import domain
from tests.conftest import free_port
from tests.rollq_worker.commands.doctor.conftest import Doctor
from tests.rollq_worker.engine.engine_servers import replaying, scripted_engine
from tests.servers import HOST, Server

Set = Callable[..., None]
Judge = Callable[..., Mapping[str, Any]]
USERS = {
    "whole": "~* &* +@all",
    "other": "~other* &* +@all",
    "scriptless": "~* &* +@all -evalsha",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(tmp_path_factory.mktemp("redis"))
    for name, rights in USERS.items():
        found.client.execute_command("ACL", "SETUSER", name, "on", ">secret-1", *rights.split())
    yield found
    found.kill()


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with replaying() as url:
        yield url


@pytest.fixture
def given(server: Server, engine: str, monkeypatch: pytest.MonkeyPatch) -> Set:
    """Sets environment variables; those of a set-up that works are set."""

    def set_variables(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"ROLLQ_{name}", value)

    set_variables(REDIS_URL=server.url, ENGINE_URL=engine)
    return set_variables


@pytest.fixture
def judged(doctor: Doctor) -> Judge:
    """The check of that name, which must be the first that is not good."""

    def find(name: str, status: str = "fail") -> Mapping[str, Any]:
        code, report = doctor()
        assert code == (1 if status == "fail" else 0)
        odd = {one: check for one, check in report["checks"].items() if check["status"] != "ok"}
        assert next(iter(odd)) == name, odd
        found: Mapping[str, Any] = odd[name]
        assert found["status"] == status and found["next"]
        assert all(check["next"] for check in odd.values())
        if status == "fail":
            assert (report["verdict"], report["next"]) == ("bad", found["next"])
        return found

    return find


@pytest.mark.usefixtures("given")
def test_what_is_not_broken(doctor: Doctor, server: Server) -> None:
    server.client.flushall()
    code, report = doctor()
    assert (code, report["verdict"]) == (0, "good")
    checks = report["checks"]
    assert {check["status"] for check in checks.values()} == {"ok"}
    assert "has the tokenizer's ids" in checks["engine"]["says"]
    assert "the ground truth earns 1.0" in checks["environment shop"]["says"]
    keys = server.client.keys()
    assert keys and all(key.startswith(b"_kombu.binding") for key in keys), (
        keys
    )  # as every worker makes them


def test_redis_evicts(given: Set, judged: Judge, server: Server) -> None:
    server.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = judged("redis eviction")
    finally:
        server.client.config_set("maxmemory-policy", "noeviction")
    assert "allkeys-lru" in found["says"] and found["next"] == "set it to noeviction"


def test_redis_forgets(given: Set, judged: Judge, redis_url: str) -> None:
    given(REDIS_URL=redis_url)
    assert "--appendonly yes" in judged("redis persistence")["next"]


def test_the_password_is_wrong(given: Set, judged: Judge, server: Server) -> None:
    given(REDIS_URL=f"redis://whole:secret-2@{HOST}:{server.port}/0")
    found = judged("redis")
    assert "refuses this user or password" in found["says"]
    assert (
        found["next"]
        == "Correct the user and the password of its address (--redis, ROLLQ_REDIS_URL)"
    )


def test_the_redis_at_the_default_address_wants_a_password(
    doctor: Doctor, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rollq.settings.REDIS_URL", f"redis://other:secret-2@{HOST}:{server.port}/0"
    )
    found = doctor()[1]["checks"]["redis"]
    assert found["status"] == "fail" and "Correct the user and the password" in found["next"]


@pytest.mark.parametrize(
    ("user", "check", "words"),
    [
        ("other", "redis", "keys"),
        ("scriptless", "redis", "'evalsha' command"),
    ],
)
def test_a_right_is_missing(
    given: Set, judged: Judge, server: Server, user: str, check: str, words: str
) -> None:
    given(REDIS_URL=f"redis://{user}:secret-1@{HOST}:{server.port}/0")
    found = judged(check)
    assert words in found["says"] and "docs/deploy.md" in found["says"]
    assert "rights of its user" in found["next"]


def test_an_engine_that_is_not_sglang(given: Set, judged: Judge) -> None:
    with scripted_engine(then=(405, {"detail": "Method Not Allowed"})) as other:
        given(ENGINE_URL=other.url)
        assert "is neither SGLang nor vLLM" in judged("engine")["says"]


def test_an_engine_with_another_vocabulary(given: Set, judged: Judge, qwen_folder: Path) -> None:
    with replaying(tokenizer=str(qwen_folder)) as url:
        given(ENGINE_URL=url)
        found = judged("engine")
    assert "gives other ids" in found["says"] and "--tokenizer" in found["says"]


def test_an_engine_that_is_away(given: Set, judged: Judge, engine: str) -> None:
    given(ENGINE_URL=f"{engine},http://me:secret-3@{HOST}:{free_port()}")
    found = judged("engine 2")
    assert "takes no requests" in found["says"] and "start it" in found["next"]


def test_a_broker_that_is_away(given: Set, judged: Judge) -> None:
    given(BROKER_URL=f"redis://{HOST}:{free_port()}/0")
    assert "ROLLQ_BROKER_URL" in judged("broker")["next"]


BROKEN_GAME = """\
from rollq_worker.environments.shop import load as shop
from rollq.env import Grade

def load(variant=None):
    domain = shop(variant)
    opened = domain.open

    def open(split, index, args):
        environment = opened(split, index, args)
        environment.grade = lambda: Grade(0.5)
        return environment

    class Broken:
        name, version = "broken", "1"
        splits, task = domain.splits, domain.task

    Broken.open = staticmethod(open)
    return Broken()
"""


def test_an_environment_that_fails_its_oracle(given: Set, doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(BROKEN_GAME)
    code, report = doctor("--env", f"{tmp_path / 'game.py'}:load")
    (name,) = [name for name in report["checks"] if name.startswith("environment game@")]
    found = report["checks"][name]
    assert code == 1 and found["status"] == "fail"
    assert (
        "the ground truth earns 0.5, not 1.0" in found["says"]
        and "rollq env check" in found["next"]
    )


CANNOT_OPEN = """\
from rollq_worker.environments.shop import load as shop

class Words:
    name, version = "words", "words 1"
    splits, task = shop(None).splits, shop(None).task

    def open(self, split, index, args):
        {fails}

def load(variant=None):
    print("loaded, which is no part of the JSON")
    return Words()
"""


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("raise SystemExit('no data here')", "SystemExit: no data here"),
        ("import asyncio; raise asyncio.CancelledError('gone')", "CancelledError: gone"),
        ("import no_such_package", "No module named 'no_such_package'"),
    ],
)
def test_an_environment_that_cannot_be_opened(
    given: Set, doctor: Doctor, tmp_path: Path, fails: str, says: str
) -> None:
    (tmp_path / "words.py").write_text(CANNOT_OPEN.format(fails=fails))
    code, report = doctor("--env", f"{tmp_path / 'words.py'}:load")
    (name,) = [name for name in report["checks"] if name.startswith("environment words@")]
    found = report["checks"][name]
    assert code == 1 and found["status"] == "fail" and found["tools"] is None
    assert says in found["says"] and "words.py:" in found["says"]
    assert report["checks"]["tokenizer"]["status"] == "ok"  # with the tools of the shop


COUNTS = """\
from rollq_worker.environments.shop import load as shop

class Counting:
    name, version, left = "counting", "counting 1", 0
    splits, task = shop(None).splits, shop(None).task

    def open(self, split, index, args):
        environment = shop(None).open(split, index, args)
        Counting.left += 1
        environment.close = self.close
        return environment

    def close(self):
        Counting.left -= 1

def load(variant=None):
    return Counting()
"""


def test_the_environments_that_it_opens_are_closed(
    given: Set, doctor: Doctor, tmp_path: Path
) -> None:
    (tmp_path / "counting.py").write_text(COUNTS)
    _, report = doctor("--env", f"{tmp_path / 'counting.py'}:load")
    (found,) = [
        check
        for name, check in report["checks"].items()
        if name.startswith("environment counting@")
    ]
    assert found["status"] == "ok" and found["tools"] > 3
    assert domain(found["environment"]).left == 0  # type: ignore[attr-defined]


HANGS = """\
import threading

def load(variant=None):
    threading.Event().wait()
"""


def test_a_check_that_hangs(
    given: Set, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.setattr(checks, "ENVIRONMENT_S", 0.3)
    monkeypatch.setattr("rollq_worker.commands.doctor.checks._tools_of", lambda name: None)
    code, report = doctor("--env", f"{tmp_path / 'hangs.py'}:load")
    (name,) = [name for name in report["checks"] if name.startswith("environment hangs@")]
    assert (
        code == 1
        and "not checked: the check did not end within 0.3 s" in report["checks"][name]["says"]
    )
