"""Which engines generate nothing, as their loads and their silence tell."""

from collections.abc import Callable, Sequence

import pytest

from rollq_worker.engine.exchange.server import EngineLoad
from rollq_worker.engine.scheduling.load_watch import (
    SLOW_S,
    STALLED_S,
    UNANSWERED_S,
    Idle,
    LoadWatch,
)
from rollq_worker.engine.scheduling.placement import EnginePlacement

URL = "http://e"


def load(used: int = 500, running: int = 3) -> EngineLoad:
    """Measured on SGLang 0.5.23: a pause, in each of its modes, leaves all of it as it was."""
    return EngineLoad(running=running, waiting=0, token_usage=0.1, used_tokens=used)


class Engine:
    """It tells one load after the other, and then the last one again and again; None: it does not
    answer.
    """

    url, name, available = URL, URL, True

    def __init__(
        self, *loads: EngineLoad | None, paused: bool = False, waits_s: float = SLOW_S
    ) -> None:
        self.loads, self.reports_pause, self.waits_s = list(loads), paused, waits_s
        self.server = self

    def longest_wait_s(self) -> float:
        return self.waits_s

    def is_paused(self) -> bool:
        return self.reports_pause

    def load(self) -> EngineLoad | None:
        told = self.loads.pop(0) if self.loads[1:] else self.loads[0]
        if told is None:
            raise TimeoutError
        return told


def idle_after(engine: Engine, seconds: Sequence[float]) -> Idle | None:
    """Why it generates nothing after looks at these times."""
    clock = [0.0]
    placement = EnginePlacement()
    placement.enter("episode", "group", [URL])
    watch = LoadWatch(lambda: [engine], placement, lambda: clock[0])
    for clock[0] in seconds:
        watch.observe(engine)
    return watch.idle(URL)


SOON, LATE = (0.0, STALLED_S - 0.1), (0.0, STALLED_S)


@pytest.mark.parametrize("told", [load(), load(used=0, running=0)], ids=["held", "none known"])
def test_a_load_that_does_not_change_while_a_request_waits_is_no_progress(told: EngineLoad) -> None:
    assert idle_after(Engine(told), SOON) is None
    assert idle_after(Engine(told), LATE) is Idle.STALLED
    assert idle_after(Engine(told, waits_s=SLOW_S - 0.1), LATE) is None
    assert idle_after(Engine(told, paused=True), SOON) is Idle.PAUSED


def test_one_that_answers_nothing_while_a_request_waits_is_stalled_after_two_questions() -> None:
    assert idle_after(Engine(None), (0.0, UNANSWERED_S - 0.1)) is None
    assert idle_after(Engine(None), (0.0, UNANSWERED_S)) is Idle.STALLED
    assert idle_after(Engine(None, waits_s=SLOW_S - 0.1), (0.0, UNANSWERED_S)) is None
    assert idle_after(Engine(None, load()), (0.0, UNANSWERED_S)) is None


@pytest.mark.parametrize(
    "engine",
    [
        lambda: Engine(load(500), load(560)),
        lambda: Engine(load(500), None),
        lambda: Engine(load(used=0)),  # it does not tell how many tokens it holds
    ],
    ids=["one more page", "one answer that is missing", "a load that says too little"],
)
def test_what_changes_or_tells_too_little_is_not_stalled(engine: Callable[[], Engine]) -> None:
    assert idle_after(engine(), LATE) is None


def test_it_counts_from_the_last_change_and_ends_with_the_next() -> None:
    engine = Engine(load(500), load(560))
    assert idle_after(engine, (0.0, 5.0, 5.0 + STALLED_S)) is Idle.STALLED
    again = Engine(load(500), load(500), load(560))
    assert idle_after(again, (0.0, STALLED_S, STALLED_S + 2.0)) is None
