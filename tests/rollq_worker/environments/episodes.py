"""Episodes of any domain, played against its scripted user."""

from collections.abc import Iterable, Sequence

from rollq.env import RESPOND, Action, Domain, Grade, Task
from rollq.env.customer_service import Conversation
from rollq_worker.fakes import FakeUser


def begin(domain: Domain, index: int = 0, *lines: str, split: str = "test") -> Conversation:
    """An episode whose user says hello and then those lines."""
    environment = domain.open(split, index, {})
    assert isinstance(environment, Conversation)
    environment.reset(FakeUser(["hello", *lines]))
    return environment


def play(
    domain: Domain, split: str, index: int, moves: Iterable[Action]
) -> tuple[Grade, list[str]]:
    """Grade and observations of the moves; after them the agent makes small talk until the episode
    is over.
    """
    task, environment = domain.task(split, index), domain.open(split, index, {})
    assert environment.reset(FakeUser([task.opening, *task.replies])) == task.opening
    left, texts, done = iter(moves), list[str](), False
    while not done:
        observation = environment.step(next(left, respond("I see.")))
        texts.append(observation.text)
        done = observation.done
    return environment.grade(), texts


def respond(content: object) -> Action:
    return Action(RESPOND, {"content": content})


def calls_of(task: Task) -> list[Action]:
    return [move for move in task.moves if move.name != RESPOND]


def messages_of(task: Task) -> list[Action]:
    return [move for move in task.moves if move.name == RESPOND]


def mistaken(calls: Sequence[Action]) -> Iterable[Sequence[Action]]:
    """Ground truths without a call, done twice, in reverse, and with two arguments of a call
    swapped.
    """
    yield calls[:-1]
    yield calls[1:]
    yield [*calls, *calls]
    yield calls[::-1]
    for at, call in enumerate(calls):
        names = [name for name, value in call.arguments.items() if isinstance(value, str)]
        if len(names) > 1:
            first, second = names[:2]
            swapped = {
                **call.arguments,
                first: call.arguments[second],
                second: call.arguments[first],
            }
            yield [*calls[:at], Action(call.name, swapped), *calls[at + 1 :]]
            return
