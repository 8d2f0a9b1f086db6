"""Which containers have lost their worker, by its label alone."""

import os

import pytest

from rollq_integrations.sandbox.containers.engine import _is_orphan, this_worker


def test_a_worker_in_another_namespace_of_pids_may_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in containers with the machine's network have its name, and often one pid."""
    earlier = this_worker()[:-1] + "x"
    assert _is_orphan(earlier) and not _is_orphan(this_worker())
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[1]")
    assert not _is_orphan(earlier)
