"""`rollq demo`: the whole pipeline in real processes. Its numbers add up, and it leaves no process
running.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollq.cli import main
from rollq_worker.commands.demo import run
from tests.processes import alive
from tests.rollq_worker.engine.engine_servers import replaying
from tests.waiting import until

FIELDS = (
    "run env groups size submitted done dead delivered duplicates reward_mean pass_hat_k "
    "turns_mean sampled_tokens total_tokens stops wall_s"
)
PIDS = re.compile(r"^(redis|engine|worker) .*pid (\d+)", re.MULTILINE)


@contextmanager
def demo(*args: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A demo, killed at the end of the block if it still runs."""
    command = [sys.executable, "-m", "rollq", "demo", *args]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROLLQ_")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**clean, **(env or {})},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The one object on stdout."""
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert out.count("\n") == 1, out
    found: dict[str, Any] = json.loads(out)
    return found


def parts(process: subprocess.Popen[str], stream: Any) -> dict[str, int]:
    """The parts' pids, as the demo prints them."""
    said = ""
    while len(found := {name: int(pid) for name, pid in PIDS.findall(said)}) < 3:
        line = stream.readline()
        assert line, f"the demo ended: {said}"
        said += line
    return found


@pytest.mark.promise
def test_two_demos_at_once_account_for_every_job(tmp_path: Path) -> None:
    flags = ("--groups", "2", "--size", "2", "--json")
    out = tmp_path / "out.jsonl"
    out.write_text("an older demo's\n")
    # The demo ignores addresses that the user has set for other things.
    elsewhere = {
        "ROLLQ_BROKER_URL": "redis://127.0.0.1:1/0",
        "ROLLQ_REDIS_URL": "redis://127.0.0.1:1/0",
    }
    with (
        demo(*flags, "--set", "mistakes=0", "--out", str(out), env=elsewhere) as one,
        demo(*flags, "--set", "mistakes=1", "--set", "seed=3") as other,
    ):
        good, bad = result(one), result(other)
    for found in (good, bad):
        assert list(found) == FIELDS.split()
        assert (found["groups"], found["size"], found["env"]) == (2, 2, "shop")
        assert (found["submitted"], found["done"], found["dead"], found["delivered"]) == (
            4,
            4,
            0,
            4,
        )
        assert found["duplicates"] == 0
        assert sum(found["stops"].values()) == 4
        assert 0 < found["sampled_tokens"] < found["total_tokens"]
    assert good["run"] != bad["run"]
    assert good["reward_mean"] == 1.0
    assert good["pass_hat_k"] == {"1": 1.0, "2": 1.0}
    assert bad["reward_mean"] < 1.0
    check_export(out, good)


def check_export(out: Path, said: dict[str, Any]) -> None:
    """One trajectory a line, and the totals that the demo printed."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({line["job"] for line in lines}) == len(lines) == 4
    assert {line["run"] for line in lines} == {said["run"]}
    assert {(line["task"], line["sample"]) for line in lines} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for line in lines:
        sizes = {len(line[name]) for name in ("tokens", "mask", "logprobs", "versions")}
        assert sizes == {sum(line["traces"])}
        triples = zip(line["mask"], line["logprobs"], line["versions"], strict=True)
        assert all(
            (v is None and p == 0.0) if m == 0 else (v is not None and p <= 0.0)
            for m, p, v in triples
        )
    assert sum(sum(line["mask"]) for line in lines) == said["sampled_tokens"]
    assert sum(len(line["tokens"]) for line in lines) == said["total_tokens"]
    command = [sys.executable, "-m", "rollq", "show", f"{out}:4"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    assert lines[3]["job"] in shown
    assert "reward 1.0" in shown
    assert "turn 0: " in shown


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_an_interrupted_demo_leaves_nothing_running(number: signal.Signals, code: int) -> None:
    with demo("--groups", "200", "--size", "8") as process:
        pids = parts(process, process.stdout)
        process.send_signal(number)
        process.stdout.read()
        assert process.wait(150) == code
        until(lambda: not any(map(alive, pids.values())), 0.5)


def test_a_killed_demo_leaves_nothing_running() -> None:
    with demo("--groups", "200", "--size", "8") as process:
        pids = parts(process, process.stdout)
        process.kill()
        process.wait(60)
        until(lambda: not any(map(alive, pids.values())))


@pytest.mark.parametrize("part", ["worker", "engine"])
def test_a_part_that_ends_early_ends_the_demo(part: str) -> None:
    with demo("--groups", "200", "--size", "8", "--json") as process:
        pids = parts(process, process.stderr)
        os.kill(pids[part], signal.SIGKILL)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert out == ""
    assert f"rollq: {part} ended early (signal SIGKILL); its last lines:" in err
    assert "Traceback" not in err
    until(lambda: not any(map(alive, pids.values())), 0.5)


def test_nothing_is_said_of_workers_while_the_demo_starts_its_own(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import sys, time\n"
        "from rollq_worker.environments.shop import load\n"
        "time.sleep(7 * ('worker' in sys.argv))\n"
    )
    with demo("--env", str(slow), "--groups", "1", "--size", "1") as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "1 done" in out, err
    assert "no worker is alive" not in out + err


def test_an_engine_with_another_tokenizer_is_heard(qwen_folder: Path) -> None:
    with (
        replaying() as url,
        demo("--groups", "1", "--engine", url, "--tokenizer", str(qwen_folder)) as process,
    ):
        _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "rollq: worker ended early (exit code 2)" in err
    assert "gives other ids than" in err and "give --tokenizer" in err
    assert "Traceback" not in err


def test_nobody_at_the_engines_address() -> None:
    with demo("--engine", "http://127.0.0.1:1", "--groups", "1") as process:
        _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "no engine listens at http://127.0.0.1:1" in err


def test_a_run_that_stands_still_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine that takes requests and never answers."""
    monkeypatch.setattr(run, "STANDSTILL_S", 3.0)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            assert (
                main(
                    [
                        "demo",
                        "--groups",
                        "1",
                        "--engine",
                        f"http://127.0.0.1:{deaf.getsockname()[1]}",
                    ]
                )
                == 1
            )
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert "rollq: nothing has changed for 3 s" in capsys.readouterr().err
