"""Each token that the policy sampled gets the teacher's logprob of it, or the attempt fails."""

import itertools
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from rollq.errors import EngineFailure, JobFailure, RolloutFailure, TeacherFailure
from rollq.events import Finish, Prompt, VersionSpan
from rollq.job import Job
from rollq.teachers import Teacher, logprobs_of, top_ids_of, top_logprobs_of
from rollq.trajectory import Trajectory
from rollq_worker.fakes import FakeEngine, FakeRenderer, char_ids, fake_score
from rollq_worker.protocols import Generated, SampleRequest
from rollq_worker.teachers.scoring import score
from tests.rollq.token_rows import episode
from tests.rollq_worker.episode.episodes import CALL, run

SHAPE = [(3, [([2, 1], 2), ([3], 0)]), (2, [([1], 4)])]
"""Two traces; a turn of two pieces; bridges behind the last token that was sampled."""


class Teaching(FakeEngine):
    """A teacher's engine, whose replies go through `change` before they count."""

    def __init__(self, *changes: Any, context: int = 1 << 30) -> None:
        super().__init__(["x"], version="t1", context=context)
        self.changes = list(changes)

    def generate(self, request: SampleRequest) -> Generated:
        got = super().generate(request)
        return self.changes.pop(0)(got) if self.changes else got


def taught(played: Trajectory, engine: Teaching, **teacher: Any) -> Trajectory:
    """The trajectory with the scores of the teacher `math`."""
    job = replace(played.job, teachers={"math": teacher})

    @contextmanager
    def waiting(name: str, asked: Any) -> Iterator[Any]:
        assert (name, asked) == ("math", engine)
        yield lambda: None

    def engine_of(one: Teacher) -> Teaching:
        assert one == Teacher(**teacher)
        return engine

    return score(
        replace(played, job=job),
        engine_of=engine_of,
        renderer_of=lambda tools: FakeRenderer(),
        waiting=waiting,
    )


def made_up() -> Trajectory:
    return episode(SHAPE, itertools.count())


def expected(trajectory: Trajectory) -> list[float]:
    """By token, from its id alone."""
    return [
        fake_score(id) if sampled else 0.0
        for id, sampled in zip(trajectory.tokens, trajectory.mask, strict=True)
    ]


def test_each_sampled_token_of_each_trace_has_the_teachers_logprob():
    trajectory = taught(made_up(), Teaching(), model="m")
    assert trajectory.teacher_logprobs["math"].tolist() == expected(trajectory)
    assert trajectory.info["teacher_versions"] == {"math": "t1"}
    rows = [segment.teacher_logprobs["math"].tolist() for segment in trajectory.segments()]
    prompts = [len(segment.prompt_ids) for segment in trajectory.segments()]
    ends = list(itertools.accumulate(trajectory.traces))
    assert rows == [
        expected(trajectory)[end - length + prompt : end]
        for end, length, prompt in zip(ends, trajectory.traces, prompts, strict=True)
    ]


def test_the_teacher_is_sent_the_policys_own_ids_up_to_the_last_that_was_sampled():
    engine = Teaching()
    played = taught(made_up(), engine)
    first, second = played.traces
    assert [ids.tolist() for ids in engine.requests] == [
        played.tokens[:first].tolist(),
        played.tokens[first : first + second - 4].tolist(),
    ]


def test_the_likeliest_tokens_are_kept_on_demand():
    trajectory = taught(made_up(), Teaching(), top_k=2)
    sampled = trajectory.sampled_tokens
    top = [trajectory.extras[name("math")] for name in (top_ids_of, top_logprobs_of)]
    assert [extra.shape for extra in top] == [(sampled, 2)] * 2
    assert array("I", top[0].data).tolist() == [0, 1] * sampled
    assert array("f", top[1].data).tolist() == [fake_score(0), fake_score(1)] * sampled
    assert trajectory.extras[logprobs_of("math")].shape == (sampled,)


