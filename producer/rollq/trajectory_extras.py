"""Arrays that a trajectory may carry beside its journal, by name: routed experts, top-p token ids,
your own.

A consumer gets only those that it asks for. All but routed experts are stored apart from the
journal. Pure values, standard library only.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from rollq.errors import ContractError
from rollq.numbers import is_whole, whole_number

ROUTED_EXPERTS = "routed_experts"
"""Name of the experts that tokens were routed to, which a job asks for."""
MOST_LAYERS = 1000
MOST_EXPERTS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """A named array of any shape. `rollq.training.arrays.array_of` makes a numpy array of it."""

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
        if not lengths or not all(is_whole(length, at_least=1) for length in lengths):
            raise ContractError(
                f"the shape of an extra has lengths of at least 1, not {self.shape!r}"
            )
        if not isinstance(self.data, bytes):
            raise ContractError(f"the data of an extra is bytes, not {type(self.data).__name__}")
        if not self.data or len(self.data) % prod(self.shape):
            raise ContractError(
                f"an extra of shape {tuple(self.shape)} cannot be {len(self.data)} bytes"
            )
        object.__setattr__(self, "shape", tuple(self.shape))

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return len(self.data) // prod(self.shape)

    def rows(self, first: int, count: int) -> Extra:
        """Rows (entries of the outermost dimension) from `first` on. Raises ContractError where
        there are none.
        """
        row = len(self.data) // self.shape[0]
        data = self.data[first * row : (first + count) * row]
        return Extra(dtype=self.dtype, shape=(count, *self.shape[1:]), data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """The shape of a model's routing, which no engine reports: names and numbers of its
    `config.json`.
    """

    layers: int
    """`num_hidden_layers`, layers without experts included: their entries are 0."""
    top_k: int
    """`num_experts_per_tok`."""
    experts: int
    """Experts of a layer without shared ones: `num_experts`, `n_routed_experts` or
    `num_local_experts`.
    """

    def __post_init__(self) -> None:
        whole_number("routed_experts: layers", self.layers, 1, MOST_LAYERS)
        whole_number("routed_experts: top_k", self.top_k, 1, MOST_EXPERTS)
        whole_number("routed_experts: experts", self.experts, 1, MOST_EXPERTS)
        if self.top_k > self.experts:
            raise ContractError(f"routed_experts: top_k {self.top_k} of {self.experts} experts")

    @classmethod
    def read(cls, numbers: Mapping[str, Any]) -> ExpertShape:
        """The shape in a job's `routed_experts`. Raises ContractError."""
        names = {field.name for field in fields(cls)}
        if not isinstance(numbers, Mapping) or numbers.keys() != names:
            raise ContractError(
                f"routed_experts must have {', '.join(sorted(names))}, not {numbers!r:.100}"
            )
        return cls(**numbers)

    @property
    def dtype(self) -> str:
        """numpy's name of the smallest type that numbers all experts."""
        return "uint8" if self.experts <= 256 else "uint16"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: of one token."""
        return self.layers * self.top_k * (1 if self.dtype == "uint8" else 2)

    def part(self, data: bytes) -> Extra:
        """The rows in these bytes, which are one part."""
        return Extra(
            dtype=self.dtype,
            shape=(len(data) // self.row_bytes, self.layers, self.top_k),
            data=data,
        )

    def filler(self) -> bytes:
        """A row that spreads over the experts, for a token whose routing nothing depends on. Its
        entries in a layer differ, as those of a real row do.
        """
        return self.pack(place % self.experts for place in range(self.layers * self.top_k))

    def pack(self, ids: Iterable[int]) -> bytes:
        """The ids of experts as the bytes of rows."""
        numbers = array("B" if self.dtype == "uint8" else "H", ids)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tobytes()


def little_endian(typecode: str, data: bytes) -> array[Any]:
    """The array of an extra's bytes."""
    values = array(typecode, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
