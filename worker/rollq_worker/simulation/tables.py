"""Tables of a TOML file, read key by key. An error names file, table and key, and says what is expected.

Every key must be read: `end` reports one that is left over, with the key that was probably meant.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollq.errors import SettingsError
from rollq_worker.simulation.amounts import WIDEST, Amount


def read_toml(path: Path) -> dict[str, Any]:
    """Raises SettingsError."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise SettingsError(f"{path} is not TOML: {e}") from e


class Table:
    """One table. Every method raises SettingsError."""

    def __init__(self, title: str, values: Mapping[str, Any]) -> None:
        self.title = title
        self.values = values
        self._known: list[str] = []

    def has(self, key: str) -> bool:
        self._known.append(key)
        return key in self.values

    def table(self, key: str) -> Table:
        """The table under the key; empty when there is none."""
        value = self._read(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, "a table", value)
        path, _, inside = self.title.partition(": [")
        name = f"{inside.removesuffix(']')}.{key}" if inside else key
        return Table(f"{path}: [{name}]", value)

    def whole(self, key: str, least: int, default: int | None = None) -> int:
        value = self._read(key, default)
        if type(value) is not int or (key in self.values and value < least):
            raise self._wrong(key, f"a whole number of at least {least}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._read(key, default)
        if not _is_amount(value):
            raise self._wrong(key, "a number of at least 0", value)
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._read(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str) -> str:
        value = self._read(key, None)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "a text", value)
        return value

    def amount(self, key: str, default: Amount | None = None) -> Amount:
        """A number, or `{ mean = M, p99 = P }`."""
        value = self._read(key, default)
        if isinstance(value, Amount):
            return value
        if _is_amount(value):
            return Amount(float(value))
        if not isinstance(value, Mapping):
            raise self._wrong(key, "a number, or { mean = M, p99 = P }", value)
        inner = Table(f"{self.title} {key}", value)
        found = Amount(inner.number("mean"), inner.number("p99"))
        inner.end()
        if not found.mean <= found.p99 <= found.mean * WIDEST:
            raise SettingsError(
                f"{self.title} {key}: no lognormal distribution has mean {found.mean:g} and 99th percentile"
                f" {found.p99:g}: give a p99 of 1 to {WIDEST:.1f} times the mean"
            )
        return found

    def end(self) -> None:
        """Raises SettingsError when there is a key that was not read."""
        for key in self.values:
            if key not in self._known:
                close = difflib.get_close_matches(key, self._known, 1)
                meant = (
                    f"did you mean {close[0]}?" if close else f"the keys are {', '.join(dict.fromkeys(self._known))}"
                )
                raise SettingsError(f"{self.title}: {key!r} is not a key; {meant}")

    def _read(self, key: str, default: object) -> Any:
        self._known.append(key)
        if key in self.values:
            return self.values[key]
        if default is None:
            raise SettingsError(f"{self.title}: {key} is missing")
        return default

    def _wrong(self, key: str, expected: str, value: object) -> SettingsError:
        return SettingsError(f"{self.title} {key}: expected {expected}, not {value!r}")


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
