"""`rollq redis`: a Redis server in the foreground."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import free_port
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import rollq


def test_it_serves_until_sigterm(tmp_path: Path) -> None:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "rollq",
        "redis",
        "--port",
        str(port),
        "--dir",
        str(tmp_path / "data"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout.readline().startswith(f"redis://127.0.0.1:{port}/0 ")
        while "Ready to accept connections" not in server.stdout.readline():
            assert server.poll() is None
        said = rollq(
            "redis", "--port", str(free_port()), "--dir", str(tmp_path / "data"), code=2
        ).stderr
        assert "another Redis server keeps its data" in said
        server.send_signal(signal.SIGTERM)
        server.stdout.read()
        assert server.wait(60) == 0


@pytest.mark.parametrize("command", ["redis", "engine"])
def test_a_port_in_use_is_a_clear_error(tmp_path: Path, fails: Fails, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        extra = ["--dir", str(tmp_path)] if command == "redis" else []
        said = fails(command, "--port", str(port), *extra)
    assert f"port {port} of 127.0.0.1 is in use" in said
