"""What a demo checks before it starts anything, which jobs it makes, and what it proposes
afterwards.
"""

import sys
from pathlib import Path

import pytest

from rollq import cli
from rollq.pip_extras import install_line
from rollq_worker.commands.demo.command import demo_jobs, next_steps, report


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (("--env", "nope"), "there is no environment 'nope'"),
        (("--set", "split=nope"), "shop has no split 'nope'; it has train ("),
        (("--set", "tasks=0-999999"), "shop/train has tasks 0-499, not 999999"),
        (("--tokenizer", "/nowhere"), "/nowhere"),
        (("--tokenizer", "/"), "/"),
        (
            ("--set", "template_kwargs.enable_thinkin=false"),
            "template_kwargs: the chat template of the bundled tokenizer does",
        ),
        (("--set", "queue=q"), "there is no key queue"),
        (
            ("--set", 'context={"kind": "window", "over": 2600}'),
            "context: context 'window': turns must be",
        ),
        (("--set", "reward=nope"), "reward: reward 'nope' is unknown here"),
        (("--set", 'user={"kind": "openai", "endpoint": "sim"}'), "user: "),
    ],
)
def test_a_wrong_line_starts_and_destroys_nothing(
    line: tuple[str, ...], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("precious\n")
    assert cli.main(["demo", "--out", str(kept), *line]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and error in said.err
    assert kept.read_text() == "precious\n"


def test_an_engine_that_does_not_answer_destroys_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    kept.write_text("precious\n")
    assert cli.main(["demo", "--out", str(kept), "--engine", "http://127.0.0.1:9"]) == 1
    assert kept.read_text() == "precious\n"


@pytest.mark.parametrize(
    ("line", "tasks"),
    [
        ("", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("--set tasks=5-7 --groups 5", [5, 6, 7, 5, 6]),
        ("--set tasks=8 --groups 2", [8, 8]),
    ],
)
def test_more_groups_than_tasks_repeat_the_tasks_in_another_epoch(
    line: str, tasks: list[int]
) -> None:
    _, jobs = demo_jobs(cli.parser().parse_args(["demo", *line.split()]))
    assert [job.task for job in jobs] == tasks
    assert len({job.group for job in jobs}) == len(tasks)
    assert len({job.run for job in jobs}) == 1


def proposed(*line: str) -> str:
    args = cli.parser().parse_args(["demo", "--set", "tasks=2-4", *line])
    return "\n".join(next_steps(args, demo_jobs(args)[1]))


def test_the_next_steps_fit_what_was_played() -> None:
    assert "rollq redis; rollq engine; rollq worker" in proposed()
    assert install_line("tau2-2025") in proposed()
    other = proposed("--env", "shop:desk", "--set", "split=test")
    assert "rollq engine --env shop:desk; rollq worker" in other
    assert "--env shop:desk --split test --tasks 2-4 " in other and "--groups 3 " in other
    short = proposed("--set", 'template_kwargs={"enable_thinking": false}')
    assert """--tasks 2-4 --set 'template_kwargs={"enable_thinking": false}' --size 4""" in short
    assert "--tasks 2-4 --set agent=react --size 4" in proposed("--set", "agent=react")
    real = proposed("--engine", "http://h:1", "--tokenizer", "DIR")
    assert "rollq worker --engine http://h:1 --tokenizer DIR" in real and "rollq engine" not in real


def test_the_first_death_is_told_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    means = {
        "reward_mean": None,
        "pass_hat_k": {},
        "turns_mean": None,
        "stops": {"failed": 2},
        "wall_s": 1.0,
    }
    counts = dict.fromkeys(
        ("submitted", "done", "dead", "delivered", "duplicates", "sampled_tokens", "total_tokens"),
        0,
    )
    args = cli.parser().parse_args(["demo"])
    deaths = [f'r/g/{n}: env: it broke\nTraceback:\n  File "world.py"\x1b[2J' for n in range(2)]
    report(args, demo_jobs(args)[1], means | counts, deaths, sys.stdout)
    said = capsys.readouterr().out
    assert (
        'dead     r/g/0: env: it broke\nTraceback:\n  File "world.py"\\x1b[2J\ndead     '
        "r/g/1: env: it broke\n" in said
    )
