"""Installed packages, laid out as pip does it."""

from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path, name: str, groups: Mapping[str, Mapping[str, str]] | None = None, version: str = "1.0", **modules: str
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
