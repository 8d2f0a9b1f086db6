"""Optional dependencies: turns a missing package into the line that installs it."""

import contextlib
import json
from collections.abc import Iterator
from importlib import metadata

from rollq.errors import SettingsError

OPTIONAL = frozenset(
    ["celery", "kombu", "requests", "tokenizers", "transformers", "jinja2", "aiohttp", "rich", "rollq_worker"]
)
"""Packages that only an extra brings."""


def install_line(extra: str) -> str:
    """The command that adds the extra to this installation, from wherever rollq itself was installed."""
    try:
        origin = json.loads(metadata.distribution("rollq").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:  # run from its source folder
        return f"pip install '.[{extra}]' in rollq's folder"
    url: str = origin.get("url", "")
    return f"pip install '{url.removeprefix('file://') or 'rollq'}[{extra}]'"


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports inside need this extra. Raises SettingsError, with the line that installs it, when it is missing."""
    try:
        yield
    except ModuleNotFoundError as e:
        missing = (e.name or "").partition(".")[0]
        if missing not in OPTIONAL:
            raise
        raise SettingsError(f"this needs {missing}, which is not installed: {install_line(extra)}") from e
