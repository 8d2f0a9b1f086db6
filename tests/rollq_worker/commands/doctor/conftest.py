"""Runs `rollq doctor` in this process, on servers that a test names, and never on those of the
machine.
"""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from rollq import cli
from tests.conftest import free_port

Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(autouse=True)
def nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is set, no server is at the default addresses, and `shop` is the only
    environment.
    """
    for name in [name for name in os.environ if name.startswith("ROLLQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("rollq.settings.REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    monkeypatch.setattr("rollq.settings.ENGINE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("rollq_worker.commands.doctor.checks.names", lambda: ["shop"])


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The exit code, and the report as JSON. No password of these tests is in it."""

    def run(*line: str) -> tuple[int, dict[str, Any]]:
        code = cli.main(["doctor", "--json", *line])
        said = capsys.readouterr()
        assert "secret" not in said.out + said.err
        found: dict[str, Any] = json.loads(said.out)
        return code, found

    return run
