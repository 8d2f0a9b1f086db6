"""Arrays that a trajectory may carry beside its journal, by name: routed experts, top-p token ids, your own.

They are stored apart, because a few of them are megabytes. A consumer gets only those that it asks for. Pure values,
standard library only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rollq.errors import ContractError


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A named array of any shape. Routed experts: int32, (tokens, layers, top-k). `rollq.training.arrays.array_of`
    makes a numpy array of it."""

    dtype: str
    """numpy's name of the type of an entry: `int32`, `float16`, ... Other names pass through."""
    shape: Sequence[int]
    """Lengths of the dimensions, the outermost first; none of them is 0."""
    data: bytes
    """The entries in row-major order, little-endian."""

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or not self.dtype:
            raise ContractError(f"the dtype of an extra is a name, not {self.dtype!r}")
        lengths = self.shape if isinstance(self.shape, Sequence) else ()
        if not lengths or any(type(length) is not int or length < 1 for length in lengths):
            raise ContractError(f"the shape of an extra has lengths of at least 1, not {self.shape!r}")
        if not isinstance(self.data, bytes):
            raise ContractError(f"the data of an extra is bytes, not {type(self.data).__name__}")
        if not self.data or len(self.data) % prod(self.shape):
            raise ContractError(f"an extra of shape {tuple(self.shape)} cannot be {len(self.data)} bytes")
        object.__setattr__(self, "shape", tuple(self.shape))

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return len(self.data) // prod(self.shape)
