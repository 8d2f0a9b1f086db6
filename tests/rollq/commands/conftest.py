"""Commands run in this process, without the settings of the machine."""

import os
from collections.abc import Callable

import pytest

from rollq import cli

Fails = Callable[..., str]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ROLLQ_") and name != "ROLLQ_SHARED"]:
        monkeypatch.delenv(name)


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
