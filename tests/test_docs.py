"""The documents name files that exist, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
PAGES = [REPO / "README.md", REPO / "CHANGELOG.md", *REPO.glob("docs/*.md"), *REPO.glob("benchmarks/*.md")]
FOLDERS = ("producer/", "worker/", "tests/", "docs/", "benchmarks/", "deploy/")


def braces(path: str) -> list[str]:
    """`a/{b,c}.py` as a shell expands it."""
    if not (match := re.search(r"\{([^}]*)\}", path)):
        return [path]
    return [path[: match.start()] + one + path[match.end() :] for one in match[1].split(",")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    named = [path for path in re.findall(r"`([\w{},./-]+)`", page.read_text()) if path.startswith(FOLDERS)]
    assert [path for name in named for path in braces(name) if not (REPO / path).exists()] == []


def test_the_table_of_parts_is_checked() -> None:
    parts = [path for path in re.findall(r"`([\w{},./-]+)`", PAGES[0].read_text()) if path.startswith(FOLDERS)]
    assert len(parts) >= 10
