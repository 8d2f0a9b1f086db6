"""A job: one episode to be played, with everything that shapes it.

A worker keeps no state of a run, so the job carries all of it: task, sampling, budget, seed, the
size of its group. It names endpoints, never addresses. Pure values, standard library only.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, get_origin

from rollq.errors import ContractError
from rollq.numbers import is_number, whole_number
from rollq.sampling import objection
from rollq.teachers import Teacher
from rollq.trajectory_extras import ExpertShape

Json = Any
"""A JSON value: None, bool, int, float, str, list, dict with str keys."""

QUEUE = "rollq"
"""The queue of a job that names none."""
LONGEST_VERSION = 256
"""Number of characters of a weight version's name."""
LARGEST_GROUP = 1_000
"""Most samples in a group. The ledger's scripts walk them all, and Redis does nothing else
meanwhile: 17 ms at a submission.
"""
NAME_CHARACTERS = "A-Za-z0-9._-"
"""Characters of a name, as in the brackets of a regular expression."""
NAME = re.compile(rf"[A-Za-z0-9][{NAME_CHARACTERS}]{{0,99}}")
"""Pattern of run, group and queue names. Names become parts of Redis keys, where braces, colons,
slashes and # have a meaning.
"""


SAMPLE = re.compile(r"0|[1-9][0-9]{0,15}")
"""Pattern of a sample's number in a job id. Each number can be written in one way only, because the
id is part of Redis keys.
"""


NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
"""Tokens that the files of a tokenizer name, and that its chat template may show."""
GIVEN_TO_TEMPLATES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        *NAMED_TOKENS,
    }
)
"""Arguments that rollq itself gives to every chat template. No job may."""


ENVIRONMENT_FILES = (".py", ".jsonl", ".parquet")
"""Suffixes of environment files: code, and datasets."""
FOLDERS_OF = ("harbor",)
"""Environments that are a folder of tasks, as in `harbor:DIR`."""
SEED_STRIDE = 1_000_003
"""Difference between the seeds of a group and of its replacement. Epochs count seeds up by 1, and
engines take 32 bits.
"""


def is_path(env: str) -> bool:
    """True if an environment is named by the path of a file or folder, as on a command line."""
    kind, _, folder = env.partition(":")
    return kind.endswith(ENVIRONMENT_FILES) or bool(folder and kind in FOLDERS_OF)


class Purpose(StrEnum):
    """Use of a group. Eval groups are never handed to a trainer."""

    TRAIN = "train"
    """Handed to trainers."""
    EVAL = "eval"
    """Handed only to consumers that ask for it."""


class History(StrEnum):
    """Treatment of earlier turns that the chat template would now write differently."""

    KEEP = "keep"
    """Keep them as sampled: the trajectory is one trace, append-only."""
    TEMPLATE = "template"
    """Let the template rewrite them: the conversation is rendered again and opens a new trace of
    the same trajectory.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of one attempt. When it is spent, the episode ends and is graded."""

    max_turns: int = 30
    """Most turns of the policy."""
    max_tokens: int = 32768
    """Most tokens of a trace: prompt, sampled and observed. A trajectory is one trace unless
    history is `template`, or its context was shortened.
    """
    max_new_tokens: int = 1024
    """Most tokens sampled in one turn."""
    deadline_s: float = 1800.0
    """Seconds of leased time per attempt. Past it the attempt fails, with the class of what it was
    waiting for.
    """

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tokens", "max_new_tokens"):
            whole_number(f"budget.{name}", getattr(self, name), at_least=1)
        if not is_number(self.deadline_s) or self.deadline_s <= 0:
            raise ContractError(
                f"budget.deadline_s must be a positive number of seconds, not {self.deadline_s!r}"
            )


