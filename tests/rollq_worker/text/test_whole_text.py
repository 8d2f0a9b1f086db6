"""Half a surrogate pair never gets past the door."""

import pytest

from rollq.env import Action, Grade, Observation, User
from rollq_worker.fakes import FakeUser
from rollq_worker.process.attempts.time_limits import TimedEnvironment, TimeLimits
from rollq_worker.text.whole_text import whole_characters, whole_json


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("", ""),
        ("plain", "plain"),
        ("half \ud83d pair", "half \ufffd pair"),
        ("\udc00", "\ufffd"),
        ("\ud83c\udf7a", "🍺"),
    ],
)
def test_halves_become_the_replacement_character(text: str, held: str) -> None:
    assert whole_characters(text) == held
    assert whole_json({text: [text, 7, None, {"a": text}]}) == {held: [held, 7, None, {"a": held}]}


class Odd:
    tools, system_prompt = (), "rules\ud83d"

    def __init__(self, shown: bool = False) -> None:
        self.shown = shown

    def reset(self, user: User) -> str | Observation:
        said = f"{user.open()}\ud83d"
        return Observation(said) if self.shown else said

    def step(self, action: Action) -> Observation:
        return Observation("\ud83d", done=True, reward=0.5)

    def grade(self) -> Grade:
        return Grade(1.0)


def test_what_an_environment_says_is_whole() -> None:
    environment = TimedEnvironment(Odd(), TimeLimits(), 1.0, ())
    assert environment.reset(FakeUser(["hi"])) == "hi\ufffd"
    shown = TimedEnvironment(Odd(shown=True), TimeLimits(), 1.0, ())
    assert shown.reset(FakeUser(["hi"])) == Observation("hi\ufffd")
    assert environment.system_prompt == "rules\ufffd"
    assert environment.step(Action("f")) == Observation("\ufffd", done=True, reward=0.5)
