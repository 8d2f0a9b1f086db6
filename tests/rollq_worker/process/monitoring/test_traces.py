"""The spans of attempts: what they are of, how they nest, and what they never say."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from rollq.env import Action
from rollq.errors import EngineFailure
from rollq.events import Observed, Sampled
from rollq.job import Job
from rollq.ledger.ledger import Ledger
from rollq.trajectory import Trajectory
from rollq_worker.process.job_task import JobRunner
from rollq_worker.process.monitoring import traces
from rollq_worker.process.monitoring.traces import LONGEST, UNKNOWN, AttemptTraces, WatchedEnvironment
from tests.rollq import samples
from tests.rollq.agent_episodes import branching
from tests.rollq.samples import reader

CALLS = ("environment.reset", "environment.step", "environment.grade", "user.open", "user.reply")


class Spans:
    def __init__(self, runner: JobRunner) -> None:
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        AttemptTraces(provider.get_tracer("rollq")).attach(runner)

    def take(self) -> dict[str, list[ReadableSpan]]:
        """Those so far, by name."""
        found: defaultdict[str, list[ReadableSpan]] = defaultdict(list)
        for span in sorted(self._memory.get_finished_spans(), key=lambda span: span.start_time or 0):
            found[span.name].append(span)
        self._memory.clear()
        return found


@pytest.fixture
def spans(runner: JobRunner) -> Spans:
    return Spans(runner)


def submit(ledger: Ledger, **job: Any) -> str:
    made = Job(**{"run": "r", "group": "g", "env": "shop", "task": 0, **job})
    ledger.submit([made])
    return made.id


def check_nesting(found: dict[str, list[ReadableSpan]]) -> None:
    """Every span but the attempt's lies within its parent."""
    every = {span.context.span_id: span for some in found.values() for span in some if span.context}
    for span in every.values():
        assert span.start_time and span.end_time and span.start_time <= span.end_time
        if span.name == "rollout":
            assert span.parent is None
            continue
        assert span.parent is not None
        parent = every[span.parent.span_id]
        assert parent.name == ("rollout" if span.name == "turn" else parent.name) in ("rollout", "turn")
        assert (parent.start_time or 0) <= span.start_time and (parent.end_time or 0) >= span.end_time - 1_000_000


def texts(trajectory: Trajectory) -> Iterator[str]:
    """Everything that was said, called or returned."""
    for event in trajectory.events:
        if isinstance(event, Sampled):
            yield event.text
        if isinstance(event, Observed):
            for message in (event.message, *event.replies):
                yield str(message.get("content") or "")
                yield from (str(call["function"]["arguments"]) for call in message.get("tool_calls") or ())


def test_a_span_for_the_episode_each_turn_request_and_call(runner: JobRunner, ledger: Ledger, spans: Spans) -> None:
    job_id = submit(ledger, group="a")
    began = time.time_ns()
    runner.run(job_id)
    trajectory, found = reader(ledger).trajectory(job_id), spans.take()
    check_nesting(found)
    (episode,) = found["rollout"]
    assert began - 1_000_000 <= (episode.start_time or 0) <= (episode.end_time or 0) <= time.time_ns()
    said = dict(episode.attributes or {})
    assert {"rollq.job": "r/a/0", "rollq.run": "r", "rollq.attempt": 1, "rollq.env": "shop"}.items() <= said.items()
    assert (said["rollq.stop"], said["rollq.reward"], said["rollq.turns"]) == ("done", 1.0, trajectory.turns)
    assert [span.attributes["rollq.turn"] for span in found["turn"]] == list(range(trajectory.turns))  # type: ignore[index]
    pieces = [event for event in trajectory.events if isinstance(event, Sampled)]
    sampled = [span.attributes["rollq.sampled_tokens"] for span in found["engine.generate"]]  # type: ignore[index]
    assert sampled == [len(piece.ids) for piece in pieces]
    actions = [action["name"] for event in trajectory.events if isinstance(event, Observed) for action in event.actions]
    assert [span.attributes["rollq.tool"] for span in found["environment.step"]] == actions  # type: ignore[index]
    assert Counter({name: len(found[name]) for name in ("environment.reset", "environment.grade", "user.open")}) == {
        "environment.reset": 1,
        "environment.grade": 1,
        "user.open": 1,
    }
    assert len(found["user.reply"]) == actions.count("respond")


