"""A patch of a test's own, which it may undo while the others stay."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch
