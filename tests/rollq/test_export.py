"""The line of an exported file."""

import json
from dataclasses import replace

from rollq.codec import decode_trajectory, encode_trajectory
from rollq.errors import FailureClass
from rollq.export import record
from rollq.trajectory import Closed, Stop, Trajectory
from tests.rollq.samples import events, prompt, trajectory

FIELDS = (
    "job run group sample env split task attempt stop failure reward tokens mask logprobs versions turns messages info"
    " traces"
).split()


def exported(found: Trajectory) -> dict[str, object]:
    """As somebody reads it back, over the wire and through JSON."""
    return json.loads(json.dumps(record(decode_trajectory(encode_trajectory(found))), allow_nan=False))


def test_a_line_says_everything_in_plain_json() -> None:
    line = exported(trajectory(0.5))
    assert set(FIELDS) <= set(line)
    assert (line["job"], line["attempt"], line["stop"], line["failure"], line["reward"]) == (
        "r/g/0",
        1,
        "done",
        None,
        0.5,
    )
    assert line["tokens"] == [1, 2, 3, 7, 8, 4, 5, 7, 8, 4, 5]
    assert line["mask"] == [0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]
    assert line["logprobs"] == [-0.5 if sampled else 0.0 for sampled in line["mask"]]
    assert line["versions"] == ["1" if sampled else None for sampled in line["mask"]]
    assert (line["turns"], line["traces"], line["info"]) == (2, [11], {"why": "it is red"})
    roles = [message["role"] for message in line["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_traces_lie_end_to_end() -> None:
    line = exported(replace(trajectory(), events=[*events()[:3], prompt(9, 9), *events()[3:]]))
    assert line["traces"] == [7, 6]
    assert len({len(line[name]) for name in ("tokens", "mask", "logprobs", "versions")}) == 1


def test_unfinished_and_failed_ones_have_no_reward() -> None:
    assert exported(replace(trajectory(), events=[]))["stop"] is None
    end = Closed(stop=Stop.FAILED, reward=None, failure=FailureClass.ENGINE, info={"reason": "down"})
    line = exported(replace(trajectory(), events=[prompt(), end]))
    assert (line["stop"], line["failure"], line["reward"]) == ("failed", "engine", None)
