"""Imports the domains of the package `tau2` alone, says which version it is, and finds its data."""

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from rollq.errors import JobFailure
from rollq.pip_extras import install_line
from rollq_integrations.tau.backend import version_with_commit

DATA = "*.json", "*.toml", "*.md"
"""A domain's files. Those of its folders are pictures and notes."""
_lock = threading.Lock()
"""Held while a domain is imported, because `bare_package` is in the way of another import."""


def imported(variant: str) -> tuple[Any, Path]:
    """The module of a domain, and the folder with the domain's data."""
    with _lock:
        return _imported(variant)


def _imported(variant: str) -> tuple[Any, Path]:
    spec = importlib.util.find_spec("tau2")
    home = Path(next(iter(spec.submodule_search_locations or ()), "")) if spec else Path()
    if spec is None or not (home / "domains" / variant).is_dir():
        raise JobFailure(
            f"the environment tau2 needs the package of tau2-bench: {install_line('tau2')} "
            "(docs/tau.md)"
        )
    with bare_package(home):
        try:
            import_module("loguru").logger.disable("tau2")  # it logs every call
            module = import_module(f"tau2.domains.{variant}.environment")
            data = Path(import_module("tau2.utils").DATA_DIR) / "tau2" / "domains" / variant
        except ImportError as e:
            raise JobFailure(
                f"the environment tau2 cannot import tau2 ({e}): {install_line('tau2')}"
            ) from e
    if not data.is_dir():
        raise JobFailure(
            f"the environment tau2 has no data in {data}: set TAU2_DATA_DIR to the folder data of "
            "a clone of https://github.com/sierra-research/tau2-bench"
        )
    return module, data


@contextmanager
def bare_package(home: Path) -> Iterator[None]:
    """Imports of the package's modules leave out `tau2/__init__.py`, which imports its agents,
    users and servers: 200 MB, and litellm fetches a price list. And no `.env` that lies in a folder
    above becomes variables of this process.
    """
    package = ModuleType("tau2")
    package.__path__ = [str(home)]
    left_out = "tau2" not in sys.modules
    switch = "PYTHON_DOTENV_DISABLED"
    before = os.environ.get(switch)
    if left_out:
        sys.modules["tau2"] = package
    os.environ[switch] = "1"
    try:
        yield
    finally:
        if left_out:
            del sys.modules["tau2"]
        del os.environ[switch]
        if before is not None:
            os.environ[switch] = before


def version() -> str:
    """The package's version. Raises JobFailure for one with other tasks and another grading."""
    try:
        installed = metadata.distribution("tau2")
    except metadata.PackageNotFoundError:  # a clone on the path
        return "tau2-bench"
    if not installed.version.startswith("1."):  # PyPI has another package of that name, too
        raise JobFailure(
            f"the environment tau2 needs tau2-bench 1.*, not tau2 {installed.version}: "
            f"{install_line('tau2')} (docs/tau.md)"
        )
    return version_with_commit("tau2-bench", installed)


def digest(data: Path) -> str:
    """Changes with any task, policy or record of the domain."""
    files_hash = sha256()
    for path in sorted(path for pattern in DATA for path in data.glob(pattern)):
        files_hash.update(path.name.encode() + path.read_bytes())
    return files_hash.hexdigest()[:12]
