"""Jobs of a Python producer that no worker could play, with the worker's package beside it."""

import sys

import pytest

from rollq import Client, Job
from rollq.errors import ContractError


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (Job(env="shpo", task=0), "there is no environment 'shpo' on this machine; did you mean"),
        (Job(env="shop", task=0, split="tets"), "shop has no split 'tets'; it has train"),
        (Job(env="shop", task=100_000), "shop/train has tasks 0 to 499, not 100000"),
    ],
)
def test_what_this_machine_does_not_know_is_warned_of_once(
    client: Client, caplog: pytest.LogCaptureFixture, job: Job, says: str
) -> None:
    client.submit([Job(env="shop", task=1)])
    assert caplog.messages == []
    for _ in range(2):
        client.submit([job])
    [message] = caplog.messages
    assert says in message and message.endswith("the workers may know it")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"user": {"kind": "oracel"}}, "oracel"),
        ({"reward": "no_such"}, "no_such"),
        ({"agent": "tool-caling"}, "tool-caling"),
    ],
)
def test_what_no_worker_can_play_is_refused(
    client: Client, options: dict[str, str], says: str
) -> None:
    for _ in range(2):
        with pytest.raises(ContractError, match=says):
            client.submit([Job(env="shop", task=0, **options)])  # type: ignore[arg-type]
    assert client.stats()["submitted"] == 0


def test_a_light_client_leaves_it_to_the_workers(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rollq_worker.commands.for_clients", None)
    client.submit([Job(env="shpo", task=0, user={"kind": "oracel"})])
    assert caplog.messages == []
