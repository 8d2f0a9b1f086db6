"""Which task a conversation is about, and which of its moves have been made."""

from dataclasses import replace
from typing import Any

import pytest

from rollq.env import RESPOND, STOP_MARKER, Action, Task
from rollq.errors import JobFailure, SettingsError
from rollq_worker.protocols import ReadTurn
from rollq_worker.replay_engine.policy.task_progress import TaskIndex, TaskProgress
from tests.rollq_worker.replay_engine.shop_episodes import SHOP, SPLIT

ASK, LOOK, WRITE, TELL = MOVES = (
    Action(RESPOND, {"content": "Shall I?"}),
    Action("look", {"id": 1}),
    Action("write", {"id": 1}),
    Action(RESPOND, {"content": "Done."}),
)
TASK = Task(
    id="t",
    hash="",
    instruction="Do it.",
    opening="Please do it.",
    replies=[STOP_MARKER],
    moves=MOVES,
)
ASKED = ReadTurn("Shall I?")


def moves_made(*turns: ReadTurn) -> int:
    progress = TaskProgress(TASK, opened=True)
    for turn in turns:
        progress = progress.after_turn(turn)
    return progress.made


def test_moves_are_made_in_order() -> None:
    turns = [ASKED, ReadTurn("", [LOOK]), ReadTurn("", [WRITE]), ReadTurn("Done.")]
    assert [moves_made(*turns[:count]) for count in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "turn",
    [
        ReadTurn("<tool_call>{", (), ["broken"]),
        ReadTurn("", [Action("look", {"id": 2})]),
        ReadTurn("", [Action("look_now", {"id": 1})]),
        ReadTurn("One moment."),
    ],
)
def test_a_turn_that_is_no_move_does_not_count(turn: ReadTurn) -> None:
    assert moves_made(ASKED, turn) == 1


def test_any_words_count_where_words_are_due() -> None:
    assert moves_made(ReadTurn("May I?")) == 1


def test_skipped_moves_stay_skipped() -> None:
    assert moves_made(ASKED, ReadTurn("", [WRITE])) == 3
    assert moves_made(ReadTurn("Done.")) == 4


def test_only_the_first_call_of_a_turn_counts() -> None:
    assert moves_made(ASKED, ReadTurn("", [LOOK, WRITE])) == 2


def test_the_first_user_message_with_an_opening_names_the_task(tasks: TaskIndex) -> None:
    task = SHOP.task(SPLIT, 3)
    for text in (task.opening, f" {task.opening}\n", f"Hello! {task.opening}"):
        assert TaskProgress().after_user(text, tasks).task == task
    unknown = TaskProgress().after_user("Hello!", tasks)
    assert (unknown.task, unknown.opened) == (None, True)
    known = unknown.after_user(task.opening, tasks)  # Codex tells where it is in a message before
    assert known.task == known.after_user(SHOP.task(SPLIT, 4).opening, tasks).task == task


def test_unknown_environments_are_refused() -> None:
    with pytest.raises(JobFailure, match="no-such-env"):
        TaskIndex.load("shop,no-such-env")


class Wrong:
    """A domain with one task, that is wrong."""

    name = version = "wrong"

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def splits(self) -> dict[str, int]:
        return {"train": 1}

    def task(self, split: str, index: int) -> Task:
        return replace(TASK, **self.changes)

    def open(self, *which: Any) -> Any:
        raise ValueError("no data here")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"opening": None}, "AttributeError: 'NoneType'"),
        ({"moves": ()}, r"ValueError: no data here \(\S+/test_task_progress.py:\d+\); `rollq env"),
    ],
)
def test_a_wrong_task_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=f"task 0 of wrong/train cannot be played: {says}"):
        TaskIndex([Wrong(**changes)])
