"""The line that installs an extra comes from where rollq itself was installed."""

import pytest

from rollq.extras import _requirement

COMMIT = {"vcs": "git", "commit_id": "0a1b"}


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({}, "'rollq[cli]'"),
        ({"url": "file:///src/my%20rollq", "dir_info": {}}, "'/src/my rollq[cli]'"),
        ({"url": "file:///src/rollq", "dir_info": {"editable": True}}, "-e '/src/rollq[cli]'"),
        ({"url": "file:///tmp/rollq-0.1.0.whl", "archive_info": {}}, "'/tmp/rollq-0.1.0.whl[cli]'"),
        ({"url": "https://h/rollq.tar.gz", "archive_info": {}}, "'rollq[cli] @ https://h/rollq.tar.gz'"),
        ({"url": "https://h/rollq", "vcs_info": COMMIT}, "'rollq[cli] @ git+https://h/rollq@0a1b'"),
    ],
)
def test_the_extra_comes_from_the_same_place(origin: dict[str, object], requirement: str) -> None:
    assert _requirement("cli", origin) == requirement
