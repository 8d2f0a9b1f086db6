"""Jobs of a line of `submit` or `eval`. The same line always gives the same jobs."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rollq.client.client import Client
from rollq.commands.progress import ProgressDisplay
from rollq.errors import ContractError, JobFailure, SettingsError
from rollq.job import QUEUE, Job, group_name
from rollq.pip_extras import install_line
from rollq.wire.codec import encode_job
from rollq.worker_package import for_clients

KEY_OF = {
    "agent": "agent",
    "reward": "reward",
    "judge": "reward_args",
    "context": "context",
    "summary": "context",
}
"""The key to blame by the first word of a check's refusal; else it is `user`."""


@dataclass(frozen=True, kw_only=True)
class TaskKeys:
    """The keys of `submit` and `eval` that are not fields of a job."""

    tasks: range
    """Tasks A-B of the split, both included, or one."""
    tokenizer: str | None = None
    """Pins the run's tokenizer and chat template: a directory or a name on a hub, as for `rollq
    worker` (the run's first worker does).
    """
    template: str | None = None
    """Chat template in place of that of `tokenizer`, as for `rollq worker`."""
    force: bool = False
    """true: submits tasks that this machine does not know, because the workers may know them."""

    def __post_init__(self) -> None:
        for key in ("tokenizer", "template"):
            value = getattr(self, key)
            if not isinstance(value, str | None):
                raise SettingsError(f"{key} must be a text, not {value!r}")
        if not isinstance(self.force, bool):
            raise SettingsError(f"force must be true or false, not {self.force!r}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The jobs of a line."""

    job: Job
    """Sample 0 of the first group. The others differ in task, group and seed."""
    keys: TaskKeys
    epochs: int = 1

    @property
    def groups(self) -> int:
        return len(self.keys.tasks) * self.epochs

    def jobs(self) -> Iterator[Job]:
        """Sample 0 of each group, epoch by epoch."""
        for epoch in range(self.epochs):
            for task in self.keys.tasks:
                yield self._job(task, epoch)

    def _job(self, task: int, epoch: int) -> Job:
        job = self.job
        group = group_name(job.env, job.split, task, epoch)
        return replace(job, task=task, group=group, seed=job.seed + epoch)

    @property
    def source(self) -> str:
        """A name for exactly these jobs as a source. A repeated command line finds it and skips
        what it submitted before.
        """
        text = f"{self.keys.tasks} {self.epochs}".encode() + encode_job(
            self._job(self.keys.tasks[0], 0)
        )
        return "line-" + hashlib.sha256(text).hexdigest()[:20]

    def describe(self) -> str:
        """The jobs in one line, defaults included."""
        last = self.keys.tasks[-1]
        tasks = str(last) if len(self.keys.tasks) == 1 else f"{self.keys.tasks[0]}-{last}"
        facts: dict[str, Any] = {
            "env": self.job.env,
            "split": self.job.split,
            "tasks": tasks,
            "epochs": self.epochs,
        }
        for key, value in asdict(self.job).items():
            if key not in ("run", "group", "task"):
                facts.setdefault(key, value)
        if self.job.queue == QUEUE:
            del facts["queue"]
        parts = [f"{key} {value}" for key, value in _flat(facts)]
        return f"run {self.job.run}: {', '.join(parts)}"

    def check(self, refill: int = 0) -> None:
        """Raises SettingsError when a job is invalid, and when this machine does not know its task,
        unless `force` is set: then the client warns of it.
        """
        try:
            encode_job(self._job(self.keys.tasks[0], 0))
            last = self._job(self.keys.tasks[-1], self.epochs - 1)
            encode_job(last.replacement(refill))  # with the largest seed and the longest name
        except ContractError as e:
            raise SettingsError(str(e)) from e
        unknown = unknown_part(last, self.keys.tasks)
        if unknown and not self.keys.force:
            raise SettingsError(f"{unknown} (if the workers know it: --set force=true)")

    def pin_tokenizer(self, client: Client) -> None:
        """Pins the tokenizer and the chat template that were named for the run.

        Raises SettingsError when it cannot be loaded, when the run has another, and for
        template_kwargs that the template does not read.
        """
        if self.keys.tokenizer is None:
            if self.keys.template is not None:
                raise SettingsError("template needs tokenizer, the tokenizer that it belongs to")
            return
        try:
            hashes = for_clients().tokenizer_hashes(
                self.keys.tokenizer, self.keys.template, self.job.template_kwargs
            )
        except ImportError as e:
            raise SettingsError(
                f"tokenizer needs the worker's packages: {install_line('worker')}"
            ) from e
        except JobFailure as e:
            raise SettingsError(str(e)) from e
        client.pin_tokenizer(*hashes)


def unknown_part(job: Job, tasks: Sequence[int]) -> str:
    """Runs the checks of the worker package, if it is installed; a light client leaves them to the
    workers.

    Returns what this machine does not know of the tasks, or "". Raises SettingsError for an agent,
    a user simulator, a reward function or a context that no worker can play.
    """
    try:
        return str(for_clients().check_job(job, tasks))
    except ImportError:
        return ""
    except JobFailure as e:
        key = next((key for role, key in KEY_OF.items() if str(e).startswith(role)), "user")
        raise SettingsError(f"{key}: {e}") from e


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value or prefix:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


class ShownJobs:
    """All samples of the line's groups, to be read as often as Redis loses some of them. Reading
    them shows progress: a group counts as submitted once the next one is asked for.
    """

    def __init__(self, plan: Plan, progress: ProgressDisplay) -> None:
        self._plan = plan
        self._progress = progress

    def __iter__(self) -> Iterator[Job]:
        total = self._plan.groups
        for i, job in enumerate(self._plan.jobs()):
            self._progress.show(i, total, {"groups": f"submitted, next {job.group}"})
            # All samples: sample 0 alone would be held back until the next job shows that its group
            # ends.
            yield from (replace(job, sample=sample) for sample in range(job.members))
        self._progress.show(total, total, {"groups": "submitted"})


@contextlib.contextmanager
def explain_interrupt() -> Iterator[None]:
    """Says on Ctrl-C that nothing is lost, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing is lost; to continue, repeat the same line") from None
