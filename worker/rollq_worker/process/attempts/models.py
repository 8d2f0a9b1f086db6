"""The engines of other models than the policy, which jobs know by name: teachers, and agents that
are not trained. An outage of one of them stops the clocks of the attempt that asks it.

It knows nothing of what they are asked.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from rollq.errors import ForOtherWorkers, JobFailure, TeacherFailure
from rollq.job import Job
from rollq.ledger.workers.live_workers import MODEL_AWAY
from rollq.teachers import Teacher
from rollq_worker.agents.known_agents import is_program
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.attempts.attempt import Attempt, Question

TEACHER_LIMIT_S = 900.0
"""Longest time in seconds in which a teacher scores an episode, without the time for which its
engines are away.
"""


def check_models(job: Job, models: Collection[str]) -> None:
    """Raises ForOtherWorkers for a job that names a model which this worker does not know, and
    JobFailure for several models in a conversation of rollq's own loop.
    """
    if job.models and not is_program(job.agent):
        raise JobFailure(
            f"{job.id}: models are for an agent program, and {job.agent} has one conversation"
        )
    named = {f"teacher {name!r}": Teacher.read(each).model for name, each in job.teachers.items()}
    named |= {f"model {name!r}": each.get("model", "") for name, each in job.models.items()}
    for what, model in named.items():
        if model and model not in models:
            raise ForOtherWorkers(
                f"{what} is the model {model!r}, which this worker does not know: give it the "
                "addresses of its engines in ROLLQ_MODEL_ENGINES"
            )


@contextmanager
def asking_teacher(
    attempt: Attempt, models: Mapping[str, EnginePool], name: str, engine: EnginePool
) -> Iterator[Callable[[], None]]:
    """A block in which the teacher of that name is asked, on that engine. Returns the function to
    call while it is waited for.
    """
    model = next((model for model, pool in models.items() if pool is engine), "")
    with (
        attempt.time_limits.call(TeacherFailure, f"the teacher {name!r}", TEACHER_LIMIT_S),
        asking(attempt, model, engine) as check,
    ):
        yield check


@contextmanager
def asking(attempt: Attempt, model: str, engine: EnginePool) -> Iterator[Callable[[], None]]:
    """A block in which the attempt asks this model; an empty name is the policy. Returns the
    function to call while its engines are waited for. It keeps the clocks still while all of them
    are away; the attempt does so itself for the deadline and the policy's engines.
    """
    began_s = engine.outage_s

    def check() -> None:
        attempt.stand_still(model, began_s, engine.outage_s)
        attempt.check()

    engines = f"{MODEL_AWAY} {model!r}"
    question = Question(engines, lambda: not engine.available, time.monotonic())
    if model:
        attempt.questions.append(question)
    try:
        yield check
    finally:
        if model:
            attempt.questions.remove(question)
