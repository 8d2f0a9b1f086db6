"""The command line: what it accepts, its exit codes, and that every error is one clear line without
a traceback.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from rollq import __version__, cli
from rollq.commands import connect
from rollq.commands.flags import help
from rollq.pip_extras import install_line
from tests.packages import install
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import SUBMIT, rollq

COMMANDS = (*cli.OWN_COMMANDS, *cli.OTHER_COMMANDS)


def test_the_module_runs_too() -> None:
    assert rollq("--version").stdout == f"rollq {__version__}\n"


def test_the_commands_of_the_worker_are_entry_points_and_their_extras_exist() -> None:
    assert cli.OTHER_COMMANDS.keys() <= {
        point.name for point in metadata.entry_points(group=cli.GROUP)
    }
    assert set(cli.OTHER_COMMANDS.values()) <= set(
        metadata.metadata("rollq").get_all("Provides-Extra") or ()
    )


def test_the_help_lists_every_command_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.SUMMARIES.keys() == set(COMMANDS)
    assert cli.main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f" {name} {summary} " in text for name, summary in cli.SUMMARIES.items())


EXAMPLES = [line for lines in help.EXAMPLES.values() for line in lines]


def test_every_command_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert {command.partition(" ")[0] for command in help.EXAMPLES} == set(COMMANDS)
    assert cli.main(["pull", "--help"]) == 0
    assert capsys.readouterr().out.endswith(
        "examples:\n  rollq pull --run try --groups 32 --out try.jsonl\n"
    )


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_are_right(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("maths.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    words = shlex.split(line)[1:]
    assert callable(cli.parser(words).parse_args(words).run)


@pytest.mark.parametrize("line", [(), ("jobs",), ("engines",), ("env",)])
def test_without_a_command_the_help_is_shown(
    capsys: pytest.CaptureFixture[str], line: tuple[str, ...]
) -> None:
    assert cli.main(line) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("usage: rollq") and "list" in said.err


def test_the_help_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 36 and max(map(len, lines)) < 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert cli.main([command, "--help"]) == 0
    assert "usage: rollq " + command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "unneeded"),
    [
        ("--version", "redis rollq_worker"),
        ("stats --help", "rollq_worker"),
        ("--help", "redis rollq_worker rollq.trajectory"),
    ],
)
def test_starting_imports_nothing_heavy(line: str, unneeded: str) -> None:
    heavy = f"celery kombu requests tokenizers transformers rich aiohttp {unneeded}".split()
    code = (
        f"import sys; from rollq import cli; cli.main({line.split()}); print([m for m in {heavy} "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("jobs lst", "there is no command 'lst'; did you mean list?"),
        ("late", "there is no command 'late': write `rollq stats --late`"),
        ("requeue", "there is no command 'requeue': write `rollq jobs requeue`"),
        ("help", "there is no command 'help': write `rollq --help`"),
        ("submit --temperature 1", "no flag --temperature: write --set sampling.temperature="),
        ("eval --max-turns=1", "there is no flag --max-turns: write --set budget.max_turns="),
        ("demo --group 3", "there is no flag --group; did you mean --groups"),
        ("jobs list --run r", "RUN is not a flag of this command: write rollq jobs list RUN"),
        ("submit --run r --tasks 0", "--env is missing"),
        ("pull --run r", "required: --groups"),
    ],
)
def test_a_wrong_line_is_one_clear_line(fails: Fails, line: str, words: str) -> None:
    assert words in fails(*line.split())


@pytest.mark.parametrize(
    "line",
    [
        ("stats", "--run", "r"),
        ("stats",),
        ("metrics",),
        ("top",),
        ("pull", "--run", "r", "--groups", "1"),
        ("eval", *SUBMIT[1:]),
        SUBMIT,
        ("show", "r/g/0"),
        ("worker",),
    ],
    ids=lambda line: line[0],
)
def test_without_redis_every_command_fails_quickly(fails: Fails, line: tuple[str, ...]) -> None:
    said = fails(*line, "--redis", "redis://me:hunter2@127.0.0.1:1/0", code=1)
    assert "no Redis at redis://" in said
    assert "127.0.0.1:1/0" in said
    assert "rollq redis" in said
    assert "hunter2" not in said


def test_a_redis_that_refuses_is_not_reported_as_missing(fails: Fails, redis_server: str) -> None:
    said = fails("stats", "--run", "r", "--redis", f"{redis_server.rpartition('/')[0]}/99", code=1)
    assert "DB index is out of range" in said and "rollq redis" not in said


def test_flags_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_REDIS_URL", "redis://from-env:1/0")
    monkeypatch.setenv("ROLLQ_ENGINE_URL", "http://from-env:2")
    args = cli.parser().parse_args(["worker"])
    found = connect.settings(args)
    assert (found.redis_url, found.broker_url) == ("redis://from-env:1/0", "redis://from-env:1/0")
    assert found.engine_urls == ("http://from-env:2",)
    args = cli.parser().parse_args(
        ["worker", "--redis", "redis://flag:1/0", "--engine", "http://flag:2/", "-c", "3"]
    )
    found = connect.settings(args)
    assert (found.redis_url, found.broker_url) == ("redis://flag:1/0", "redis://flag:1/0")
    assert (found.engine_urls, found.concurrency) == (("http://flag:2",), 3)
    args = cli.parser().parse_args(
        ["worker", "--engine", "http://a:2/", "--engine", "file:engines", "--engine=redis:x"]
    )
    assert connect.settings(args).engine_urls == ("http://a:2", "file:engines", "redis:x")


def test_a_broker_of_its_own_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_BROKER_URL", "redis://broker:1/0")
    found = connect.settings(cli.parser().parse_args(["worker", "--redis", "redis://flag:1/0"]))
    assert found.broker_url == "redis://broker:1/0"
    args = cli.parser().parse_args(
        ["worker", "--redis", "redis://flag:1/0", "--broker", "redis://other:1/0"]
    )
    assert connect.settings(args).broker_url == "redis://other:1/0"


def test_a_bug_is_one_line_unless_rollq_debug_is_set(
    fails: Fails, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(args: argparse.Namespace) -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(connect, "settings", bug)
    assert "ZeroDivisionError: oh" in fails("stats", code=1)
    monkeypatch.setenv("ROLLQ_DEBUG", "1")
    assert cli.main(["stats"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "missing", "said"),
    [
        ("worker", "celery", "this needs celery, which is not installed: "),
        ("engine --port 0", "aiohttp", "this needs aiohttp, which is not installed: "),
        ("demo", "celery", "this needs celery, which is not installed: "),
        ("doctor", "tokenizers", "this needs tokenizers, which is not installed: "),
        *(
            (
                command,
                "rollq_worker",
                f"`rollq {command.split()[0]}` cannot be loaded (ModuleNotFoundError: ",
            )
            for command in ("demo", "engine --port 0", "worker", "audit x.jsonl", "doctor")
        ),
    ],
)
def test_a_missing_extra_names_its_install_line(command: str, missing: str, said: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from rollq import cli; "
        f"sys.exit(cli.main({command.split()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"rollq: {said}")
    assert done.stderr.endswith(f"{install_line(cli.OTHER_COMMANDS[command.split()[0]])}\n")
    assert done.stderr.count("\n") == 1


THEIRS = """
def add(commands):
    commands.add_parser("theirs", help="of another package").set_defaults(run=lambda args: \
print("theirs ran") or 0)

