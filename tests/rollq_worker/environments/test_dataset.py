"""Tasks from a file of questions with answers."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from rollq.env import RESPOND, Action, Grade
from rollq.errors import JobFailure
from rollq_worker.commands.env.check import check_environment
from rollq_worker.environments import files
from rollq_worker.environments.dataset import Dataset, dataset
from rollq_worker.fakes import FakeUser

ROWS = [
    {"question": "2+2?", "answer": "2+2 is 4. #### 4", "level": 1},
    {"prompt": "3*1000?", "ground_truth": 3000, "system": "Be brief.", "response": "It is 3,000."},
    {
        "problem": [{"role": "system", "content": "Think."}, {"role": "user", "content": "7-9?"}],
        "solution": "-2",
    },
]


ARGUMENTS = pyarrow.struct({"n": pyarrow.int64()})
SCHEMA = {
    "question": pyarrow.string(),
    "prompt": pyarrow.list_(
        pyarrow.struct({"role": pyarrow.string(), "content": pyarrow.string()})
    ),
    "answer": pyarrow.string(),
    "ground_truth": pyarrow.string(),
    "system": pyarrow.string(),
    "response": pyarrow.string(),
    "calls": pyarrow.list_(pyarrow.struct({"name": pyarrow.string(), "arguments": ARGUMENTS})),
    "labels": pyarrow.struct({"level": pyarrow.int64()}),
    "extra": pyarrow.struct({"a": pyarrow.list_(pyarrow.binary())}),
}
"""Every row of a Parquet file has every column, and nulls where it has nothing."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "maths.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    return path


def load(*args: Any, **options: Any) -> Dataset:
    return dataset(*args, **options)(None)


def played(
    domain: Dataset, index: int, answer: str, split: str = "train"
) -> tuple[str, str, Grade]:
    """System prompt, question and grade."""
    episode = domain.open(split, index, {})
    opening = episode.reset(FakeUser([domain.task(split, index).opening]))
    assert episode.step(Action(RESPOND, {"content": answer})).done
    return episode.system_prompt, opening, episode.grade()


def test_rows_are_tasks(path: Path) -> None:
    domain = load(path, reward="number")
    assert domain.splits() == {"train": 3}
    assert check_environment(domain, "train", range(3)).problems == []
    assert played(domain, 0, "So it is 4.") == ("", "2+2?", Grade(1.0))
    assert played(domain, 1, "3000") == ("Be brief.", "3*1000?", Grade(1.0))
    assert played(domain, 2, "2") == ("Think.", "7-9?", Grade(0.0))
    assert played(load(path, system="Default."), 0, "4")[0] == "Default."


def test_a_reward_function_sees_the_answer_and_the_row(path: Path) -> None:
    domain = load(
        path, reward=lambda answer, row: Grade(len(answer) / 10, {"level": row.get("level")})
    )
    assert played(domain, 0, "four!")[2] == Grade(0.5, {"level": 1})


def test_a_call_where_there_are_no_tools_is_the_policys_mistake(path: Path) -> None:
    episode = load(path).open("train", 0, {})
    assert (
        episode.step(Action(RESPOND, {"text": "4"})).text
        == "Error: respond needs a text as its content"
    )
    observed = episode.step(Action("search", {}))
    assert observed.text.startswith("Error") and not observed.done


def test_a_reward_function_may_need_no_answer(path: Path) -> None:
    path.write_text(json.dumps({"prompt": "Write a poem."}))
    domain = load(path, reward=lambda answer, row: float("rose" in answer))
    assert domain.task("train", 0).moves == ()
    assert played(domain, 0, "A rose.")[2] == Grade(1.0)


def test_a_file_for_each_split(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "test.jsonl"
    other.write_text(json.dumps(ROWS[1]))
    domain = load({"train": path, "test": other})
    assert domain.splits() == {"train": 3, "test": 1}
    assert domain.task("test", 0).id == "test/0"
    assert domain.version != load(path).version


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "maths.parquet"
    rows = [
        {
            "question": "2+2?",
            "answer": "4",
            "system": "Add.",
            "calls": None,
            "labels": {"level": 1},
        },
        {
            "question": "2+3?",
            "ground_truth": "5",
            "response": "5!",
            "calls": [{"name": "f", "arguments": {"n": 1}}],
        },
        {
            "prompt": [{"role": "user", "content": "2+4?"}],
            "answer": "6",
            "extra": {"a": [b"x", None]},
        },
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(SCHEMA)), path)
    domain = load(path, system="Default.")
    assert played(domain, 0, " 4\n") == ("Add.", "2+2?", Grade(1.0, {"labels": {"level": 1}}))
    assert played(domain, 1, "5") == ("Default.", "2+3?", Grade(1.0))
    assert played(domain, 2, "6") == ("Default.", "2+4?", Grade(1.0))
    assert [len(domain.task("train", index).moves) for index in range(3)] == [1, 2, 1]
    assert domain.task("train", 1).moves[-1] == Action(RESPOND, {"content": "5!"})
    # A reward function may ask for a column that is null.
    assert (
        played(load(path, reward=lambda answer, row: float(row["response"] is None)), 0, "")[
            2
        ].reward
        == 1.0
    )


