"""What /v1/loads tells, in the shape of SGLang 0.5: one entry, of the one rank that there is.

Throughput, hit rate and the gauge of retractions are those of the last second or more that is over, as SGLang's are of
its last 40 decode steps.
"""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import rollq
from rollq_worker.simulation.engine_model import Load

WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Recent:
    throughput: float = 0.0
    """Sampled tokens a second."""
    hit_rate: float = 0.0
    """Share of the admitted prompts' tokens that were cached."""
    retractions: int = 0


class LoadReport:
    def __init__(self, kv_tokens: int, max_running: int | None) -> None:
        self.kv_tokens = kv_tokens
        self.max_running = max_running
        self._since: tuple[float, Load] | None = None
        self._recent = Recent()

    def body(self, load: Load) -> dict[str, Any]:
        recent = self._look(load, time.monotonic())
        entry = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_used_tokens": load.used_tokens,
            "max_total_num_tokens": self.kv_tokens,
            "max_running_requests": self.max_running,
            "token_usage": round(load.token_usage, 4),
            "gen_throughput": round(recent.throughput, 2),
            "cache_hit_rate": round(recent.hit_rate, 4),
            "total_prefill_uncached_tokens": load.prompt_tokens - load.cached_tokens,
            "queues": {
                "waiting": load.waiting,
                "grammar": 0,
                "paused": 0,
                "retracted": recent.retractions,
                "prealloc_ready": 0,
            },
        }
        return {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": f"rollq-{rollq.__version__}",
            "accelerator": None,
            "num_accelerators": 0,
            "loads": [entry],
        }

    def _look(self, load: Load, now: float) -> Recent:
        if self._since is None:
            self._since = (now, load)
        began, before = self._since
        if now - began >= WINDOW_S:
            prompts = load.prompt_tokens - before.prompt_tokens
            self._recent = Recent(
                throughput=(load.sampled_tokens - before.sampled_tokens) / (now - began),
                hit_rate=(load.cached_tokens - before.cached_tokens) / prompts if prompts else 0.0,
                retractions=load.retractions - before.retractions,
            )
            self._since = (now, load)
        return self._recent
