"""Requests to engines, for tests."""

from array import array
from collections.abc import Sequence
from typing import Any

from rollq_worker.protocols import SampleRequest


def sample_request(ids: Sequence[int], **options: Any) -> SampleRequest:
    """For at most ten tokens, unless the options say otherwise."""
    whole: dict[str, Any] = {
        "sampling": {},
        "max_new_tokens": 10,
        "key": "run/group/0",
        "check": lambda: None,
    }
    return SampleRequest(
        ids=ids if isinstance(ids, array) else array("I", ids), **{**whole, **options}
    )
