"""Keys of --set and of run files: every field of a job is one, flags go first, and whatever is
wrong is one line.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from rollq import Purpose, cli
from rollq.commands.flags import keys, plan
from rollq.commands.submit import SubmitKeys
from rollq.errors import SettingsError
from rollq.job import Budget, Job
from rollq_worker.users import KINDS
from tests.conftest import REPO
from tests.rollq.commands.conftest import Fails
from tests.rollq.commands.lines import SUBMIT

EXAMPLE = REPO / "examples" / "shop.toml"


def read(*line: str) -> tuple[Job, SubmitKeys]:
    args = cli.parser().parse_args(["submit", *line])
    values = keys.Values(SubmitKeys).read(args)
    own = values.settings(SubmitKeys)
    return values.job(task=own.tasks[0]), own


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.toml"


SAID = {
    "history": "template",
    "seed": 11,
    "agent": "react",
    "queue": "q",
    "min_viable": 2,
    "spare": 1,
    "reward": "judge",
    "sampling.temperature": 0.5,
    "sampling.top_p": 1,
    "budget.max_turns": 9,
    "budget.deadline_s": 60,
    "template_kwargs.enable_thinking": False,
    "template_kwargs.effort": "high",
    "reward_args.endpoint": "local",
    "env_args.depth": 3,
    "user.kind": "oracle",
    "labels.uid": "a=b",
    "routed_experts.layers": 48,
    "routed_experts.top_k": 8,
    "routed_experts.experts": 128,
    "epochs": 2,
    "ahead": 7,
    "groups_per_batch": 4,
    "max_staleness": 0,
    "max_failures.engine": 9,
    "forget_after": 2.5,
    "refill": 1,
    "tokenizer": "/models/q",
}


def test_the_line_and_the_file_say_the_same(file: Path) -> None:
    file.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in SAID.items()))
    flags = ("--run", "r", "--env", "shop", "--split", "test", "--tasks", "2-5", "--size", "3")
    job, own = read(
        *flags,
        *(word for key, value in SAID.items() for word in ("--set", f"{key}={_text(value)}")),
    )
    assert (job, own) == read(*flags, "--config", "run.toml")
    assert (job.split, job.size, job.agent, job.history, job.queue) == (
        "test",
        3,
        "react",
        "template",
        "q",
    )
    assert job.sampling == {"temperature": 0.5, "top_p": 1}
    assert (job.budget, job.labels) == (Budget(max_turns=9, deadline_s=60), {"uid": "a=b"})
    assert job.template_kwargs == {"enable_thinking": False, "effort": "high"}
    assert (own.tasks, own.epochs, own.forget_after, own.max_failures) == (
        range(2, 6),
        2,
        2.5,
        {"engine": 9},
    )


def _toml(value: Any) -> str:
    return {False: "false"}.get(value, repr(value)) if isinstance(value, bool) else repr(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_every_field_of_a_job_is_a_key_and_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    known = {key.partition(".")[0] for key in keys.keys(SubmitKeys)}
    assert known == {f.name for kind in (Job, SubmitKeys) for f in fields(kind)} - {
        "group",
        "sample",
        "task",
        "seq",
    }
    assert cli.main(["submit", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {key}" in said or f"\n  --{key} " in said for key in known)
    assert max(map(len, said.splitlines())) < 80


@dataclass(frozen=True, kw_only=True)
class More(plan.TaskKeys):
    """Keys of a command that has another one."""

    patience_s: float = 2.0
    """Seconds to wait. And more of it."""


@pytest.mark.parametrize(
    "wrong",
    [
        {"forget_after": -1},
        {"forget_after": "x"},
        {"groups_per_batch": 10_000_000, "max_staleness": 1},
    ],
)
def test_wrong_numbers_are_refused_before_anything_is_pinned(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        SubmitKeys(tasks=range(1), **wrong)


def test_a_new_field_is_a_key() -> None:
    assert [*keys.keys(More)][-1] == "patience_s"
    assert keys.field_docs(More)["patience_s"] == "Seconds to wait"
    args = cli.parser().parse_args([*SUBMIT, "--set", "patience_s=3"])
    assert keys.Values(More).read(args).settings(More).patience_s == 3


def test_flags_override_set_and_set_overrides_the_file(file: Path) -> None:
    file.write_text(
        'run = "a"\nenv = "shop"\ntasks = 7\nsize = 4\nseed = 1\n[sampling]\ntop_p '
        "= 0.5\ntop_k = 3\n"
    )
    job, own = read(
        "--set",
        "seed=2",
        "--set=size=3",
        "--size",
        "1",
        "--config=run.toml",
        "--set",
        "sampling.top_k=4",
    )
    assert (job.run, job.size, job.seed, own.tasks) == ("a", 1, 2, range(7, 8))
    assert job.sampling == {"temperature": 1.0, "top_p": 0.5, "top_k": 4}
    assert read("--config=run.toml", "--set=user=oracle", "--set=user.patience=3")[0].user == {
        "kind": "oracle",
        "patience": 3,
    }


def test_a_value_is_json_or_text() -> None:
    values = (
        "labels.a=7",
        'labels.b="7"',
        "labels.c=x y",
        "labels.d=",
        "queue=7",
        'template_kwargs={"x": [1]}',
    )
    job, _ = read(*SUBMIT[1:], *(f"--set={value}" for value in values))
    assert (job.labels, job.queue) == ({"a": 7, "b": "7", "c": "x y", "d": ""}, "7")
    assert job.template_kwargs == {"x": [1]}


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("scripted", {"kind": "scripted"}),
        ("oracle", {"kind": "oracle"}),
        ("openai:here:org/m:1", {"kind": "openai", "endpoint": "here", "model": "org/m:1"}),
        ('{"kind": "oracle"}', {"kind": "oracle"}),
    ],
)
def test_users_by_name_and_as_json(text: str, spec: dict[str, str]) -> None:
    assert read(*SUBMIT[1:], "--set", f"user={text}")[0].user == spec


def test_routed_experts_in_short() -> None:
    job, _ = read(*SUBMIT[1:], "--set", "routed_experts=48x8x128")
    assert job.routed_experts == {"layers": 48, "top_k": 8, "experts": 128}


def test_the_kinds_of_users_are_those_of_the_workers() -> None:
    assert set(keys.USERS) == set(KINDS)


def test_examples_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "examples.jsonl"
    file.write_text('"user: hi"\n\n{"messages_display": "user: ho", "task": 1}\n')
    job, _ = read(
        *SUBMIT[1:], "--set", f"agent=few-shot:{file}", "--set", "agent_args.single_tool=true"
    )
    assert (job.agent, job.agent_args) == (
        "few-shot",
        {"single_tool": True, "examples": ["user: hi", "user: ho"]},
    )


@pytest.mark.parametrize(
    "text", ["", "\n", "user: hi", "[1]", '{"messages": []}', '"a"\n""', "[" * 100_000]
)
def test_a_file_without_examples_is_refused(tmp_path: Path, fails: Fails, text: str) -> None:
    (tmp_path / "examples.jsonl").write_text(text)
    assert "--set: agent: " in fails(
        *SUBMIT, "--set", f"agent=few-shot:{tmp_path / 'examples.jsonl'}"
    )


WRONG = [
    ("max_turns=3", "--set: there is no key max_turns; did you mean budget.max_turns?"),
    ("temprature=0.7", "--set: there is no key temprature; did you mean sampling.temperature?"),
    ("sampling.top_q=1", "--set: there is no key sampling.top_q; did you mean sampling.top_p?"),
    ("budget.turns=1", "--set: there is no key budget.turns; did you mean budget.max_turns?"),
    ("sampling.temp=1", "did you mean sampling.temperature?"),
    ("frobnicate=3", "--set: there is no key frobnicate; there are run, env, split, "),
    ("task=3", "there is no key task; did you mean tasks?"),
    ("seed.x=3", "there is no key seed.x; there are run, "),
    ("redis=redis://h", "redis belongs to a machine, not to a run: set ROLLQ_REDIS_URL"),
    ("seed", "--set: expected KEY=VALUE, not 'seed'"),
    ("budget.max_turns=many", "budget.max_turns must be a whole number of at least 1, not 'many'"),
    ("budget.max_turns=0", "budget.max_turns must be a whole number of at least 1, not 0"),
    ("budget.deadline_s=1e999", "budget.deadline_s must be a positive number of seconds, not inf"),
    ("sampling.top_p=0", "top_p must be a number above 0 and up to 1, not 0"),
    ("size=x", "size must be a whole number of at least 0"),
    ("history=all", "history must be keep or template, not 'all'"),
    ("run=a b", "run: expected a name"),
    ("tasks=5-2", "tasks: expected A-B with A not above B"),
    ("labels=7", "labels: expected a table, or parts as labels.NAME, not 7"),
    ("user=gpt", "user: expected scripted, oracle, openai:ENDPOINT:MODEL or a table, not 'gpt'"),
    ("user=openai:here", "user: expected scripted, oracle"),
    (
        "agent=react:x",
        "agent: expected tool-calling, act, react, few-shot:FILE, an installed agent",
    ),
    (
        "routed_experts=48x8",
        "routed_experts: expected LAYERSxTOP_KxEXPERTS, as in 48x8x128, not '48x8'",
    ),
    ("budget=7", "budget: expected a table, or parts as budget.NAME, not 7"),
    ("sampling=hot", "sampling: expected a table, or parts as sampling.NAME, not 'hot'"),
    ("env_args.a.b=1", "env_args.a.b: write env_args.NAME, and what is below NAME as JSON"),
    ("sampling.logit_bias.7=1", "sampling.logit_bias.7: write sampling.NAME, and what"),
    ("labels.=1", "labels.: write labels.NAME, and what"),
    ("ahead=null", "ahead must be a whole number of at least 1, not None"),
    ("max_failures.engine=0", "max_failures.engine must be a whole number of at least 1, not 0"),
    ("max_failures=3", "max_failures: expected a table, or parts as max_failures.NAME, not 3"),
    ("epochs=0", "epochs must be a whole number of at least 1, not 0"),
    ("force=yes", "force must be true or false, not 'yes'"),
    ("tokenizer=3", "tokenizer must be a text, not 3"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[text for text, _ in WRONG])
def test_a_wrong_key_or_value_is_named(fails: Fails, text: str, said: str) -> None:
    assert said in fails(*SUBMIT, "--set", text)


WRONG_FILES = [
    ("max-turns = 3", "run.toml: there is no key max-turns; did you mean budget.max_turns?"),
    ("[play]\nx = 3", "run.toml: there is no key play; "),
    (
        "[budget]\nmax_turn = 3",
        "run.toml: there is no key budget.max_turn; did you mean budget.max_turns?",
    ),
    ("env = 3", "env must be a text, not 3"),
    ("tasks = 2026-01-01", "run.toml: tasks: expected A-B"),
    ("[user]\nkind = 'scripted'\nsince = 2026-01-01", "is not JSON"),
    ("seed = ", "run.toml is not TOML: "),
    ("seed = " + "[" * 5000, "run.toml is not TOML: "),
    ("seed = " + "9" * 5000, "run.toml is not TOML: "),
]


@pytest.mark.parametrize(("text", "said"), WRONG_FILES, ids=[text[:30] for text, _ in WRONG_FILES])
def test_a_wrong_file_is_one_clear_line(fails: Fails, file: Path, text: str, said: str) -> None:
    file.write_text(text)
    flags = () if text.startswith("env") else ("--env", "shop")
    more = () if text.startswith("tasks") else ("--tasks", "0")
    assert said in fails("submit", "--config", "run.toml", "--run", "r", *flags, *more)


def test_a_missing_file_or_another_kind_of_file(fails: Fails, file: Path) -> None:
    assert "run.toml cannot be read: No such file" in fails("eval", "--config", "run.toml")
    assert "cannot be read: Is a directory" in fails("eval", "--config", str(file.parent))
    file.write_bytes(b"run = '\xff'")
    assert "run.toml is not TOML: " in fails("eval", "--config", "run.toml")


def test_a_command_has_only_its_own_keys(fails: Fails) -> None:
    for key in ("epochs", "spare", "purpose", "ahead"):
        assert f"there is no key {key};" in fails("eval", *SUBMIT[1:], "--set", f"{key}=2")


def test_what_is_missing_is_named(fails: Fails, file: Path) -> None:
    file.write_text('env = "shop"\nrun = "r"')
    assert "--tasks is missing, and no run file has it" in fails("submit", "--config", "run.toml")
    assert "--run is missing" in fails("submit")


@pytest.mark.parametrize("purpose", Purpose)
def test_the_example_fits_both_commands(purpose: Purpose) -> None:
    args = cli.parser().parse_args(["submit", "--config", str(EXAMPLE), "--run", "r"])
    job = keys.Values(plan.TaskKeys).read(args).job(task=0, purpose=purpose)
    assert (job.env, job.size, job.seed, job.budget.max_turns, job.agent_args) == (
        "shop",
        4,
        7,
        20,
        {"calls": "all"},
    )
