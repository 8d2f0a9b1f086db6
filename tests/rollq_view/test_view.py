"""`rollq view`: serves until Ctrl-C, and says where."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollq.ledger.ledger import Ledger
from tests.rollq.commands.conftest import Fails
from tests.rollq.samples import group, trajectory
from tests.rollq_view.hostile import export


def view(line: Sequence[str], number: int) -> tuple[str, str, int]:
    """The address that it prints, what it serves there, and its exit code after the signal."""
    command = [sys.executable, "-m", "rollq", "view", *line, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        [address] = re.findall(r"http://127\.0\.0\.1:\d+/\S*", process.stdout.readline())
        with urllib.request.urlopen(address.partition("#")[0] + "api/start", timeout=60) as reply:
            said = reply.read().decode()
        process.send_signal(number)
        process.stdout.read()
        return address, said, process.wait(60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_a_file_until_it_is_ended(tmp_path: Path, number: int) -> None:
    address, said, code = view([str(export(tmp_path / "x.jsonl", trajectory()))], number)
    assert ("#" in address, code) == (False, 0)
    assert '"title":"x.jsonl"' in said and '"actions":false' in said


def test_with_actions_the_address_carries_a_token_that_the_server_does_not_tell(
    ledger: Ledger, redis_url: str
) -> None:
    ledger.submit(group())
    address, said, code = view(
        ["--run", "r", "--allow-actions", "--redis", redis_url], signal.SIGINT
    )
    token = address.partition("#token=")[2]
    assert len(token) >= 32 and token not in said and code == 0
    assert '"run":"r"' in said and '"actions":true' in said


def test_without_its_extra_it_names_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Fails
) -> None:
    monkeypatch.delattr("rollq_view.server", raising=False)  # an earlier test may have imported it
    for name in [name for name in sys.modules if name.startswith("rollq_view.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert "[view]" in fails("view", str(export(tmp_path / "x.jsonl", trajectory())))


def test_wrong_lines_are_clear_errors(
    ledger: Ledger, redis_url: str, tmp_path: Path, fails: Fails
) -> None:
    ledger.submit(group())
    path = str(export(tmp_path / "x.jsonl", trajectory()))
    assert "no run 'other'" in fails("view", "--run", "other", "--redis", redis_url)
    assert "cannot read" in fails("view", str(tmp_path / "none.jsonl"))
    assert "leave out --run" in fails("view", path, "--run", "r")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = fails("view", path, "--port", port)
    assert f"cannot listen at port {port}: " in said and "in use" in said
