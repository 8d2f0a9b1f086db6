"""The command line: what it accepts, what it says of everything else, and that it never shows a traceback."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis as redis_library

from rollq import Client, __version__, cli
from rollq.commands import connect, flags, job_flags, progress
from rollq.extras import install_line
from rollq_worker.commands.demo import command
from rollq_worker.users import KINDS
from tests.conftest import free_port

COMMANDS = "demo redis engine worker submit pull eval stats show dead requeue drop cancel audit".split()
NOWHERE = "redis://127.0.0.1:1/0"


def rollq(*args: str, env: dict[str, str] | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    command = [sys.executable, "-m", "rollq", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})})
    assert done.returncode == code, done.stderr
    return done


def fails(capsys: pytest.CaptureFixture[str], *args: str, code: int = 2) -> str:
    """Runs in this process; returns the one line it must say."""
    assert cli.main(args) == code
    said = capsys.readouterr()
    assert said.out == "" or args[0] == "demo"  # which starts its parts while it reads the tasks
    assert said.err.startswith("rollq: ")
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ROLLQ_") and name != "ROLLQ_SHARED"]:
        monkeypatch.delenv(name)


def test_version_and_module() -> None:
    assert rollq("--version").stdout == f"rollq {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert cli.main([command, "--help"]) == 0
    assert "usage: rollq " + command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "unneeded"), [("--version", "redis rollq_worker"), ("stats --help", "rollq_worker"), ("--help", "")]
)
def test_starting_imports_nothing_heavy(line: str, unneeded: str) -> None:
    heavy = f"celery kombu requests tokenizers transformers rich aiohttp {unneeded}".split()
    code = (
        f"import sys; from rollq import cli; cli.main({line.split()}); print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


SUBMIT = ("submit", "--run", "r", "--env", "shop", "--tasks", "0-3")
WRONG_LINES: Sequence[tuple[tuple[str, ...], str]] = [
    ((), "required: COMMAND"),
    (("dmeo",), "invalid choice: 'dmeo'"),
    (("demo", "--group", "3"), "unrecognized arguments: --group 3"),
    (("demo", "--groups", "0"), "--groups: expected a whole number of at least 1, not '0'"),
    (("demo", "--size", "many"), "--size: expected a whole number of at least 1, not 'many'"),
    (("demo", "--size", "1.5"), "--size: expected a whole number"),
    (("demo", "--mistakes", "1.1"), "--mistakes: expected a number of at least 0 and at most 1, not '1.1'"),
    (("demo", "--mistakes", "nan"), "--mistakes: expected a number"),
    (("demo", "--temperature", "inf"), "--temperature: expected a number"),
    (("demo", "--tasks", "5-2"), "--tasks: expected A-B with A not above B"),
    (("demo", "--tasks", "-1"), "--tasks: expected"),
    (("demo", "--tasks", "a-b"), "--tasks: expected A-B"),
    (("demo", "--engine", "localhost:30000"), "--engine: expected an address like http://"),
    (("demo", "--engine", "http://"), "--engine: expected an address like http://"),
    (("demo", "--env", "no-such"), "there is no environment 'no-such'"),
    (("demo", "--split", "no-such"), "shop has no split 'no-such'; it has train ("),
    (("demo", "--tasks", "0-999999"), "--tasks asks for 999999"),
    (("engine", "--errors", "-1"), "--errors: expected"),
    (("engine", "--port", "70000"), "expected a port of at most 65535, not 70000"),
    (("redis", "--port", "70000"), "expected a port of at most 65535, not 70000"),
    (("worker", "-c", "0"), "expected a whole number of at least 1, not '0'"),
    (("submit", "--run", "r", "--tasks", "0"), "required: --env"),
    ((*SUBMIT, "--run", "a{b}"), "--run: expected a name"),
    ((*SUBMIT, "--top-p", "0"), "--top-p: expected a number above 0 and at most 1"),
    ((*SUBMIT, "--deadline", "0"), "--deadline: expected a number above 0"),
    ((*SUBMIT, "--purpose", "fun"), "--purpose: invalid"),
    ((*SUBMIT, "--user", "gpt"), "--user: expected scripted, oracle, openai:ENDPOINT:MODEL"),
    ((*SUBMIT, "--user", "openai:local"), "--user: expected scripted, oracle, openai:ENDPOINT:MODEL"),
    ((*SUBMIT, "--user", '{"kind": "foo"}'), 'a "kind", which is scripted, oracle, openai'),
    ((*SUBMIT, "--user", '{"kind": "oracle", "x": 1}'), "--user: user kind 'oracle' takes no x"),
    ((*SUBMIT, "--user", '{"kind": "openai", "model": "q"}'), "--user: user kind 'openai' needs endpoint"),
    ((*SUBMIT, "--seed", "9" * 20), "--seed: expected a whole number of at least 0 and at most 9007199254740991, not"),
    ((*SUBMIT, "--seed", str(2**53 - 1), "--epochs", "2"), "must be a whole number of at least 0 and below 2**53, not"),
    ((*SUBMIT, "--tasks", "0-" + "9" * 20), "--tasks: expected A-B with A not above B and at most 9007199254740991"),
    ((*SUBMIT, "--deadline", "1e999"), "--deadline: expected a number above 0 and at most 1.79769"),
    ((*SUBMIT, "--budget", "env=9999999999"), "N from 1 to 999999999"),
    ((*SUBMIT, "--user", "{kind"), "--user: not JSON"),
    ((*SUBMIT, "--user", '{"a": 1}'), 'expected an object with a "kind"'),
    ((*SUBMIT, "--size", "2", "--min-viable", "3"), "--min-viable 3 is more than --size 2"),
    (("pull", "--run", "r"), "required: --groups"),
    (("pull", "--run", "r", "--groups", "1", "--timeout", "-1"), "--timeout: expected a number of at least 0"),
    (("show", "no-such.jsonl"), "there is no file no-such.jsonl"),
    (("stats", "--redis", "http://a"), "http://a"),
    (("stats", "--redis", "redis://h:port/0"), "redis://h:port/0"),
]


@pytest.mark.parametrize(("line", "said"), WRONG_LINES, ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_a_wrong_line_is_one_clear_line(capsys: pytest.CaptureFixture[str], line: tuple[str, ...], said: str) -> None:
    assert said in fails(capsys, *line)


def test_a_job_that_is_none_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a job id" in fails(capsys, "show", "nonsense")


@pytest.mark.parametrize(
    "line",
    [
        ("stats", "--run", "r"),
        ("stats",),
        ("pull", "--run", "r", "--groups", "1"),
        ("eval", *SUBMIT[1:]),
        SUBMIT,
        ("show", "r/g/0"),
        ("worker",),
    ],
    ids=lambda line: line[0],
)
def test_without_redis_every_command_fails_quickly(capsys: pytest.CaptureFixture[str], line: tuple[str, ...]) -> None:
    said = fails(capsys, *line, "--redis", "redis://me:hunter2@127.0.0.1:1/0", code=1)
    assert "no Redis at redis://" in said
    assert "127.0.0.1:1/0" in said
    assert "rollq redis" in said
    assert "hunter2" not in said


def test_a_redis_that_refuses_is_not_said_to_be_missing(capsys: pytest.CaptureFixture[str], redis_server: str) -> None:
    said = fails(capsys, "stats", "--run", "r", "--redis", f"{redis_server.rpartition('/')[0]}/99", code=1)
    assert "DB index is out of range" in said and "rollq redis" not in said


def test_environment_and_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_REDIS_URL", "redis://from-env:1/0")
    monkeypatch.setenv("ROLLQ_ENGINE_URL", "http://from-env:2")
    args = cli.parser().parse_args(["worker"])
    found = connect.settings(args)
    assert (found.redis_url, found.broker_url) == ("redis://from-env:1/0", "redis://from-env:1/0")
    assert found.engine_url == "http://from-env:2"
    args = cli.parser().parse_args(["worker", "--redis", "redis://flag:1/0", "--engine", "http://flag:2/", "-c", "3"])
    found = connect.settings(args)
    assert (found.redis_url, found.broker_url) == ("redis://flag:1/0", "redis://flag:1/0")
    assert (found.engine_url, found.concurrency) == ("http://flag:2", 3)


def test_a_broker_of_its_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_BROKER_URL", "redis://broker:1/0")
    found = connect.settings(cli.parser().parse_args(["worker", "--redis", "redis://flag:1/0"]))
    assert found.broker_url == "redis://broker:1/0"
    args = cli.parser().parse_args(["worker", "--redis", "redis://flag:1/0", "--broker", "redis://other:1/0"])
    assert connect.settings(args).broker_url == "redis://other:1/0"


def test_a_bug_is_one_line_unless_asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(args: argparse.Namespace) -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(connect, "settings", bug)
    assert "ZeroDivisionError: oh" in fails(capsys, "stats", code=1)
    monkeypatch.setenv("ROLLQ_DEBUG", "1")
    assert cli.main(["stats"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "missing", "said"),
    [
        ("worker", "celery", "this needs celery, which is not installed: "),
        ("engine --port 0", "aiohttp", "this needs aiohttp, which is not installed: "),
        *(
            (command, "rollq_worker", f"`rollq {command.split()[0]}` cannot be loaded (ModuleNotFoundError: ")
            for command in ("demo", "engine --port 0", "worker", "audit x.jsonl", "doctor")
        ),
    ],
)
def test_a_missing_extra_names_its_install_line(command: str, missing: str, said: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from rollq import cli; sys.exit(cli.main({command.split()}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"rollq: {said}")
    assert done.stderr.endswith(f"{install_line(cli.WORKER_COMMANDS[command.split()[0]])}\n")
    assert done.stderr.count("\n") == 1


THEIRS = """
def add(commands):
    commands.add_parser("theirs", help="of another package").set_defaults(run=lambda args: print("theirs ran") or 0)