def test_a_parquet_file_without_rows_or_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "maths.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([], pyarrow.schema(SCHEMA)), path)
    with pytest.raises(JobFailure, match="has no rows"):
        load(path)
    path.write_text("[]")
    with pytest.raises(JobFailure, match="cannot be read"):
        load(path)


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(JobFailure, match=r"needs the package pyarrow: pip install .*\[parquet\]"):
        dataset(tmp_path / "maths.parquet")


@pytest.mark.parametrize("returned", [None, "1.0", "yes", object()])
def test_what_is_no_reward_is_no_grade(path: Path, returned: Any) -> None:
    domain = load(path, reward=lambda answer, row: returned)
    with pytest.raises(
        (TypeError, ValueError), match=r"not a number or a Grade|float\(\) argument"
    ):
        played(domain, 0, "4")


@pytest.mark.parametrize(
    ("reward", "answer", "says"),
    [
        ("number", "none", "holds no number"),
        ("exact", " ", "an empty text"),
        ("boxed", r"\boxed{ }", "nothing in its box"),
    ],
)
def test_a_truth_that_nothing_can_be_compared_with_is_never_a_reward_of_0(
    path: Path, reward: str, answer: str, says: str
) -> None:
    path.write_text(json.dumps({"prompt": "x", "answer": answer}))
    with pytest.raises(JobFailure, match=says):
        load(path, reward=reward).task("train", 0)


def test_a_dataset_is_an_environment_by_its_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(files.FILES.variable, "")
    names = [files.add_file(f"{path}{reward}") for reward in ("", ":exact", ":number")]
    assert (
        names[0] == names[1]
        and names[0].startswith("maths@")
        and names[2].startswith("maths.number@")
    )
    assert files.load_of(files.FILES.of(names[2]))(None).splits() == {"train": 3}
    with pytest.raises(
        JobFailure,
        match=r"there is no reward 'nearly' of answers; there are exact, number, boxed, math",
    ):
        files.load_of(files.FILES.of(files.add_file(f"{path}:nearly")))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+3?", "label": 5},
        {"question": "2+3?", "expected_answer": "5"},
        {"messages": [{"role": "user", "content": "2+3?"}], "label": "5"},
        {"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]},
        {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": "2+3?"}]}],
            "answer": "5",
        },
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": "2+3?"}],
            "reward_model": {"style": "rule", "ground_truth": "5"},
            "extra_info": {"index": 0},
        },
    ],
    ids=["slime", "NeMo-Gym", "slime's messages", "fine-tuning", "content parts", "verl"],
)
@pytest.mark.parametrize("reward", ["exact", "boxed"])
def test_rows_as_trainers_write_them(path: Path, row: dict[str, Any], reward: str) -> None:
    path.write_text(json.dumps(row))
    domain = load(path, reward=reward)
    [move] = domain.task("train", 0).moves
    said = str(move.arguments["content"])
    assert played(domain, 0, said) == ("", "2+3?", Grade(1.0))
    assert played(domain, 0, "4")[2] == Grade(0.0)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (["Paris", "paris"], ["Paris", "paris"]),
        ({"target": ["Barack Obama", "Obama"]}, ["Barack Obama", "Obama"]),
        ({"value": "Rome", "aliases": ["Roma"]}, ["Rome", "Roma"]),
        ([2, -2.5], ["2", "-2.5"]),
    ],
    ids=["a list", "Search-R1", "TriviaQA", "numbers"],
)
def test_any_of_several_truths_earns(path: Path, answer: Any, right: list[str]) -> None:
    path.write_text(json.dumps({"question": "q", "answer": answer}))
    domain = load(path)
    assert check_environment(domain, "train", range(1)).problems == []
    assert [played(domain, 0, words)[2].reward for words in right] == [1.0] * len(right)
    assert played(domain, 0, json.dumps(answer))[2].reward == 0.0


