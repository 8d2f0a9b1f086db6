"""The text of a script: whole, although it has only what it needs of the shared files."""

import re
from importlib import resources

import pytest

from rollq.ledger.scripts import SHARED, source

LUA = resources.files("rollq.ledger") / "lua"
OF_NO_RUN = {"register_worker", "known_workers", "reaper_role"}
SCRIPTS = sorted({file.name.removesuffix(".lua") for file in LUA.iterdir()} - {*SHARED} - OF_NO_RUN)
NAMES = {
    name
    for shared in SHARED
    for name in re.findall(
        r"^local (?:function )?(\w+)", (LUA / f"{shared}.lua").read_text(), re.MULTILINE
    )
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_shared_name_is_defined_before_its_use(name: str) -> None:
    text = source(name)[0]
    own = (LUA / f"{name}.lua").read_text()
    for part in re.split(r"^ *--.*\n|constants\.\w+", own, flags=re.MULTILINE):
        assert part in text
    assert "constants." not in text
    for shared in NAMES:
        uses = [use.start() for use in re.finditer(rf"(?<![\w.:']){shared}(?=[(,\[ .)])", text)]
        local = [
            definition.start()
            for definition in re.finditer(rf"\blocal [\w, ]*?(?:function )?\b{shared}\b", text)
        ]
        if re.search(rf"(?<![\w.]){shared}\(", text) or (uses and shared.isupper()):
            assert local and min(local) <= min(uses), shared


def test_a_small_script_stays_small() -> None:
    assert "local function settle" not in source("append")[0]
    assert "local function" not in source("append")[0].partition("  return { 'ok' }\n")[0]


@pytest.mark.parametrize(
    "name, end, own",
    [("claim", "if not state then\n", "acked_state"), ("complete", "if over then\n", "settle")],
)
def test_what_a_rare_block_alone_needs_is_made_in_it(name: str, end: str, own: str) -> None:
    before, _, block = source(name)[0].partition(end)
    assert f"local function {own}(" not in before
    assert f"local function {own}(" in block