def broken(commands):
    commands.add_parser("broken")
    raise ZeroDivisionError("100 %s\\nof it")
"""


def test_commands_of_other_packages(tmp_path: Path) -> None:
    """One that cannot be loaded says so, and costs no other command."""
    (tmp_path / "theirs.py").write_text(THEIRS)
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    points = {"theirs": "theirs:add", "broken": "theirs:broken", "lost": "theirs:lost", "submit": "theirs:broken"}
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[rollq.commands]", *lines]))
    env = {"PYTHONPATH": str(tmp_path)}
    assert rollq("theirs", env=env).stdout == "theirs ran\n"
    said = rollq("broken", "--flag", env=env, code=2).stderr
    reason = "ZeroDivisionError: 100 %s of it"
    assert said == f"rollq: `rollq broken` cannot be loaded ({reason}): update or uninstall theirs\n"
    assert "`rollq lost` cannot be loaded (AttributeError: " in rollq("lost", env=env, code=2).stderr
    listed = " ".join(rollq("--help", env=env).stdout.split())
    assert "of another package" in listed and "`rollq lost` cannot be loaded" in listed
    assert "usage: rollq submit" in rollq("submit", "--help", env=env).stdout


@pytest.mark.parametrize(
    ("text", "expected"), [("0-3", range(4)), ("7", range(7, 8)), ("2-2", range(2, 3)), (" 1 - 2 ", range(1, 3))]
)
def test_tasks_include_both_ends(text: str, expected: range) -> None:
    assert flags.tasks(text) == expected


def test_jobs_of_a_line() -> None:
    line = "submit --run r --env tau2:retail --split test --tasks 3-4 --size 2 --epochs 2 --top-p 0.9 --max-turns 7"
    args = cli.parser().parse_args([*line.split(), "--user", "openai:local:qwen", "--seed", "5", "--min-viable", "1"])
    jobs = list(job_flags.jobs(args))
    assert [job.group for job in jobs] == [
        "tau2-retail.test.3",
        "tau2-retail.test.4",
        "tau2-retail.test.3.e1",
        "tau2-retail.test.4.e1",
    ]
    assert jobs == list(job_flags.jobs(args))
    assert [job.task for job in jobs] == [3, 4, 3, 4]
    assert [job.seed for job in jobs] == [5, 5, 6, 6]
    assert {(job.size, job.viable, job.budget.max_turns, job.sample) for job in jobs} == {(2, 1, 7, 0)}
    assert jobs[0].sampling == {"temperature": 1.0, "top_p": 0.9}
    assert jobs[0].user == {"kind": "openai", "endpoint": "local", "model": "qwen"}


@pytest.mark.parametrize(
    ("line", "tasks"),
    [
        ("", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("--groups 2", [0, 1]),
        ("--tasks 5-7", [5, 6, 7]),
        ("--tasks 5-7 --groups 5", [5, 6, 7, 5, 6]),
        ("--tasks 8 --groups 2", [8, 8]),
        ("--groups 12", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]),
    ],
)
def test_tasks_of_a_demo_wrap_as_new_epochs(line: str, tasks: list[int]) -> None:
    jobs = command.plan(cli.parser().parse_args(["demo", *line.split()]), 10)
    assert [job.task for job in jobs] == tasks
    assert len({job.group for job in jobs}) == len(tasks)
    assert len({job.run for job in jobs}) == 1


def test_redis_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "rollq", "redis", "--port", str(port), "--dir", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline().startswith(f"redis://127.0.0.1:{port}/0 ")
        while "Ready to accept connections" not in server.stdout.readline():
            assert server.poll() is None
        with redis_library.Redis(port=port) as client:
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        said = rollq("redis", "--port", str(free_port()), "--dir", str(tmp_path / "data"), code=2).stderr
        assert "another Redis server keeps its data" in said
        server.send_signal(signal.SIGTERM)
        server.stdout.read()
        assert server.wait(60) == 0


@pytest.mark.parametrize("command", ["redis", "engine"])
def test_a_port_in_use_is_a_clear_error(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        extra = ["--dir", str(tmp_path)] if command == "redis" else []
        assert f"port {port} of 127.0.0.1 is in use" in rollq(command, "--port", str(port), *extra, code=2).stderr


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("scripted", {"kind": "scripted"}),
        ("oracle", {"kind": "oracle"}),
        ("openai:here:org/m:1", {"kind": "openai", "endpoint": "here", "model": "org/m:1"}),
        ('{"kind": "oracle"}', {"kind": "oracle"}),
    ],
)
def test_users(text: str, spec: dict[str, str]) -> None:
    args = cli.parser().parse_args([*SUBMIT, "--user", text])
    assert args.user == spec
    job_flags.check(args)


def test_the_kinds_of_users_are_those_of_the_workers() -> None:
    assert set(job_flags.USERS) == set(KINDS)


def test_a_light_client_leaves_a_users_options_to_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rollq_worker.commands.job_checks", None)
    job_flags.check(cli.parser().parse_args([*SUBMIT, "--user", '{"kind": "oracle", "x": 1}']))


def test_a_run_that_is_not_there(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("stats", "--run", "nosuch", "--redis", redis_url)
    assert f"no run 'nosuch' at {redis_url}; there are no runs yet" in fails(capsys, *line, code=1)
    for n in range(7):
        assert cli.main([*SUBMIT, "--run", f"r{n}", "--redis", redis_url]) == 0
    capsys.readouterr()
    for more in ((), ("--json",)):
        said = fails(capsys, *line, *more, code=1)
        assert "; runs there: r6, r5, r4, r3, r2 and 2 more (rollq stats lists them)\n" in said
    with Client(redis_url, run="sealed") as client:  # nothing was ever submitted to it
        client.seal()
    assert cli.main(["stats", "--run", "sealed", "--redis", redis_url]) == 0


@pytest.mark.parametrize("size", ["1", "3"])
def test_progress_claims_no_group_that_is_refused(
    redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)  # every state is said
    line = [*SUBMIT, "--size", size, "--redis", redis_url]
    assert cli.main([*line, "--tasks", "1"]) == 0
    capsys.readouterr()
    assert cli.main([*line, "--tasks", "0-3", "--max-turns", "9"]) == 1
    said = [text for text in capsys.readouterr().err.splitlines() if "groups" in text]
    assert said == ["0/4  groups submitted, next shop.train.0", "1/4  groups submitted, next shop.train.1"]


def test_no_runs_yet(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stats", "--redis", redis_url]) == 0
    assert "no runs yet" in capsys.readouterr().out
    assert cli.main(["stats", "--redis", redis_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {}


def test_submitting_twice_is_submitting_once(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = [*SUBMIT, "--size", "2", "--redis", redis_url, "--json"]
    assert cli.main(line) == 0
    first = json.loads(capsys.readouterr().out)
    assert first == {"run": "r", "groups": 4, "size": 2, "new": 8, "known": 0, "sealed": False}
    assert cli.main(line) == 0
    assert json.loads(capsys.readouterr().out) == {**first, "new": 0, "known": 8}
    assert cli.main(["stats", "--run", "r", "--redis", redis_url, "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    wanted = (
        "submitted queued leased done dead groups_open groups_ready groups_held groups_acked groups_dropped delivered"
    )
    assert {*wanted.split(), "duplicates", "redelivered", "resubmitted", "fenced"} <= set(counts)
    assert (counts["submitted"], counts["queued"], counts["groups_open"], counts["resubmitted"]) == (8, 8, 4, 8)
    assert cli.main([*SUBMIT, "--size", "2", "--temperature", "0.5", "--redis", redis_url]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("rollq: job r/shop.train.0/0 was submitted before with other content: ")


def test_submit_names_the_next_steps(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    said = capsys.readouterr().out
    assert "rollq worker" in said
    assert "rollq pull --run r --groups 4" in said
    assert "--seal" in said
    assert cli.main(["stats", "--redis", redis_url]) == 0
    assert "r  4 submitted  4 queued" in capsys.readouterr().out
    assert cli.main(["stats", "--run", "r", "--redis", redis_url]) == 0
    assert "jobs      4 submitted   4 queued" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--env", "shp"), "environment 'shp' is not known on this machine"),
        (("--split", "no-such"), "shop/no-such is not known on this machine"),
        (("--tasks", "999999"), "task 999999 of shop/train is not known on this machine"),
    ],
)
def test_strange_tasks_are_the_workers_business_but_said(
    redis_url: str, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert cli.main([*SUBMIT, *flags, "--redis", redis_url]) == 0
    assert f"rollq: warning: {said}; do the workers have it?\n" in capsys.readouterr().err


def test_the_next_step_of_eval_groups(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--purpose", "eval", "--redis", redis_url]) == 0
    assert "rollq pull --run r --groups 4 --purpose eval --out r.jsonl" in capsys.readouterr().out


def test_a_broker_that_takes_nothing_is_said(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url, "--broker", "redis://me:hunter2@127.0.0.1:1/0"]) == 0
    said = capsys.readouterr()
    assert "4 jobs submitted" in said.out
    assert "rollq: warning: the broker takes no messages (OperationalError): the workers publish" in said.err
    assert "hunter2" not in said.err


def test_a_pull_in_vain_says_what_is_missing(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["pull", "--run", "r", "--groups", "4", "--timeout", "0.1", "--redis", redis_url, "--json"]
    assert cli.main(line) == 1
    assert "nothing was submitted to this run" in capsys.readouterr().err
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    capsys.readouterr()
    assert cli.main(line) == 1
    said = capsys.readouterr()
    assert "4 of 4 groups are missing" in said.err
    assert "is a rollq worker running" in said.err
    assert json.loads(said.out)["missing"] == 4


def test_show_of_an_unknown_job(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "r/g/0" in fails(capsys, "show", "r/g/0", "--redis", redis_url, code=1)


def test_show_of_a_queued_job(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    capsys.readouterr()
    assert cli.main(["show", "r/shop.train.0/0", "--redis", redis_url]) == 0
    assert "queued" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ((*SUBMIT, "--ahead", "1"), "nothing is lost, and the same line goes on where it was"),
        (("eval", *SUBMIT[1:]), "nothing is lost, and the same line goes on where it was"),
        (("pull", "--run", "r", "--groups", "9"), "what was not acknowledged comes again within a minute"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_ctrl_c_while_it_waits(redis_url: str, line: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "rollq", *line, "--redis", redis_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            while "groups" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert err.endswith(f"rollq: interrupted: {said}\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("gone", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "line",
    ["stats", "stats --run r", "dead --run r", " ".join(SUBMIT), "--help", "stats --help", "--version", "nonsense"],
)
def test_a_reader_that_goes_away(redis_url: str, line: str, gone: str) -> None:
    """As in `rollq stats | head`. Python writes at once with PYTHONUNBUFFERED, and without it not before the exit."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, gone: writer}
    command = [sys.executable, "-m", "rollq", *line.split()]
    done = subprocess.run(command, **streams, text=True, timeout=60, env={**env, "ROLLQ_REDIS_URL": redis_url})
    os.close(writer)
    assert done.returncode in ((2,) if line == "nonsense" else (0, 1))
    said = (done.stdout or "") + (done.stderr or "")
    assert "Traceback" not in said and "Error" not in said and "Exception" not in said


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rollq", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, env=env
        )
    assert (done.returncode, done.stderr) == (1, "rollq: cannot write to standard output: No space left on device\n")


def test_streams_that_were_closed(redis_url: str) -> None:
    """As some supervisors start what they start."""
    command = f"exec '{sys.executable}' -m rollq stats --redis {redis_url}"
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.parametrize(
    "line",
    [
        SUBMIT,
        ("pull", "--run", "r", "--groups", "1", "--timeout", "0"),
        ("show", "r/shop.train.0/0"),
        ("stats", "--run", "r"),
        ("stats",),
        ("cancel", "--run", "r", "r/shop.train.0/0"),
        ("dead", "--run", "r"),
        ("requeue", "--run", "r"),
        ("drop", "--run", "r"),
        ("drop", "--run", "r", "--whole-run", "--yes"),
    ],
    ids=" ".join,
)
def test_with_json_stdout_is_for_programs_alone(
    redis_url: str, capsys: pytest.CaptureFixture[str], line: tuple[str, ...]
) -> None:
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    capsys.readouterr()
    assert cli.main([*line, "--redis", redis_url, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out) is not None
