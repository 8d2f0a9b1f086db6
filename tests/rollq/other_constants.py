"""Other numbers for the ledger while a test runs."""

from functools import cache

import pytest

from rollq.ledger import constants, scripts


def change_constants(monkeypatch: pytest.MonkeyPatch, **numbers: float) -> None:
    """Also the scripts have them."""
    for name, number in numbers.items():
        monkeypatch.setattr(constants, name, number)
    renew_scripts(monkeypatch)


def renew_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the texts of the scripts, which are otherwise made once, with the constants of this
    test.
    """
    monkeypatch.setattr(scripts, "source", cache(scripts.source.__wrapped__))
