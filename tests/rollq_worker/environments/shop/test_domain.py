"""The shop's rewards: on every task of every split, the ground truth earns the reward and nothing
else does.
"""

import json
from collections.abc import Iterator, Sequence

from rollq.env import RESPOND, Action, Grade, Task
from rollq_worker.environments import shop
from rollq_worker.environments.shop import tools
from rollq_worker.environments.shop.records import PENDING, records
from tests.rollq_worker.environments.episodes import begin, play, respond

DOMAIN = shop.load(None)
EVERY = [(split, index) for split, size in DOMAIN.splits().items() for index in range(size)]
WRITES = {"cancel_order", "change_address", "set_gift_wrap", "change_item", "return_items"}


def grade_of(split: str, index: int, moves: Sequence[Action]) -> Grade:
    return play(DOMAIN, split, index, moves)[0]


def tasks_that_write() -> Iterator[tuple[str, int, Task, int]]:
    """(split, index, task, place of a write among the moves)."""
    for split, index in EVERY:
        task = DOMAIN.task(split, index)
        for place, move in enumerate(task.moves):
            if move.name in WRITES:
                yield split, index, task, place


def test_ground_truth_earns_the_reward_on_every_task() -> None:
    full = Grade(
        reward=1.0, info={"database": True, "outputs": True, "wrong_records": [], "untold": []}
    )
    for split, index in EVERY:
        task = DOMAIN.task(split, index)
        grade, texts = play(DOMAIN, split, index, task.moves)
        assert len(texts) == len(task.moves), (task.id, "the last move ends it, and none before")
        assert not any(text.startswith("Error") for text in texts), (task.id, texts)
        assert grade == full, task.id


def test_doing_nothing_earns_it_only_where_nothing_is_to_be_done_or_told() -> None:
    idle = 0
    for split, index in EVERY:
        task = DOMAIN.task(split, index)
        changes = any(move.name in WRITES or move.name == tools.TRANSFER for move in task.moves)
        expected = 0.0 if changes or task.outputs else 1.0
        assert grade_of(split, index, []).reward == expected, task.id
        idle += expected == 1.0
    assert 0 < idle < len(EVERY) / 6  # refusals are part of the job, but not a way to live


def test_a_skipped_write_or_transfer_costs_the_reward() -> None:
    seen = set()
    for split, index in EVERY:
        task = DOMAIN.task(split, index)
        for place, move in enumerate(task.moves):
            if move.name in WRITES or move.name == tools.TRANSFER:
                moves = [*task.moves[:place], *task.moves[place + 1 :]]
                grade = grade_of(split, index, moves)
                assert grade.reward == 0.0 and not grade.info["database"], (task.id, move)
                seen.add(move.name)
    assert seen == WRITES | {tools.TRANSFER}


def test_a_wrong_argument_costs_the_reward() -> None:
    for split, index, task, place in tasks_that_write():
        move = task.moves[place]
        name, value = list(move.arguments.items())[-1]
        wrong = {
            "reason": next((reason for reason in tools.CANCEL_REASONS if reason != value), None),
            "wrapped": not value,
            "zip": "00000",
            "payment_method_id": "card-1",
        }[name]
        moves = list(task.moves)
        moves[place] = Action(move.name, {**move.arguments, name: wrong})
        assert grade_of(split, index, moves).reward == 0.0, (task.id, moves[place])


def test_a_write_too_many_costs_the_reward() -> None:
    """Cancelling a pending order that nobody spoke of, in tasks of all kinds."""
    for split, index in EVERY[::7]:
        task = DOMAIN.task(split, index)
        mentioned = json.dumps([dict(move.arguments) for move in task.moves])
        free = [
            order_id
            for order_id in records().customers[records().task_customers[split, index]]["orders"]
            if order_id not in mentioned and records().orders[order_id]["status"] == PENDING
        ]
        for order_id in free[:1]:
            extra = Action("cancel_order", {"order_id": order_id, "reason": "ordered by mistake"})
            grade = grade_of(split, index, [task.moves[0], extra, *task.moves[1:]])
            assert grade.reward == 0.0
            assert grade.info["wrong_records"] == [order_id]


def test_an_output_that_is_not_told_costs_the_reward() -> None:
    split, index = next((s, i) for s, i in EVERY if DOMAIN.task(s, i).outputs)
    task = DOMAIN.task(split, index)
    silent = [respond("Done.") if move.name == RESPOND else move for move in task.moves]
    grade = grade_of(split, index, silent)
    assert grade.reward == 0.0
    assert grade.info == {
        "database": True,
        "outputs": False,
        "wrong_records": [],
        "untold": list(task.outputs),
    }


def test_outputs_are_found_whatever_case_and_commas() -> None:
    backend, messages = DOMAIN.backend, ["It is $1,299.50.", "See t123 ABC."]
    assert backend.missing_outputs(["1299.50", "1,299.50", "T123 abc"], messages) == []
    assert backend.missing_outputs(["1299.51", "1299.50. See"], messages) == [
        "1299.51",
        "1299.50. See",
    ]


def test_an_episode_cut_short_is_graded_as_it_stands() -> None:
    split, index, task, place = next(tasks_that_write())
    environment = begin(DOMAIN, index, *task.replies, split=split)
    for move in task.moves[: place + 1]:
        environment.step(move)
    assert environment.grade().info["database"]


def test_transfer_ends_the_episode_and_is_graded() -> None:
    environment = begin(DOMAIN)
    assert not environment.step(Action(tools.TRANSFER, {})).done  # it lacks its argument
    assert environment.step(Action(tools.TRANSFER, {"summary": "Help."})).done
    assert "handed over" in environment.grade().info["wrong_records"]