def test_a_prefix_is_seen_by_the_teacher_alone_before_the_same_tokens():
    played = run(CALL, "done, bye")
    engine = Teaching()
    trajectory = taught(played, engine, prefix="The answer is 4.")
    [sent] = engine.requests
    [policy] = [event for event in played.events if isinstance(event, Prompt)]
    text = "[system]The answer is 4.\n\npolicy[user]hello[assistant]"
    response = played.tokens[len(policy.ids) :]
    assert sent == (char_ids(text) + response)[: len(sent)]
    assert trajectory.teacher_logprobs["math"].tolist() == expected(played)
    assert trajectory.tokens == played.tokens


def nothing(got: Generated) -> Generated:
    return replace(got, ids=array("I"), scores=None, finish=Finish.ABORT)


def newer(got: Generated) -> Generated:
    return replace(got, versions=[VersionSpan("t2", 0, 1)])


@pytest.mark.parametrize(
    ("changes", "requests", "version"),
    [((nothing,), 3, "t1"), ((lambda got: got, newer), 4, "t1"), ((newer, newer), 2, "t2")],
    ids=["aborted", "new weights between two traces", "both by the new weights"],
)
def test_scores_are_asked_for_until_they_are_of_one_version(
    changes: Any, requests: int, version: str
):
    engine = Teaching(*changes)
    trajectory = taught(made_up(), engine)
    assert (len(engine.requests), trajectory.info["teacher_versions"]) == (
        requests,
        {"math": version},
    )
    assert trajectory.teacher_logprobs["math"].tolist() == expected(trajectory)


def raises(error: Exception) -> Any:
    def change(got: Generated) -> Generated:
        raise error

    return change


@pytest.mark.parametrize(
    ("engine", "options", "failure", "says"),
    [
        (Teaching(context=4), {}, TeacherFailure, "does not fit the context of its engine"),
        (Teaching(raises(EngineFailure("it broke"))), {}, TeacherFailure, "it broke"),
        (Teaching(raises(JobFailure("refused"))), {}, TeacherFailure, "'math': refused"),
        (
            Teaching(
                lambda got: replace(got, scores=replace(got.scores, top_ids=[], top_logprobs=[]))
            ),
            {"top_k": 3},
            TeacherFailure,
            "does not name 3 likeliest tokens",
        ),
    ],
)
def test_without_scores_the_attempt_fails(
    engine: Teaching, options: Mapping[str, Any], failure: type[RolloutFailure], says: str
):
    with pytest.raises(failure, match=says):
        taught(made_up(), engine, **options)


def test_a_prompt_that_the_template_did_not_write_gets_no_prefix():
    played = run(CALL, "done, bye")
    prompt = replace(played.events[0], ids=char_ids("another prompt"))
    says = f"^{played.job.id}: the prefix of teacher 'math': .*: leave the prefix out"
    with pytest.raises(JobFailure, match=says):
        taught(replace(played, events=(prompt, *played.events[1:])), Teaching(), prefix="x")


@pytest.mark.parametrize(
    ("teachers", "says"),
    [
        ({"a b": {}}, "teacher 'a b': its name must match"),
        ({"math": {"engine": "x"}}, "teacher 'math': a teacher has the options model, adapter"),
        ({"math": "m"}, "teacher 'math': a teacher has the options"),
        ({"math": {"top_k": -1}}, "teacher 'math': top_k"),
        ({"math": {"model": "a b"}}, "teacher 'math': model 'a b' must match"),
        ({"math": {"adapter": "@3"}}, "teacher 'math': adapter '@3' must be NAME or NAME@VERSION"),
        ({"math": {"adapter": "a@"}}, "teacher 'math': adapter 'a@' must be"),
        ({"math": {"model": 7}}, "teacher 'math': model must be a text, not 7"),
    ],
)
def test_a_job_with_an_impossible_teacher_is_refused(teachers: Any, says: str):
    with pytest.raises(ValueError, match=says):
        Job(env="shop", task=0, teachers=teachers)
