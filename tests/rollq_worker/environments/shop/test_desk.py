"""The service desk: each request takes its own moves, and the moves of another request do not earn
the reward.
"""

from hashlib import sha256

import pytest

from rollq.env import Action
from rollq_worker.environments import domain
from rollq_worker.environments.shop import desk
from rollq_worker.environments.shop.tools import TRANSFER
from tests.rollq_worker.environments.episodes import play, respond

DESK = domain("shop:desk")
DEV = range(DESK.splits()["dev"])


def outcome(moves: list[Action]) -> object:
    """What the moves leave in the data."""
    call = moves[0]
    return (
        "nothing" if call.name == "respond" else TRANSFER if call.name == TRANSFER else repr(call)
    )


def test_only_the_moves_that_have_the_same_outcome_earn_the_reward() -> None:
    for index in DEV:
        own = list(DESK.task("dev", index).moves)
        for other in range(index - index % desk.KINDS, index - index % desk.KINDS + desk.KINDS):
            moves = list(DESK.task("dev", other).moves)
            reward = play(DESK, "dev", index, moves)[0].reward
            assert reward == float(outcome(moves) == outcome(own)), (index, other)


@pytest.mark.parametrize(
    ("said", "rewards"),
    [
        (desk.DONE, "00000000"),
        (desk.REFUSED, "00000111"),
        (" ".join(desk.OUTCOMES).lower(), "00000000"),
    ],
)
def test_what_came_of_the_request_has_to_be_said(said: str, rewards: str) -> None:
    broken = Action("cancel_order", {"cancel": True})
    for moves in ([broken, respond(said)], [respond(said)]):
        earned = [play(DESK, "dev", index, moves)[0].reward for index in range(desk.KINDS)]
        assert "".join(f"{reward:.0f}" for reward in earned) == rewards


@pytest.mark.parametrize(
    ("said", "reward"),
    [(desk.DONE, 1.0), (desk.REFUSED, 0.0), (" ".join(desk.OUTCOMES), 0.0), ("I see.", 0.0)],
)
def test_a_request_that_was_done_must_not_be_refused(said: str, reward: float) -> None:
    call, _ = DESK.task("dev", 0).moves
    assert play(DESK, "dev", 0, [call, respond(said)])[0].reward == reward


def test_other_tasks_are_another_version() -> None:
    hashes = "".join(DESK.task("dev", index).hash for index in DEV)
    assert (DESK.version, sha256(hashes.encode()).hexdigest()[:16]) == (
        "shop:desk 3",
        "1603ba82f0ad36b5",
    )


def test_openings_are_unique_and_held_out_customers_are_in_no_training_task() -> None:
    openings = {
        split: [DESK.task(split, index).opening for index in range(size)]
        for split, size in DESK.splits().items()
    }
    everything = [opening for split in openings.values() for opening in split]
    assert len(set(everything)) == len(everything)
    names = {
        split: {opening.split(" about ")[0] for opening in found}
        for split, found in openings.items()
    }
    assert not names["train"] & names["test"]


def test_tools_take_no_order_id() -> None:
    environment = DESK.open("dev", 0, {})
    assert [tool["function"]["name"] for tool in environment.tools] == [
        "cancel_order",
        "set_gift_wrap",
        TRANSFER,
    ]
    assert all(
        "order_id" not in tool["function"]["parameters"]["properties"] for tool in environment.tools
    )