def test_no_attribute_has_a_text_of_the_episode(runner: JobRunner, ledger: Ledger, spans: Spans) -> None:
    job_id = submit(ledger)
    runner.run(job_id)
    said = [text for text in texts(reader(ledger).trajectory(job_id)) if len(text) > 8]
    every = [span for some in spans.take().values() for span in some]
    values = [str(value) for span in every for value in (span.attributes or {}).values()]
    assert said and values and all(len(value) <= LONGEST for value in values)
    assert not [(text, value) for text in said for value in values if text in value]
    assert not [value for value in values if " " in value]  # names have none, texts have
    assert not [span for span in every if span.events]  # which could hold the text of an exception


def test_a_failed_attempt_is_an_error_and_the_next_one_has_the_other_turns(
    runner: JobRunner, ledger: Ledger, spans: Spans
) -> None:
    job_id, calls = submit(ledger), iter(range(100))
    sample = runner.time_spent.engine._engine.generate

    def generate(*args: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise EngineFailure("a secret address")
        return sample(*args, **options)

    runner.time_spent.engine._engine.generate = generate  # type: ignore[method-assign]
    assert runner.run(job_id)["failure"] == "engine"
    first = spans.take()
    check_nesting(first)
    (episode,) = first["rollout"]
    assert (episode.status.status_code, episode.status.description) == (StatusCode.ERROR, "engine")
    assert episode.attributes and episode.attributes["rollq.then"] == "queued"
    assert [span.attributes["rollq.turn"] for span in first["turn"]] == [0, 1]  # type: ignore[index]
    ledger.redis.hset(ledger.keys.job(job_id), "not_before", 0)
    assert runner.run(job_id)["stop"] == "done"
    second, played = spans.take(), reader(ledger).trajectory(job_id)
    check_nesting(second)
    assert [span.attributes["rollq.turn"] for span in second["turn"]] == list(range(2, played.turns))  # type: ignore[index]
    assert len(second["environment.step"]) > len(second["turn"]) - 1  # those that are replayed, too
    (again,) = second["rollout"]
    assert again.attributes and again.attributes["rollq.attempt"] == 2 and again.status.status_code is StatusCode.UNSET


def test_a_tool_that_does_not_exist_has_no_name_of_its_own() -> None:
    calls: list[traces.Call] = []

    class Shop:
        tools = ({"type": "function", "function": {"name": "look"}},)
        system_prompt = ""

        def reset(self, user: Any) -> str:
            return "hello"

        def step(self, action: Action) -> Any:
            raise KeyError("what the model said")

    environment = WatchedEnvironment(Shop(), calls)  # type: ignore[arg-type]
    assert environment.reset(None) == "hello"  # type: ignore[arg-type]
    for name in ("look", "a secret that the model made up"):
        with pytest.raises(KeyError):
            environment.step(Action(name))
    assert [(call.name, call.tool, call.error) for call in calls] == [
        ("environment.reset", "", ""),
        ("environment.step", "look", "KeyError"),
        ("environment.step", UNKNOWN, "KeyError"),
    ]


def test_turns_of_an_attempt_that_went_on_in_the_middle_of_one() -> None:
    events = [samples.prompt(1, 2), samples.sampled(0, 3), samples.observed(0, 4), samples.sampled(1, 5)]
    more = [samples.sampled(1, 6), samples.observed(1, 7), samples.sampled(2, 8)]
    found = traces.turns([*events, *more], len(events))
    assert [(turn.number, len(turn.requests), turn.observed is not None) for turn in found] == [
        (1, 1, True),
        (2, 1, False),
    ]
    assert [turn.number for turn in traces.turns(events, 0)] == [0, 1]
    assert traces.turns(events, len(events)) == []


def test_an_attempt_that_cannot_be_traced_is_played_all_the_same(
    runner: JobRunner, ledger: Ledger, spans: Spans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(traces, "turns", lambda *_: 1 / 0)
    assert runner.run(submit(ledger))["stop"] == "done"
    assert "was not traced" in caplog.text


def test_an_attempt_that_is_not_sampled_costs_one_span(
    runner: JobRunner, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "turns", lambda *_: pytest.fail("it read the journal"))
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    AttemptTraces(provider.get_tracer("rollq")).attach(runner)
    assert runner.run(submit(ledger))["stop"] == "done"


def test_turns_of_traces_that_took_turns_are_one_each() -> None:
    events = branching().events[:-1]
    found = traces.turns(events, 0)
    assert [turn.number for turn in found] == [0, 1, 2, 3, 4]
    assert all(len(turn.requests) == 1 and turn.observed is not None for turn in found)
    assert [turn.observed.turn for turn in found if turn.observed] == [0, 1, 2, 3, 4]
