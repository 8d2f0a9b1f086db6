"""docs/formats.md as it is printed: the package is installed, its tests run, and an episode is
played through it.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollq.cli import main
from rollq.errors import JobFailure
from rollq.events import Stop
from rollq_worker.tokens.known_families import FAMILIES, families
from rollq_worker.tokens.tokenizer import BUNDLED
from rollq_worker.toolcalls import NO_CALLS, PARSERS, readers
from tests.conftest import REPO
from tests.contract.played_templates import play_template
from tests.packages import install
from tests.rollq_worker.tokens.models import tokenizer_with

PAGE = (REPO / "docs/formats.md").read_text()
FILES = dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
"""The files of the page, by name."""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages are installed in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    forget()
    yield tmp_path
    forget()
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(
            sys.modules[module].__file__
        ):
            del sys.modules[module]


def forget() -> None:
    readers.cache_clear()
    families.cache_clear()


@pytest.fixture
def my_format(packages: Path) -> Path:
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    install(packages, project["name"], project["entry-points"], my_format=FILES["my_format.py"])
    return packages


def test_the_page_is_complete():
    # setuptools refuses to guess where there are several modules
    assert tomllib.loads(FILES["pyproject.toml"])["tool"]["setuptools"]["py-modules"] == [
        "my_format"
    ]
    assert set(FILES) == {
        "chat_template.jinja",
        "my_format.py",
        "pyproject.toml",
        "test_my_format.py",
    }
    assert len(FILES["my_format.py"].splitlines()) <= 40


def test_the_tests_of_the_page_pass(my_format: Path):
    (my_format / "test_my_format.py").write_text(FILES["test_my_format.py"])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_format.py"],
        cwd=my_format,
        env={**os.environ, "PYTHONPATH": str(my_format)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "4 passed" in done.stdout, (
        done.stdout[-3000:] + done.stderr[-1000:]
    )


@pytest.mark.usefixtures("my_format")
def test_an_episode_is_played_through_the_pages_template():
    trajectory = play_template(tokenizer_with("page", FILES["chat_template.jinja"]))
    assert (trajectory.stop, trajectory.reward) == (Stop.DONE, 1.0)
    assert any(
        "<call>" not in str(m["content"]) and m.get("tool_calls") for m in trajectory.messages
    )


def doctor(folder: Path, template: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `rollq doctor` says of a model with this template."""
    (folder / "tokenizer.json").write_bytes((BUNDLED / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(template)
    main(["doctor", "--tokenizer", str(folder), "--env", "shop", "--json"])
    said = capsys.readouterr()
    assert said.out, said.err
    found: dict[str, Any] = json.loads(said.out)["checks"]["tokenizer"]
    return found


@pytest.mark.usefixtures("my_format")
def test_doctor_knows_the_family_of_a_package(
    tmp_path_factory: pytest.TempPathFactory, capsys: Any
):
    found = doctor(tmp_path_factory.mktemp("model"), FILES["chat_template.jinja"], capsys)
    assert (found["status"], found["family"], found["parser"]) == (
        "ok",
        "my-format",
        "my_format",
    ), found


@pytest.mark.usefixtures("my_format")
def test_doctor_names_this_page_for_a_format_that_no_reader_knows(
    tmp_path_factory: pytest.TempPathFactory, capsys: Any
):
    unknown = FILES["chat_template.jinja"].replace("<call>", "<ask>")
    found = doctor(tmp_path_factory.mktemp("model"), unknown, capsys)
    assert found["status"] == "fail" and "docs/formats.md" in found["says"] + found["next"], found


READER = "from rollq_worker.toolcalls import PARSERS\nREADER = PARSERS['hermes']\n"
FAMILY = (
    "from rollq_worker.tokens.model_family import Family\nFAMILY = Family(name={!r}, "
    "stops=('x',), parser={!r})\n"
)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("raise OSError('no disk')", "other: OSError: no disk|cannot be loaded: OSError: no disk"),
        ("READER = 3", "is a int, not a Reader; docs/formats.md"),
        ("", "cannot be loaded: AttributeError"),
    ],
)
def test_a_broken_package_is_refused_by_its_name(packages: Path, module: str, says: str):
    install(
        packages,
        "other-reader",
        {"rollq.readers": {"other": "other_reader:READER"}},
        other_reader=module,
    )
    with pytest.raises(
        JobFailure, match=f"other = other_reader:READER .other-reader 1.0..*({says})"
    ):
        readers()


def test_a_built_in_reader_is_not_replaced(packages: Path):
    install(
        packages, "my-hermes", {"rollq.readers": {"hermes": "my_hermes:READER"}}, my_hermes=READER
    )
    with pytest.raises(
        JobFailure, match=r"my-hermes 1\.0\): the name 'hermes' is taken by rollq itself"
    ):
        readers()


def test_two_packages_cannot_take_one_name(packages: Path):
    for name in ("one_reader", "two_reader"):
        install(packages, name, {"rollq.readers": {"new": f"{name}:READER"}}, **{name: READER})
    with pytest.raises(
        JobFailure, match=r"the name 'new' is taken by rollq.readers: new = \w+:READER \(\w+ 1.0\)"
    ):
        readers()


@pytest.mark.parametrize(
    ("family", "says"),
    [
        (("llama3", "llama3"), "the name 'llama3' is taken by rollq itself"),
        (("new", "nothing"), "the family 'new' wants the reader 'nothing'.*docs/formats.md"),
    ],
)
def test_a_family_needs_a_name_and_a_reader(packages: Path, family: Sequence[str], says: str):
    install(
        packages,
        "my-family",
        {"rollq.families": {"x": "my_family:FAMILY"}},
        my_family=FAMILY.format(*family),
    )
    with pytest.raises(JobFailure, match=f"my-family 1.0.: {says}"):
        families()


@pytest.mark.parametrize("stops", ["'x'", "()"])
def test_a_family_needs_a_tuple_of_stop_tokens(packages: Path, stops: str):
    family = FAMILY.format("new", "hermes").replace("('x',)", stops)
    install(packages, "my-family", {"rollq.families": {"x": "my_family:FAMILY"}}, my_family=family)
    with pytest.raises(
        JobFailure, match=r"my-family 1.0.: the stops of the family 'new' are .*; give a tuple"
    ):
        families()


def test_several_families_come_from_one_entry_point(packages: Path):
    both = (
        FAMILY.format("one", "hermes")
        + "BOTH = [FAMILY, Family(name='two', stops=('y',), parser='llama3')]\n"
    )
    install(packages, "my-family", {"rollq.families": {"x": "my_family:BOTH"}}, my_family=both)
    assert [family.name for family in families()] == [
        *(family.name for family in FAMILIES),
        "one",
        "two",
    ]


def test_without_packages_there_are_the_built_in_ones():
    assert [*readers()] == [*PARSERS, NO_CALLS] and list(families()) == list(FAMILIES)
