"""Every command in the documents fits rollq as it is: its flags, targets and files exist, and a test runs it or a line
below says why none does."""

import re
from argparse import ArgumentParser, _SubParsersAction
from pathlib import Path

import pytest

from rollq.cli import main, parser
from tests.documented_commands import REPO, Command, commands
from tests.e2e.test_documented_commands import TYPED, shown

ALL = list(commands())
LINES = [command for command in ALL if not command.is_synopsis]
SYNOPSES = [command for command in ALL if command.is_synopsis and command.words[0] == "rollq"]
TYPED_LINES = {line for page in TYPED for line in shown(page)}
OF_ROLLQ = [command for command in LINES if command.words[0].endswith("rollq")]

RUN_ELSEWHERE = {
    r"^make demo$": ".ci/run",
    r"^make (test|lint|docs|bench-check|test-sglang)$": ".ci/run",
    r"^deploy/secrets\.sh$|^docker (compose|run)|&& deploy/secrets": "tests/deploy/test_containers.py",
    r"^kubectl|^for |^done$|^docker (build|push)": "tests/deploy/test_k8s.py",
    r"draw_architecture": "tests/test_docs.py",
    r"\.venv/bin/python -m pytest": ".ci/run",
    r"^make (chaos|rollback)": "tests/e2e/test_fault_suite.py",
    r"^pip install \./my-format": "tests/rollq_worker/toolcalls/test_formats_page.py",
    r"--env count_squares": "tests/e2e/test_images.py",
    r"doctor --tokenizer DIR|doctor --engine": "tests/rollq_worker/commands/doctor/test_broken_setups.py",
    r"--env guess_number": "tests/rollq_worker/environments/test_environments.py",
    r"^make learn": "tests/examples/learn_shop",
    r"rollq metrics|--metrics-port|^OTEL_": "tests/e2e/test_metrics.py",
    r"^rollq (worker -c 16|engine --env shop --port 30000)$": "tests/e2e/test_documented_commands.py",
    r"^python examples/slime|--tasks 0-15 --size 4 --seal": "tests/e2e/test_slime.py",
    r"^python examples/verl": "tests/e2e/test_verl.py",
    r"^python examples/trl": "tests/e2e/test_trl_examples.py",
    r"^rollq simulate": "tests/rollq_worker/simulation",
    r"^rollq sync": "tests/rollq/commands/test_sync.py",
    r"^rollq eval --show train-run": "tests/e2e/test_eval.py",
    r"words\.py|maths\.(py|jsonl)": "tests/rollq_worker/environments/test_files.py",
    r"--agent \S+\.py:": "tests/e2e/test_agents.py",
    r"verifiers:|hard\.py": "tests/e2e/test_verifiers.py",
    r"--run r( |$)": "tests/e2e/test_commands.py",
    r"--reward judge|brief|ROLLQ_USER_ENDPOINTS=": "tests/rollq_worker/rewards",
    r"ROLLQ_ISOLATE=": "tests/rollq_worker/environments",
    r"ROLLQ_AGENT_USERS=": "tests/rollq_worker/agents/test_programs.py",
    r"--engine (redis|file):|--engine http://gpu-1": "tests/e2e/test_several_engines.py",
    r"bench_turn\.py|^make bench( |$)|bench-check ARGS": "benchmarks/check.py",
}
"""The file or folder that runs such commands, by a pattern of the line."""
NOT_RUN = {
    r"^(\.venv/bin/)?pip install": "it loads packages from an index; CI installs the same extras",
    r"pre-commit": "it loads its hooks from GitHub; `make lint` runs the same tools",
    r"^git clone|ROLLQ_TAU_BENCH": "the package is on GitHub only",
    r"sglang\.launch_server|--tokenizer MODEL": "it needs a real model; tests/contract have a tiny one",
    r"^python train\.py|verl\.trainer|^last=|update_weight_start": "these trainers need GPUs",
    r"ROLLQ_(REDIS|BROKER)_URL=": "a cluster has its own tests, in tests/rollq/servers",
    r"--versions step-40": "it needs an engine with other weights",
    r"^make (test|chaos|test-sglang|rollback) \w": "the same targets with arguments",
    r"--groups-per-batch": "it waits for a trainer that publishes; tests/e2e/test_staleness.py has one",
}
"""Why no test runs such a command."""


def name(command: Command) -> str:
    return f"{command.page}: {command.line}"[:110]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages have their reader write."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "examples").symlink_to(REPO / "examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["env", "new", "words"]) == 0
    for copy in ("words.py", "hard.py"):
        (folder / copy).write_text((folder / "words/words.py").read_text())
    (folder / "solver.py").symlink_to(REPO / "examples/agents/openai_agent.py")
    page = (REPO / "docs/environments.md").read_text()
    [row] = re.findall(r"```json\n(\{\"question.*?)```", page, re.DOTALL)
    (folder / "maths.jsonl").write_text(row * 100)
    [code] = re.findall(r"```python\n((?:(?!```).)*maths\.jsonl.*?)```", page, re.DOTALL)
    (folder / "maths.py").write_text(code)
    return folder


@pytest.mark.parametrize("command", OF_ROLLQ, ids=name)
def test_the_line_is_one_that_rollq_takes(command: Command, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    words = [word.replace("NAME", "name") for word in command.words[1:]]
    if ">" in words:  # a shell's
        words = words[: words.index(">")]
    assert parser(words).parse_args(words).run


@pytest.mark.parametrize("command", SYNOPSES, ids=name)
def test_the_flags_of_a_synopsis_exist(command: Command) -> None:
    words = command.line.split()[1:]
    known = options(parser(words), words)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", command.line)) <= known


def options(command: ArgumentParser, words: list[str]) -> set[str]:
    """The flags of the command that the words name, down to `env check`."""
    for action in command._actions:
        if isinstance(action, _SubParsersAction) and words and words[0] in action.choices:
            return options(action.choices[words[0]], words[1:])
    return set(command._option_string_actions)


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    assert {command.words[1] for command in LINES if command.words[0] == "make"} <= targets


def test_named_files_exist() -> None:
    paths = [
        word
        for command in LINES
        for word in command.words
        if re.match(r"(tests|examples|docs|benchmarks|deploy)/[\w/.-]+$", word)
    ]
    assert len(paths) > 10
    assert [path for path in paths if not (REPO / path).exists()] == []


@pytest.mark.parametrize("command", LINES, ids=name)
def test_a_test_runs_it_or_a_reason_says_why_not(command: Command) -> None:
    reasons = [pattern for pattern in (*RUN_ELSEWHERE, *NOT_RUN) if re.search(pattern, command.line)]
    assert command.line in TYPED_LINES or reasons, "say above which test runs it, or why none does"


def test_reasons_are_about_commands_that_are_there() -> None:
    stale = [p for p in (*RUN_ELSEWHERE, *NOT_RUN) if not any(re.search(p, command.line) for command in LINES)]
    assert stale == []
    assert [path for path in RUN_ELSEWHERE.values() if not (REPO / path).exists()] == []
