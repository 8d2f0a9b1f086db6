"""Packages for tests: installed ones, laid out as pip does it, and others in place of those that
were imported.
"""

import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


def install(
    folder: Path,
    name: str,
    groups: Mapping[str, Mapping[str, str]] | None = None,
    version: str = "1.0",
    **modules: str,
) -> Path:
    """A distribution with these modules and groups of entry points. Returns its dist-info."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines: list[str] = []
    for group, points in (groups or {}).items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    return info


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Files by their paths, with texts that may be indented."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def forget(*packages: str) -> dict[str, ModuleType]:
    """Takes the packages out of sys.modules; returns what was there."""
    return {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.partition(".")[0] in packages
    }


@contextmanager
def imported_anew(*packages: str) -> Iterator[None]:
    """These packages are imported again; what was imported before is back afterwards."""
    before = forget(*packages)
    try:
        yield
    finally:
        forget(*packages)
        sys.modules.update(before)
