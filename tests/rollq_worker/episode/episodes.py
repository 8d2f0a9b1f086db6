"""An episode played by the fakes, and an engine that replies piece by piece."""

from array import array
from collections.abc import Sequence
from typing import Any

from rollq.events import Event, Finish, VersionSpan
from rollq.job import Budget, Job
from rollq.trajectory import Trajectory
from rollq_worker.context import context_factory
from rollq_worker.episode.loop import play
from rollq_worker.fakes import (
    END,
    FakeEngine,
    FakeEnvironment,
    FakeJournal,
    FakeRenderer,
    FakeUser,
    char_ids,
)
from rollq_worker.protocols import Context, Generated, SampleRequest

CALL = '{"name": "add", "arguments": {"a": 1}}'
TWO_CALLS = '[{"name": "add", "arguments": {"a": 1}}, {"name": "add", "arguments": {"a": 2}}]'
END_TEXT = chr(END)


def play_with_fakes(
    *texts: str,
    budget: dict[str, int] | None = None,
    engine: Any = None,
    renderer: Any = None,
    environment: Any = None,
    user: Any = None,
    journal: Any = None,
    recorded: Sequence[Event] = (),
    grader: Any = None,
    context: Any = None,
    **fields: Any,
) -> Trajectory:
    """Play an episode whose engine samples `texts`. `context`: the job's, or what its
    factory made.
    """
    if not isinstance(context, Context):
        fields["context"] = context or {}
    job = Job(run="r", group="g", env="fake", task=0, budget=Budget(**(budget or {})), **fields)
    return play(
        job,
        engine=engine or FakeEngine(texts),
        renderer=renderer or FakeRenderer(),
        environment=environment or FakeEnvironment(),
        user=user or FakeUser(),
        journal=journal or FakeJournal(),
        recorded=recorded,
        reward=grader,
        context=context if isinstance(context, Context) else context_factory(job, endpoints={}),
    )


def run(*texts: str, engine: Any = None, **options: Any) -> Trajectory:
    """Play an episode and check that the trajectory is, id for id, what the engine was sent and
    what it returned.
    """
    engine = engine or FakeEngine(texts)
    trajectory = play_with_fakes(engine=engine, **options)
    sent, sampled = engine.requests, engine.replies
    for before, reply, after in zip(sent, sampled, sent[1:], strict=False):
        assert after[: len(before) + len(reply)] == before + reply
    assert trajectory.tokens == sent[-1] + sampled[-1]
    trained = [t for t, m in zip(trajectory.tokens, trajectory.mask, strict=True) if m]
    assert trained == [t for reply in sampled for t in reply]
    assert (
        len(trajectory.tokens)
        == len(trajectory.logprobs)
        == len(trajectory.versions)
        == sum(trajectory.traces)
    )
    assert [v is not None for v in trajectory.versions] == [bool(m) for m in trajectory.mask]
    assert all(
        lp == 0.0 for lp, m in zip(trajectory.logprobs, trajectory.mask, strict=True) if not m
    )
    return trajectory


class PieceEngine(FakeEngine):
    """Replies with these texts and finishes, and remembers what it was asked for."""

    def __init__(self, *pieces: tuple[str, Finish]) -> None:
        super().__init__(["unused"])
        self.pieces = list(pieces)
        self.asked: list[tuple[dict[str, Any], int]] = []

    def generate(self, request: SampleRequest) -> Generated:
        self.requests.append(request.ids[:])
        self.asked.append((dict(request.sampling), request.max_new_tokens))
        text, finish = self.pieces.pop(0)
        out = char_ids(text)
        self.replies.append(out)
        logprobs = array("f", [-0.5] * len(out))
        return Generated(
            ids=out, logprobs=logprobs, versions=[VersionSpan("v", 0, len(out))], finish=finish
        )
