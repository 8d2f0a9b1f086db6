"""Commands run in this process, and the file of a pull."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rollq import cli

Fails = Callable[..., str]


class Said(NamedTuple):
    """What a command has printed."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Says = Callable[..., Said]


@pytest.fixture
def says(
    redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Says:
    """Runs a command at the test's Redis, which must end with that exit code."""
    monkeypatch.setenv("ROLLQ_REDIS_URL", redis_url)

    def run(*line: str, code: int = 0) -> Said:
        capsys.readouterr()
        assert cli.main(line) == code
        return Said(*capsys.readouterr())

    return run


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must fail with that exit code. Returns the one line that it prints."""

    def run(*line: str, code: int = 2) -> str:
        capsys.readouterr()
        assert cli.main(line) == code
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1), said
        assert said.err.startswith("rollq: ")
        return said.err

    return run


Pulls = Callable[..., Said]


@pytest.fixture
def pull(says: Says) -> Pulls:
    return lambda groups, *more, code=0: says(
        "pull", "--run", "r", "--groups", str(groups), *map(str, more), code=code
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"
