"""The part of slime's Sample that rollq uses, with the rules that slime 0.3.1 checks. Made for
rollq's example and tests.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass
class Sample:
    """One row to train on: the prompt and the response."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    teacher_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)

    def get_reward_value(self, args: Any) -> Any:
        return self.reward[args.reward_key] if args.reward_key else self.reward

    def append_response_tokens(
        self, args: Any = None, *, tokens: Any = None, log_probs: Any = None, trainable: bool = True
    ) -> None:
        """Sampled tokens come with one logprob each, those of the environment with none."""
        if trainable and (log_probs is None or len(log_probs) != len(tokens)):
            raise ValueError("a sampled token without its logprob")
        if not trainable and log_probs is not None:
            raise ValueError("a logprob of a token that was not sampled")
        self.tokens += tokens
        self.response_length += len(tokens)
        self.loss_mask = (self.loss_mask or []) + [int(trainable)] * len(tokens)
        self.rollout_log_probs = (self.rollout_log_probs or []) + list(
            log_probs or [0.0] * len(tokens)
        )
