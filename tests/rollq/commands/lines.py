"""Command lines that several tests use, commands as processes of their own, and a terminal."""

import io
import os
import subprocess
import sys

SUBMIT = ("submit", "--run", "r", "--env", "shop", "--tasks", "0-3")


def rollq(
    *args: str, env: dict[str, str] | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    command = [sys.executable, "-m", "rollq", *args]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})}
    )
    assert done.returncode == code, done.stderr
    return done


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