def broken(commands):
    commands.add_parser("broken")
    raise ZeroDivisionError("100 %s\\nof it")
"""


def test_commands_of_other_packages(tmp_path: Path) -> None:
    """One that cannot be loaded says so, and costs no other command."""
    points = {
        "theirs": "theirs:add",
        "broken": "theirs:broken",
        "lost": "theirs:lost",
        "submit": "theirs:broken",
    }
    install(tmp_path, "theirs", {"rollq.commands": points}, theirs=THEIRS)
    env = {"PYTHONPATH": str(tmp_path)}
    assert rollq("theirs", env=env).stdout == "theirs ran\n"
    said = rollq("broken", "--flag", env=env, code=2).stderr
    reason = "ZeroDivisionError: 100 %s of it"
    assert (
        said == f"rollq: `rollq broken` cannot be loaded ({reason}): update or uninstall theirs\n"
    )
    assert (
        "`rollq lost` cannot be loaded (AttributeError: " in rollq("lost", env=env, code=2).stderr
    )
    listed = " ".join(rollq("--help", env=env).stdout.split())
    assert "of another package" in listed and "`rollq lost` cannot be loaded" in listed
    assert "usage: rollq submit" in rollq("submit", "--help", env=env).stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ((*SUBMIT, "--set", "ahead=1"), "nothing is lost; to continue, repeat the same line"),
        (("eval", *SUBMIT[1:]), "nothing is lost; to continue, repeat the same line"),
        (
            ("pull", "--run", "r", "--groups", "9", "--wait"),
            "unacknowledged groups are handed out again",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_ctrl_c_while_it_waits(redis_url: str, line: tuple[str, ...], said: str) -> None:
    if line[0] == "pull":
        assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    command = [sys.executable, "-m", "rollq", *line, "--redis", redis_url]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while "no worker is alive" not in process.stderr.readline():
                assert process.poll() is None
            # Earlier, Python can lose it: in an import, or when it frees a client.
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert err.endswith(f"rollq: interrupted: {said}\n")
    assert out.startswith("0 groups, 0 trajectories, reward -") is (line[0] == "pull")
    assert "Traceback" not in err


@pytest.mark.parametrize("gone", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "line",
    ["stats", " ".join(SUBMIT), "--help", "nonsense"],
)
def test_a_reader_that_goes_away(redis_url: str, line: str, gone: str) -> None:
    """As in `rollq stats | head`. Python writes at once with PYTHONUNBUFFERED, and without it not
    before the exit.
    """
    assert cli.main([*SUBMIT, "--redis", redis_url]) == 0
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, gone: writer}
    command = [sys.executable, "-m", "rollq", *line.split()]
    done = subprocess.run(
        command, **streams, text=True, timeout=60, env={**env, "ROLLQ_REDIS_URL": redis_url}
    )
    os.close(writer)
    # Argparse of Python 3.11.2 raises.
    assert done.returncode in ((1, 2) if line == "nonsense" else (0, 1))
    said = (done.stdout or "") + (done.stderr or "")
    assert "Traceback" not in said and "Error" not in said and "Exception" not in said


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rollq", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "rollq: cannot write to standard output: No space left on device\n",
    )


def test_closed_standard_streams(redis_url: str) -> None:
    """Some supervisors start processes so."""
    command = f"exec '{sys.executable}' -m rollq stats --redis {redis_url}"
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        done = subprocess.run(
            ["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


def test_celery_can_log_where_standard_error_is_closed() -> None:
    """It writes to sys.__stderr__, and ended the worker where there was none."""
    code = "from rollq import cli; import sys; cli.main(['--version']); sys.__stderr__.write('x')"
    command = ["sh", "-c", f"exec '{sys.executable}' -c {shlex.quote(code)} 2>&-"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "line",
    [
        SUBMIT,
        ("pull", "--run", "r", "--groups", "1", "--timeout", "0"),
        ("show", "r/shop.train.0/0"),
        ("stats", "--run", "r"),
        ("stats",),
        ("jobs", "cancel", "r/shop.train.0/0"),
        ("jobs", "list", "r"),
        ("jobs", "requeue", "r"),
        ("jobs", "drop", "r"),
        ("jobs", "drop", "r", "--whole-run", "--yes"),
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


def test_the_whole_parser_lists_every_command_with_its_summary() -> None:
    """Scripts that complete lines in a shell are made of it."""
    shown = " ".join(cli.parser().format_help().split())
    assert [name for name, words in help.SUMMARIES.items() if f"{name} {words}" not in shown] == []
