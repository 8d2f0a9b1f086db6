"""slime's classes: the stand-in that holds the recorded rules, and slime's own where its source is."""

from collections.abc import Iterator

import pytest

from tests.rollq_integrations.slime.slime_packages import STAND_IN, own_slime, slime_at


@pytest.fixture(params=["recorded", "own"])
def slime(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which of the two `import slime` finds."""
    folder = STAND_IN if request.param == "recorded" else own_slime()
    if folder is None:
        pytest.skip("no slime: ROLLQ_TEST_SLIME names a folder with its source")
    with slime_at(folder):
        yield request.param
