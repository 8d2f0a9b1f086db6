"""Optional dependencies: turns a missing package into the line that installs it."""

import contextlib
import json
from collections.abc import Iterator
from urllib.parse import unquote

from rollq.errors import SettingsError

OPTIONAL = frozenset(
    "celery kombu requests tokenizers transformers jinja2 aiohttp rich numpy torch pyarrow PIL trl "
    "accelerate datasets rollq_worker prometheus_client wandb mlflow trackio".split()
)
"""Packages that only an extra brings."""


def install_line(extra: str) -> str:
    """The command that installs the extra from the same folder, address or index as
    rollq itself.
    """
    # Imported here: it takes 25 ms, and only a missing package needs it.
    from importlib import metadata

    try:
        text = metadata.distribution("rollq").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # run from its source folder
        return f"pip install '.[{extra}]' in rollq's folder"
    # The place that pip installed it from (PEP 610); empty for a package from an index.
    origin = json.loads(text or "{}")
    url = origin.get("url", "")
    if url.startswith("file://"):
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{unquote(url.removeprefix('file://'))}[{extra}]'"
    if not url:
        return f"pip install 'rollq[{extra}]'"
    vcs = origin.get("vcs_info", {}).get("vcs")
    source = f"{vcs}+{url}" if vcs else url
    return f"pip install 'rollq[{extra}] @ {source}'"


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """A block whose imports need this extra. Raises SettingsError, with the line that installs it,
    when it is missing.
    """
    try:
        yield
    except ModuleNotFoundError as e:
        missing = (e.name or "").partition(".")[0]
        if missing not in OPTIONAL:
            raise
        raise SettingsError(
            f"this needs {missing}, which is not installed: {install_line(extra)}"
        ) from e