class Identified:
    """Keeps a job's id beside its fields, because it is asked for often."""

    __slots__ = ("id",)

    id: str
    """`run/group/sample`, the idempotence key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Identified):
    """One episode to be played. Its id is `run/group/sample`.

    Submitting the same job twice makes one job. `run` and `group` may be left out: `Client.submit`
    fills in its own run and `env.split.task`. Submitted alone, sample 0 stands for all members of
    its group.
    """

    run: str = ""
    """The run it belongs to; the client fills in its own."""
    group: str = ""
    """The group (the n samples of one task) it belongs to, unique in the run."""
    sample: int = 0
    """Place in the group, from 0."""
    env: str
    """An environment's name: `shop`, `tau2:retail`, ..."""
    split: str = "train"
    """Name of one of the environment's task lists."""
    task: int
    """Index into that task list."""
    env_args: Mapping[str, Json] = field(default_factory=dict)
    """Options of the environment."""
    agent: str = "tool-calling"
    """The agent strategy, `tool-calling`, `few-shot`, `act` or `react`, or the name of an agent
    program.
    """
    agent_args: Mapping[str, Json] = field(default_factory=dict)
    """Options of the agent. Of tool-calling and few-shot, `single_tool: true` appends tau-bench's
    single-tool instruction to the system prompt, and `calls` says what to do with several tool
    calls in one turn: `first` (default), `all` or `refuse`. few-shot needs `examples`, a list of
    texts. act and react have no options.
    """
    user: Mapping[str, Json] = field(default_factory=lambda: {"kind": "scripted"})
    """The user simulator: `{"kind": "scripted"}`, or `{"kind": "openai", "endpoint": NAME, "model":
    M, ...}`.
    """
    reward: str = ""
    """Name of the reward function that grades the episode in the worker, after the environment; ""
    takes the environment's grade.
    """
    reward_args: Mapping[str, Json] = field(default_factory=dict)
    """Arguments of the reward function."""
    history: History = History.KEEP
    """Treatment of earlier turns: `keep` or `template`. It matters for templates that rewrite
    history, for example by dropping earlier reasoning. Evaluate with the value that you train with.
    """
    context: Mapping[str, Json] = field(default_factory=dict)
    """Replacement of a conversation that has grown long, in a new trace: `{"kind":
    "window", "over": 6000, "turns": 4}`, or `{"kind": "summary", "over": 6000, ...}`. Empty:
    nothing does.
    """
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    """Arguments for the chat template, such as `{"enable_thinking": False}`: the same for all jobs
    of a run. The template must read them by these names.
    """
    adapter: str = ""
    """Name of the LoRA adapter with which the model samples. "" without one. The same for all jobs
    of a run. Each turn is sampled under the version of it that was published last
    (`Client.publish`).
    """
    sampling: Mapping[str, Json] = field(default_factory=dict)
    """Sampling parameters under SGLang's names. They are in `rollq.sampling.PARAMETERS`."""
    routed_experts: Mapping[str, Json] = field(default_factory=dict)
    """Records the experts that each token was routed to, for a trainer that replays them: the shape
    of the model's routing (`ExpertShape`), as in `{"layers": 48, "top_k": 8, "experts": 128}`. The
    same for the whole group.
    """
    teachers: Mapping[str, Json] = field(default_factory=dict)
    """Models that score each token that the policy sampled, by names of your own: `{"math":
    {"model": NAME, ...}}`, with the options of `rollq.teachers.Teacher`. The same for the whole
    group.
    """
    models: Mapping[str, Json] = field(default_factory=dict)
    """Agents that share the episode of an agent program, by the `model` of its requests: `{"red":
    {}}` is the policy, `{"adapter": NAME}` a LoRA adapter of the run, both trained. `{"model":
    NAME}` are engines that the workers know by name, never trained. Without any, each name is the
    policy. The same for the whole group.
    """
    weight_version: str = ""
    """Pins the job to weights of that version: what others would sample is not taken. While no
    engine serves them, its worker puts the job back, at no cost. Give such jobs engines and workers
    of their own, by `queue`. "" takes whatever is served.
    """
    budget: Budget = field(default_factory=Budget)
    """Limits of one attempt."""
    purpose: Purpose = Purpose.TRAIN
    """Use of the group, `train` or `eval`."""
    seed: int = 0
    """Seed of everything random in environment and user."""
    size: int = 1
    """Number of samples that a trainer gets of the group."""
    spare: int = 0
    """Over-provisioning: the group has this many members more than `size`. It closes as soon as
    `size` of them are graded, and those that are still queued or being played end as surplus. Only
    for training: it favours short episodes.
    """
    min_viable: int = 0
    """A group with dead members is dropped if it has fewer graded samples than this; 0 stands for
    `size`.
    """
    queue: str = QUEUE
    """Name of the queue whose workers play it, the same for the whole group."""
    labels: Mapping[str, Json] = field(default_factory=dict)
    """The producer's own notes, for example a dataset's index: `trajectory.job.labels` has them
    again. At most 2 kB.
    """
    seq: int = 0
    """The group's place in the run: lower ones are handed out first. The ledger sets it; it is not
    part of the content.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", job_id(self.run, self.group, self.sample))
        self._check_types()
        self._check_names()
        self._check_group()
        self._check_options()
        self._check_experts()
        self._check_teachers()
        self._check_models()
        refusal = objection(self.sampling, self.budget.max_new_tokens)
        if refusal:
            raise self._error(refusal)

    def _error(self, text: str) -> ContractError:
        return ContractError(f"{self.title}: {text}")

    def _check_types(self) -> None:
        for name, kind in FIELD_TYPES.items():
            value = getattr(self, name)
            if kind is int:
                if type(value) is not int and not isinstance(value, bool):
                    value = _as_int(value)
                    object.__setattr__(self, name, value)
                whole_number(f"{self.title}: {name}", value, at_least=0)
            elif issubclass(kind, StrEnum):
                if not isinstance(value, str) or value not in [*kind]:
                    raise self._error(f"{name} must be {' or '.join(kind)}, not {value!r}")
                object.__setattr__(self, name, kind(value))
            elif not isinstance(value, kind):
                kind_name = KIND_NAMES.get(kind, f"a {kind.__name__}")
                raise self._error(f"{name} must be {kind_name}, not {value!r:.100}")
            elif kind is str:  # the str() of an enum may be another text
                object.__setattr__(self, name, str.__str__(value))

    def _check_names(self) -> None:
        for name in ("env", "split", "agent", "queue"):
            if not getattr(self, name):
                raise self._error(f"{name} must be a name, not ''")
        for name in ("run", "group", "adapter", "queue"):
            value = getattr(self, name)
            if value and not NAME.fullmatch(value):
                raise self._error(f"{name} {value!r} must match {NAME.pattern}")
        if is_path(self.env):
            raise self._error(
                f"env {self.env!r} is a file's path, and a job carries its name: add_file() of "
                "rollq_worker.environments.files returns it (docs/environments.md)"
            )
        if len(self.weight_version) > LONGEST_VERSION:
            raise self._error(
                f"weight_version must be a text of at most {LONGEST_VERSION} characters, not "
                f"{self.weight_version!r:.300}"
            )

    def _check_group(self) -> None:
        if not self.size:
            raise self._error("a group has a size of at least 1")
        if self.members > LARGEST_GROUP:
            raise self._error(f"a group has at most {LARGEST_GROUP} samples, not {self.members}")
        if not self.sample < self.members:
            raise self._error(
                f"sample {self.sample} of a group of {self.members} (samples count from 0)"
            )
        if self.min_viable > self.size:
            raise self._error(
                f"min_viable {self.min_viable} is more than the group's size {self.size}"
            )
        if self.spare and self.purpose is Purpose.EVAL:
            raise self._error(
                f"spare is {self.spare}, and an evaluation has none: it would leave out the "
                "slowest tries"
            )

    def _check_options(self) -> None:
        if self.reward_args and not self.reward:
            raise self._error("reward_args need reward, the name of a reward function")
        if self.context and not isinstance(self.context.get("kind"), str):
            raise self._error(f"context must have a kind, a name, not {dict(self.context)!r:.100}")
        for name in self.template_kwargs:
            if not isinstance(name, str):
                raise self._error(f"template_kwargs: the key {name!r} is not a string")
            if name in GIVEN_TO_TEMPLATES:
                raise self._error(f"template_kwargs: leave out {name!r}, which rollq itself gives")

    def _check_experts(self) -> None:
        if not self.routed_experts:
            return
        try:
            ExpertShape.read(self.routed_experts)
        except ContractError as e:
            raise self._error(str(e)) from e
        if self.purpose is Purpose.EVAL:
            raise self._error("routed_experts are for training, and this is an evaluation")

    def _check_teachers(self) -> None:
        for name, options in self.teachers.items():
            try:
                if not isinstance(name, str) or not NAME.fullmatch(name):
                    raise ContractError(f"its name must match {NAME.pattern}")
                model = Teacher.read(options).model
                if model and not NAME.fullmatch(model):
                    raise ContractError(f"model {model!r:.100} must match {NAME.pattern}")
            except ContractError as e:
                raise self._error(f"teacher {name!r}: {e}") from e

    def _check_models(self) -> None:
        for name, options in self.models.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise self._error(f"model {name!r}: its name must match {NAME.pattern}")
            if not isinstance(options, Mapping) or len(options) > 1:
                raise self._error(f"model {name!r} has an adapter, a model or nothing")
            for kind, value in options.items():
                is_name = isinstance(value, str) and NAME.fullmatch(value)
                if kind not in ("adapter", "model") or not is_name:
                    raise self._error(
                        f"model {name!r}: {kind!r} cannot be {value!r:.100}: give the name of an "
                        "adapter or of a model"
                    )

    def is_frozen(self, model: str) -> bool:
        """True if requests for that one of `models` are never trained."""
        return "model" in self.models.get(model, {})

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Job":
        """A job of plain values, as a trainer's configuration has them: `budget` is a mapping.
        Raises ContractError.
        """
        try:
            return cls(**{**fields, "budget": Budget(**fields.get("budget", {}))})
        except TypeError as e:  # a field that is unknown or missing
            raise ContractError(
                f"a job cannot be made of the fields {', '.join(map(str, fields))}: {e}"
            ) from e

    def member(self, sample: int, seq: int) -> "Job":
        """The same job as that sample of its group, at that place in the run. Both are the ledger's
        and the rest was checked before, so nothing is checked again, which would take as long as
        decoding it.
        """
        job = object.__new__(Job)
        for name in Job.__slots__:
            object.__setattr__(job, name, getattr(self, name))
        object.__setattr__(job, "sample", sample)
        object.__setattr__(job, "seq", seq)
        object.__setattr__(job, "id", job_id(self.run, self.group, sample))
        return job

    def __setstate__(self, state: Sequence[Any]) -> None:
        for name, value in zip(Job.__slots__, state, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "id", job_id(self.run, self.group, self.sample))

    def replacement(self, number: int) -> "Job":
        """The job in that replacement of its group, which `Client.refill` submits when it was
        dropped; with 0, the job itself. Raises ContractError.
        """
        if not number:
            return self
        return replace(self, group=f"{self.group}.r{number}", seed=self.seed + number * SEED_STRIDE)

    @property
    def task_name(self) -> str:
        """Environment, split and task as a group's name may have them; the group of a job that
        names none.
        """
        return group_name(self.env, self.split, self.task)

    @property
    def title(self) -> str:
        """Name of the job in messages: its id, or what identifies it before it has one."""
        if self.run and self.group:
            return f"job {self.id}"
        return f"job of {self.env!r:.60}, task {self.task!r:.20}" + (
            f", group {self.group}" if self.group else ""
        )

    @property
    def members(self) -> int:
        """Number of jobs in the group, from sample 0 on: `size` and the spare ones."""
        return self.size + self.spare

    @property
    def viable(self) -> int:
        """Fewest graded members with which the group is handed out."""
        return self.min_viable or self.size


FIELD_TYPES: Mapping[str, Any] = {
    field.name: get_origin(field.type) or field.type for field in fields(Job)
}
"""The class of each field's values."""
MAPPINGS = tuple(name for name, kind in FIELD_TYPES.items() if kind is Mapping)
KIND_NAMES = {str: "a text", Mapping: "a mapping"}


