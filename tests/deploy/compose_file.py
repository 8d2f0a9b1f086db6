"""docker-compose.yml as compose reads it."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import REPO

TEXT = (REPO / "docker-compose.yml").read_text()
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?:(:-|:\?)([^}]*))?\}")
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
ONCE = ("producer", "trainer")
"""Services of the demo that end."""


def filled(text: str, env: dict[str, str]) -> str:
    """What compose makes of `${NAME}`, `${NAME:-default}`, `${NAME:?message}` and `$$`."""

    def value(found: "re.Match[str]") -> str:
        name, operator, rest = found[1], found[2], found[3]
        if env.get(name):
            return env[name]
        assert operator != ":?", f"{name}: {rest}"
        return rest or ""

    return VARIABLE.sub(value, text).replace("$$", "$")


def secret(name: str, folder: Path) -> str:
    """What the file of a secret holds."""
    return (
        Path(filled(FILE["secrets"][name]["file"], {"ROLLQ_SECRETS": str(folder)}))
        .read_text()
        .strip()
    )
