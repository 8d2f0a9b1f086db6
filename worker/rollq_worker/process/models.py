"""The engines of other models than the policy, which jobs know by name: teachers.

It knows nothing of what they are asked.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from rollq.errors import ForOtherWorkers, TeacherFailure
from rollq.job import Job
from rollq.teachers import Teacher
from rollq_worker.engine.pool import EnginePool
from rollq_worker.process.attempts.attempt import Attempt

TEACHER_LIMIT_S = 900.0
"""Longest time in seconds in which a teacher scores an episode, without the time for which its
engines are away.
"""


def check_models(job: Job, models: Collection[str]) -> None:
    """Raises ForOtherWorkers for a job that names a model which this worker does not know."""
    for name, options in job.teachers.items():
        model = Teacher.read(options).model
        if model and model not in models:
            raise ForOtherWorkers(
                f"teacher {name!r} is the model {model!r}, which this worker does not know: give "
                "it the addresses of its engines in ROLLQ_MODEL_ENGINES"
            )


@contextmanager
def asking_teacher(
    attempt: Attempt, models: Mapping[str, EnginePool], name: str, engine: EnginePool
) -> Iterator[Callable[[], None]]:
    """A block in which the teacher of that name is asked, on that engine.

    Returns the function to call while it is waited for. It keeps the deadline's clock still while
    all engines of the model are away; for the policy's own engines the attempt does so itself.
    """
    is_other = engine in models.values()
    away_s = engine.outage_s

    def check() -> None:
        nonlocal away_s
        now_s = engine.outage_s
        if is_other and now_s > away_s:
            attempt.time_limits.stand_still(now_s - away_s)
        away_s = now_s
        attempt.check()

    with attempt.time_limits.call(TeacherFailure, f"the teacher {name!r}", TEACHER_LIMIT_S):
        yield check
