"""The text of a script: whole, although it has only what it needs of the shared files."""

import re
from importlib import resources

import pytest

from rollq.ledger.scripts import SHARED, source

LUA = resources.files("rollq.ledger") / "lua"
OF_NO_RUN = {"register_worker", "live_workers", "reaper_role"}
SCRIPTS = sorted({file.name.removesuffix(".lua") for file in LUA.iterdir()} - {*SHARED} - OF_NO_RUN)
NAMES = {
    name
    for shared in SHARED
    for name in re.findall(r"^local (?:function )?(\w+)", (LUA / f"{shared}.lua").read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_shared_name_is_defined_before_its_use(name: str) -> None:
    text = source(name)[0]
    own = (LUA / f"{name}.lua").read_text()
    for part in re.split(r"^ *-- rare: .*\n", own, flags=re.MULTILINE):
        assert re.sub(r"^ *--.*\n", "", part, flags=re.MULTILINE) in text
    for shared in NAMES:
        uses = [use.start() for use in re.finditer(rf"(?<![\w.:']){shared}(?=[(,\[ .)])", text)]
        local = [definition.start() for definition in re.finditer(rf"\blocal [\w, ]*?(?:function )?\b{shared}\b", text)]
        if f"{shared}(" in text or (uses and shared.isupper()):
            assert local and min(local) <= min(uses), shared


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_constant_it_uses_is_in_front(name: str) -> None:
    head, _, body = source(name)[0].partition("\n")
    assert set(re.findall(r"constants\.(\w+)", body)) == set(re.findall(r"(?:\{|,) (\w+) = (?!true)", head)) - BUDGETS


BUDGETS = {"engine", "user", "worker", "env", "job", "cancelled", "interrupted", "eval", "train"}
"""Names in tables among the constants."""


def test_a_small_script_stays_small() -> None:
    assert "local function settle" not in source("append")[0]
    assert "local function settle" in source("complete")[0]
    assert "local function" not in source("append")[0].partition("  return { 'ok' }\n")[0]