def open_nothing() -> Any:
    raise AssertionError("a task needs no tools")


def test_choices_that_the_prompt_shows_and_the_datasets_own_tools(path: Path) -> None:
    row = {"question": "x or y?", "answer": "y", "choices": ["x", "y"], "tools": [{}], "images": []}
    path.write_text(json.dumps(row))
    assert load(path, tools=open_nothing).task("train", 0).opening == "x or y?"


def test_a_parquet_row_has_no_argument_of_another_rows(tmp_path: Path) -> None:
    calls = [{"name": "add", "arguments": {"a": 17}}], [{"name": "root", "arguments": {"x": 49}}]
    rows = [{"prompt": str(n), "answer": "7", "calls": row} for n, row in enumerate(calls)]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert load(path).task("train", 1).moves[0] == Action("root", {"x": 49})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no rows"),
        ("{", r"maths\.jsonl:1 is not a line of JSON"),
        ('{"prompt": "x", "answer": "y"}\n\n[]', r"maths\.jsonl:3 .*not an object"),
        ("[" * 100_000, r"maths\.jsonl:1 is not a line of JSON"),
        ("\ufffe", r"maths\.jsonl:1 is not a line of JSON"),
    ],
)
def test_a_file_that_is_no_dataset(path: Path, text: str, says: str) -> None:
    path.write_text(text)
    with pytest.raises(JobFailure, match=says):
        dataset(path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"answer": "y"},
            "the row has no prompt or question or problem or messages; it has answer",
        ),
        ({"prompt": "x"}, "has no answer or ground_truth .*; it has prompt$"),
        ({"prompt": "x", "answer": None}, "has no answer or ground_truth .*; it has prompt$"),
        ({"prompt": "x", "answer": []}, "nothing to compare with"),
        ({"prompt": "x", "answer": {"answers": ["y"]}}, "nothing to compare with"),
        ({"prompt": "x", "answer": True}, "is true, and not a text"),
        ({"prompt": "x", "answer": float("nan")}, "is NaN, and not a text"),
        ({"prompt": "x", "answer": ["y", ["z"]]}, r"is \[\"z\"\], and not a text"),
        ({"prompt": "x", "answer": ["y", None]}, "is null, and not a text"),
        ({"prompt": "<image>x", "answer": "y", "images": [{"path": "p"}]}, "row's images"),
        ({"prompt": "x", "answer": "y", "tools": [{"type": "function"}]}, "row's tools"),
        ({"prompt": "x or y", "answer": "y", "choices": ["x", "z"]}, "row's choices"),
        ({"prompt": "x", "answer": "y", "choices": {"text": ["z"], "label": ["A"]}}, "choices"),
        ({"prompt": "x", "answer": "A", "choices": {"A": "z", "B": "x"}}, "row's choices"),
        ({"prompt": "x", "answer": "7", "choices": [7, 8]}, "row's choices"),
        ({"prompt": "x", "answer": "z", "options": ["x", "z"]}, "row's options"),
        (
            {"prompt": "x", "answer": "y", "calls": 7},
            "calls are a list of objects with name and arguments, not 7",
        ),
        ({"prompt": "x", "answer": "y", "calls": [{"name": "f"}]}, "calls are a list of objects"),
        ({"prompt": "", "answer": "y"}, "must be texts"),
        ({"prompt": 7, "answer": "y"}, "must be texts"),
        ({"prompt": "x", "system": 7, "answer": "y"}, "must be texts"),
        ({"prompt": [], "answer": "y"}, "one message of the user's"),
        (
            {"prompt": [{"role": "assistant", "content": "x"}], "answer": "y"},
            "one message of the user's",
        ),
        (
            {"prompt": ["x", {"role": "user", "content": "x"}], "answer": "y"},
            "one message of the user's",
        ),
    ],
)
def test_a_wrong_row_fails_its_own_job(path: Path, row: dict[str, Any], says: str) -> None:
    path.write_text(json.dumps(row))
    domain = load(path)
    with pytest.raises(JobFailure, match=says):
        domain.task("train", 0)


def test_wrong_questions_to_a_dataset(path: Path, tmp_path: Path) -> None:
    domain = load(path)
    for split, index in (("train", 3), ("test", 0), ("train", -1)):
        with pytest.raises(JobFailure, match="there are 3 of 'train'"):
            domain.task(split, index)
    with pytest.raises(JobFailure, match="takes no env_args"):
        domain.open("train", 0, {"hard": True})
    with pytest.raises(JobFailure, match=r"none\.jsonl cannot be read"):
        dataset(tmp_path / "none.jsonl")
