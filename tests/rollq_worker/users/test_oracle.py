"""The oracle: a user without a model that knows its task."""

from dataclasses import replace

from rollq.env import STOP_MARKER
from rollq_worker.environments import shop
from rollq_worker.users import user_factory
from rollq_worker.users.oracle import AGREEMENT, FAREWELL, MAX_REPLIES, OracleUser
from tests.rollq_worker.users.tasks import TASK


def test_an_oracle_answers_agrees_and_leaves_when_it_was_told() -> None:
    user = OracleUser(TASK)
    assert user.open() == TASK.opening
    assert user.reply("Which order do you want to cancel?") == "I want to cancel order S-1."
    assert user.reply("Why? Was it ordered by mistake?") == "I ordered it by mistake."
    assert user.reply("I would cancel it. Shall I go ahead?") == AGREEMENT
    assert user.reply("It is cancelled, $1,299.50 comes back.") == FAREWELL
    assert STOP_MARKER in FAREWELL


def test_an_oracle_tells_all_it_knows_to_an_agent_that_asks_nothing_in_particular() -> None:
    user = OracleUser(TASK)
    said = [user.reply("Hm?") for _ in range(4)]
    assert said == [
        "I am Ada Abara.",
        "I want to cancel order S-1.",
        "I ordered it by mistake.",
        "I want the {refund}.",
    ]


def test_an_oracle_that_knows_nothing_leaves() -> None:
    user = OracleUser(replace(TASK, instruction="", outputs=["42"]))
    assert user.reply("I am looking.") == FAREWELL


def test_an_oracle_leaves_after_many_replies() -> None:
    user = OracleUser(TASK)
    replies = [user.reply("Tell me more.") for _ in range(MAX_REPLIES)]
    assert [STOP_MARKER in reply for reply in replies] == [False] * (MAX_REPLIES - 1) + [True]


def test_an_oracle_plays_the_shop_to_an_end() -> None:
    """The moves were written for the scripted user. The oracle answers otherwise, yet most tasks
    succeed.
    """
    domain, earned = shop.load(None), 0.0
    for index in range(100):
        task = domain.task("test", index)
        environment = domain.open("test", index, {})
        environment.reset(user_factory({"kind": "oracle"}, task, seed=0, endpoints={}))
        moves = iter([*task.moves, *[task.moves[-1]] * MAX_REPLIES])
        while not environment.step(next(moves)).done:
            pass
        earned += environment.grade().reward
    assert earned >= 60
