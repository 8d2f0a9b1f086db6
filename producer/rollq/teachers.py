"""A run's teachers: models that score each token that the policy sampled, for on-policy
distillation (Agarwal et al. 2023, arXiv:2306.13649). Pure values, standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rollq.errors import ContractError
from rollq.numbers import whole_number

MOST_TOP_K = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """One of `Job.teachers`."""

    model: str = ""
    """Name of a model of the workers (ROLLQ_MODEL_ENGINES). "" for the engines of the policy."""
    adapter: str = ""
    """The engine's name of a LoRA adapter to score with, as in `math@3`. "" without one."""
    prefix: str = ""
    """A text that only the teacher sees, at the beginning of the system message."""
    top_k: int = 0
    """Number of likeliest tokens that are kept at each place, beside the logprob of the sampled
    one.
    """

    def __post_init__(self) -> None:
        for name in ("model", "adapter", "prefix"):
            if not isinstance(getattr(self, name), str):
                raise ContractError(f"{name} must be a text, not {getattr(self, name)!r:.100}")
        if self.adapter and "" in self.adapter.split("@"):
            raise ContractError(f"adapter {self.adapter!r:.100} must be NAME or NAME@VERSION")
        whole_number("top_k", self.top_k, 0, MOST_TOP_K)

    @classmethod
    def read(cls, options: Any) -> "Teacher":
        """The teacher with these options. Raises ContractError."""
        names = [field.name for field in fields(cls)]
        if not isinstance(options, Mapping) or not {*names}.issuperset(options):
            raise ContractError(
                f"a teacher has the options {', '.join(names)}, not {options!r:.100}"
            )
        return cls(**options)


SCORE = "teacher/"


def logprobs_of(teacher: str) -> str:
    """Name of the extra with a teacher's logprobs: float32, (sampled tokens,)."""
    return f"{SCORE}{teacher}"


def top_ids_of(teacher: str) -> str:
    """Name of the extra with the likeliest tokens: uint32, (sampled tokens, top_k)."""
    return f"{SCORE}{teacher}/top_ids"


def top_logprobs_of(teacher: str) -> str:
    """Name of the extra with the logprobs of these: float32, (sampled tokens, top_k)."""
    return f"{SCORE}{teacher}/top_logprobs"


def is_score(extra: str) -> bool:
    """True for an extra's name that is one of these."""
    return extra.startswith(SCORE)


def teacher_of(extra: str) -> str:
    """The teacher whose logprobs an extra of this name has; "" if it has others."""
    teacher = extra.removeprefix(SCORE)
    return teacher if is_score(extra) and "/" not in teacher else ""
