"""Images of a trajectory: trainers that cannot take them refuse it."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from rollq.errors import ContractError
from rollq.events import Prompt
from rollq.images import refuse_images
from rollq.trajectory import Trajectory
from tests.rollq.token_rows import episode

SHOWN = {
    "type": "image",
    "sha256": "a" * 64,
    "mime": "image/png",
    "width": 28,
    "height": 28,
    "bytes": 9,
}


def shows(content: Any) -> Trajectory:
    """An episode whose first message has this content."""
    played = episode([(3, [([2], 0)])], itertools.count(), 0, 1.0)
    first, *rest = played.events
    assert isinstance(first, Prompt)
    return replace(
        played, events=[replace(first, messages=[{"role": "user", "content": content}]), *rest]
    )


def test_an_episode_with_images_is_refused_by_a_trainer_that_takes_none() -> None:
    refuse_images(shows([{"type": "text", "text": "no image"}]), "slime")
    refuse_images(shows("no image"), "slime")
    with pytest.raises(
        ContractError, match="adapter for slime passes none on: it would train on placeholders"
    ):
        refuse_images(shows([{"type": "text", "text": "look"}, SHOWN]), "slime")
