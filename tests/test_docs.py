"""The documents name files that exist, their links lead somewhere, and the picture shows the rooms
as they are.
"""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
PAGES = [
    *(REPO / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *REPO.glob("docs/*.md"),
    *REPO.glob("benchmarks/*.md"),
]
FOLDERS = (
    "producer/",
    "worker/",
    "integrations/",
    "viewer/",
    "tests/",
    "docs/",
    "benchmarks/",
    "deploy/",
    "examples/",
)
PACKAGES = {
    "rollq": REPO / "producer/rollq",
    "rollq_worker": REPO / "worker/rollq_worker",
    "rollq_integrations": REPO / "integrations/rollq_integrations",
    "rollq_view": REPO / "viewer/rollq_view",
}
ARCHITECTURE = tomllib.loads((REPO / "docs/architecture.toml").read_text())


def named_paths(page: Path) -> list[str]:
    return [
        path
        for path in re.findall(r"`([\w{},./-]+)`", page.read_text())
        if path.startswith(FOLDERS)
    ]


def braces(path: str) -> list[str]:
    """`a/{b,c}.py` as a shell expands it."""
    if not (match := re.search(r"\{([^}]*)\}", path)):
        return [path]
    return [path[: match.start()] + one + path[match.end() :] for one in match[1].split(",")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", page.read_text())
    assert [
        link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_rows_of_a_table_have_the_same_number_of_cells(page: Path) -> None:
    r"""A `|` inside code splits a cell as well, unless it is written `\|`."""
    tables = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)
    counts = [
        [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()] for table in tables
    ]
    assert [table for table, cells in zip(tables, counts, strict=True) if len(set(cells)) > 1] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_named_files_exist(page: Path) -> None:
    assert [
        path for name in named_paths(page) for path in braces(name) if not (REPO / path).exists()
    ] == []


def test_the_table_of_parts_is_checked() -> None:
    assert len(named_paths(REPO / "docs/architecture.md")) >= 10


def test_every_page_has_a_place_in_the_site() -> None:
    """`make docs` says so too, and takes longer."""
    nav = re.findall(r"^ +- .*?([\w/-]+\.md)$", (REPO / "mkdocs.yml").read_text(), re.MULTILINE)
    outside = ("benchmarks/README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    assert sorted(nav) == sorted([*(page.name for page in REPO.glob("docs/*.md")), *outside])


def test_the_picture_is_what_the_script_draws() -> None:
    drawn = runpy.run_path(str(REPO / "docs/draw_architecture.py"))["draw"]()
    assert (REPO / "docs/architecture.svg").read_text() == drawn, (
        "run: python docs/draw_architecture.py"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_in_the_picture(package: str) -> None:
    root = PACKAGES[package]
    [words] = [words for words in ARCHITECTURE["packages"] if words["name"] == package]
    assert (REPO / words["folder"]) == root
    folders = {
        path.parent.relative_to(root) for path in [*root.rglob("*.py"), *root.rglob("*.lua")]
    } - {Path()}
    rooms = {folder for folder in folders if len(folder.parts) == 1}
    assert {str(room) for room in rooms} == set(words["rooms"])
    for folder in folders - rooms:
        assert f"{folder.name}/" in words["rooms"][folder.parts[0]], (
            f"{folder} is not in the words for its room"
        )


def test_every_path_in_the_picture_exists() -> None:
    for words in ARCHITECTURE["packages"]:
        for room, text in words["rooms"].items():
            folder = REPO / words["folder"] / room
            assert [
                name
                for name in re.findall(r"\b([\w/]+)/(?!\w)", text)
                if not (folder / name).is_dir()
            ] == []
    rooms = [step["room"].partition("/") for way in ARCHITECTURE["ways"] for step in way["steps"]]
    for package, _, room in rooms:
        assert (PACKAGES[package] / room).is_dir() or (PACKAGES[package] / f"{room}.py").exists(), (
            room
        )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_in_the_page(package: str) -> None:
    text = (REPO / "docs/architecture.md").read_text()
    root = PACKAGES[package].relative_to(REPO)
    [words] = [words for words in ARCHITECTURE["packages"] if words["name"] == package]
    assert [room for room in words["rooms"] if f"`{root}/{room}/" not in text] == []