def _as_int(value: Any) -> Any:
    """A whole number of another kind, such as numpy's, as an int; anything else as it is."""
    try:
        return operator.index(value)
    except TypeError:
        return value


def group_name(env: str, split: str, task: int, epoch: int = 0) -> str:
    """The name of a task's group. Characters that a name may not have become `-`."""
    base = part_of_name(f"{env}.{split}.{task}")
    return f"{base}.e{epoch}" if epoch else base


def part_of_name(text: str) -> str:
    """The text with `-` for each character that a name may not have."""
    return re.sub(rf"[^{NAME_CHARACTERS}]", "-", text)


def served_adapter(adapter: str, version: str) -> str:
    """The name by which engines know that version of a LoRA adapter. Replies do not tell which
    weights an adapter had, and a name that was loaded stays bound to its folder.
    """
    return f"{adapter}@{version}"


def job_id(run: str, group: str, sample: int) -> str:
    """The id of a job."""
    return f"{run}/{group}/{sample}"


def parse_id(text: str) -> tuple[str, str, int]:
    """Run, group and sample of a job's id. Raises ContractError."""
    run, _, rest = text.partition("/") if isinstance(text, str) else ("", "", "")
    group, _, sample = rest.partition("/")
    if not (NAME.fullmatch(run) and NAME.fullmatch(group) and SAMPLE.fullmatch(sample)):
        raise ContractError(f"{text!r:.200} is not a job id (run/group/sample)")
    return run, group, int(sample)
