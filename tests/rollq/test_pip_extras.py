"""The line that installs an extra comes from where rollq itself was installed."""

import json
from importlib import metadata

import pytest

from rollq.pip_extras import install_line


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({}, "'rollq[cli]'"),
        ({"url": "file:///src/my%20rollq", "dir_info": {}}, "'/src/my rollq[cli]'"),
        ({"url": "file:///src/rollq", "dir_info": {"editable": True}}, "-e '/src/rollq[cli]'"),
        ({"url": "file:///tmp/rollq-0.1.0.whl", "archive_info": {}}, "'/tmp/rollq-0.1.0.whl[cli]'"),
        (
            {"url": "https://h/rollq", "vcs_info": {"vcs": "git"}},
            "'rollq[cli] @ git+https://h/rollq'",
        ),
    ],
)
def test_the_extra_comes_from_the_same_place(
    origin: dict[str, object], requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        metadata.PathDistribution, "read_text", lambda self, name: json.dumps(origin)
    )
    assert install_line("cli") == f"pip install {requirement}"
