"""Other numbers for the ledger while a test runs."""

from functools import cache

import pytest

from rollq.ledger import constants, scripts


def change_constants(monkeypatch: pytest.MonkeyPatch, **numbers: float) -> None:
    """Also the scripts have them, whose texts are otherwise made once."""
    for name, number in numbers.items():
        monkeypatch.setattr(constants, name, number)
    monkeypatch.setattr(scripts, "source", cache(scripts.source.__wrapped__))
