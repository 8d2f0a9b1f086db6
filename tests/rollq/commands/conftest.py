"""Commands run in this process."""

from collections.abc import Callable

import pytest

from rollq import cli

Fails = Callable[..., str]


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
