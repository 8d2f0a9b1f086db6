"""The lists of engines, in a file and in Redis, and what happens when they cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from rollq.ledger.keys import ENGINES
from rollq.ledger.workers.engine_addresses import add_address, read_addresses, remove_address
from rollq_worker.process import engine_list
from rollq_worker.process.engine_list import EngineList
from tests.waiting import until

A, B, C = "http://a:1", "http://b:2", "http://c:3"


def test_addresses_files_and_sets_are_one_list_with_each_engine_once(
    client: Any, tmp_path: Path
) -> None:
    (tmp_path / "engines").write_text(f"# the cheap ones\n{A}/\n\n  {B}\n")
    add_address(client, "pool", C)
    add_address(client, "pool", B)
    assert EngineList([A, f"file:{tmp_path}/engines", "redis:pool"], client).read() == [A, B, C]


def test_a_set_is_edited(client: Any) -> None:
    engines = EngineList(["redis:pool"], client)
    assert engines.read() == []
    add_address(client, "pool", B)
    add_address(client, "pool", A)
    assert engines.read() == read_addresses(client, "pool") == [A, B]
    remove_address(client, "pool", A)
    assert engines.read() == [B]


@pytest.mark.parametrize(
    "text", ["not an address\n", f"{B}\nhttp:// gpu-2:30000\n", f"{A}\nfile:other\n", b"\xff"]
)
def test_a_file_that_cannot_be_read_changes_nothing_and_is_warned_of_once(
    client: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | bytes
) -> None:
    path = tmp_path / "engines"
    engines = EngineList([f"file:{path}"], client)
    assert engines.read() == [] and "No such file" in caplog.text
    path.write_text(f"{A}\n")
    assert engines.read() == [A]
    caplog.clear()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert engines.read() == engines.read() == [A]
    assert (
        len(caplog.records) == 1
        and f"file:{path} cannot be read, so it stays as it was" in caplog.text
    )
    path.write_text("")
    assert engines.read() == []


def test_a_key_of_another_type_changes_nothing(
    client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    add_address(client, "pool", A)
    engines = EngineList(["redis:pool"], client)
    assert engines.read() == [A]
    client.set(ENGINES + "pool", "x")
    assert engines.read() == [A] and "rollq:engines:pool" in caplog.text


def test_only_lists_that_may_change_are_read_again(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_list, "REFRESH_S", 0.01)
    seen: list[list[str]] = []
    path = tmp_path / "engines"
    path.write_text(A)
    EngineList([A], client).watch(lambda urls: pytest.fail("it cannot change"))
    EngineList([f"file:{path}"], client).watch(lambda urls: seen.append(list(urls)))
    until(lambda: [A] in seen)
    path.write_text(f"{A}\n{B}\n")
    until(lambda: [A, B] in seen)
