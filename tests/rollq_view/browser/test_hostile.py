"""Hostile words in a real browser: shown as words, wherever a page shows any."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rollq import cli
from rollq.errors import FailureClass
from rollq.events import Observed
from rollq.export.record import record
from rollq.ledger.ledger import Ledger
from rollq_view.exported import ExportedFile
from rollq_view.redis_place import RedisPlace
from tests.rollq.samples import claim, group, trajectory
from tests.rollq_view.browser.conftest import Opens
from tests.rollq_view.hostile import ALL, LONG, WORDS, export, said_everywhere, write
from tests.rollq_view.served import served

pytestmark = pytest.mark.browser
MADE = "main script, main img, main svg, main iframe, main object, main [onerror], main [onload]"


def is_unbroken(page: Any) -> None:
    assert page.evaluate("window.broken") is None
    assert page.locator(MADE).count() == 0


def shows_all_words(page: Any, text: str) -> None:
    for word in WORDS[:7]:
        assert word in text
    codes = "202E 2066 D83D DC00 200B E0041 61C 2028".split()
    for mark in ("\\x1b", "\\x07", "\\x00", *(f"U+{code}" for code in codes)):
        assert mark in page.locator(".unseen").all_text_contents()


@pytest.fixture
def hostile_file(tmp_path: Path) -> Path:
    return export(tmp_path / "x.jsonl", said_everywhere(), said_everywhere(sample=1))


def test_on_the_pages_of_a_file(hostile_file: Path, opens: Opens) -> None:
    with served(ExportedFile(hostile_file)) as server:
        page = opens(server.url)
        page.wait_for_selector(".space .row")
        assert WORDS[0][:40] in page.inner_text(".space .row")
        is_unbroken(page)
        for address, ready in (
            ("/run/r/group/g", ".beside .cell"),
            ("/run/r/rollout/r%2Fg%2F0", "article.rollout"),
        ):
            page.goto(f"{server.url}#{address}")
            page.wait_for_selector(ready)
            is_unbroken(page)
        shows_all_words(page, page.inner_text("main"))


def test_in_one_file(hostile_file: Path, tmp_path: Path, opens: Opens) -> None:
    out = tmp_path / "x.html"
    assert cli.main(["show", f"{hostile_file}:2", "--html", str(out)]) == 0
    page = opens(out.as_uri())
    page.wait_for_selector("article.rollout")
    shows_all_words(page, page.inner_text("main"))
    assert page.evaluate("window.broken") is None
    assert page.locator("main script, main img, main svg").count() == 0


def test_in_a_failure_of_a_live_run(ledger: Ledger, opens: Opens) -> None:
    ledger.pin_budgets({FailureClass.ENV: 1, FailureClass.JOB: 1})
    ledger.submit(group())
    reason = ALL.encode("utf-8", "replace").decode()
    ledger.fail("r/g/0", claim(ledger, "r/g/0").lease, FailureClass.ENV, reason)
    with served(RedisPlace(ledger.redis, "<b>redis</b>"), run="r") as server:
        page = opens(f"{server.url}#/run/r?tab=dead")
        page.wait_for_selector(".dead .said")
        assert WORDS[0] in page.inner_text(".dead .said")
        page.click(".dead a")
        page.wait_for_selector("section.reason")
        assert "<b>redis</b>" in page.inner_text("#bar")
        is_unbroken(page)


def test_the_policy_stops_a_script_that_gets_into_a_page(hostile_file: Path, browser: Any) -> None:
    """Here the breach is the test's own, so errors are expected."""
    with served(ExportedFile(hostile_file)) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector(".space .row")
        page.evaluate(
            "async () => {"
            " const s = document.createElement('script'); s.textContent = 'window.broken = 1';"
            " document.body.append(s);"
            " const i = document.createElement('div');"
            " i.innerHTML = '<img src=x onerror=\"window.broken = 2\">'; document.body.append(i);"
            " await i.firstChild.decode().catch(() => 0); }"
        )
        assert page.evaluate("window.broken") is None
        page.close()


def test_a_megabyte_of_text_is_cut_until_it_is_asked_for(tmp_path: Path, opens: Opens) -> None:
    made = trajectory()
    events = [
        replace(event, replies=[{"role": "tool", "content": LONG}])
        if isinstance(event, Observed)
        else event
        for event in made.events
    ]
    with served(ExportedFile(export(tmp_path / "x.jsonl", replace(made, events=events)))) as server:
        page = opens(f"{server.url}#/run/r/rollout/r%2Fg%2F0")
        page.wait_for_selector(".result .more")
        assert len(page.text_content(".result")) < 21_000
        page.locator(".result .more").first.click()
        assert len(page.text_content(".result")) == len(LONG)


def test_a_reward_that_is_no_number_is_shown_with_the_fault(tmp_path: Path, opens: Opens) -> None:
    with served(
        ExportedFile(write(tmp_path / "x.jsonl", record(trajectory()) | {"reward": float("nan")}))
    ) as server:
        page = opens(server.url)
        page.click(".space .row")
        page.wait_for_selector("article.rollout")
        assert page.inner_text(".score b") == "nan"
        assert "breaks the format" in page.inner_text("section.why")


DAMAGES: tuple[dict[str, Any], ...] = (
    {"logprobs": [float("nan")] * 11},
    {"logprobs": [-float("inf")] * 11, "reward": float("inf")},
    {"versions": [None] * 11, "began": 1e30, "turns": 1},
    {"reward": "high", "stop": "", "messages": []},
    {"times": [["engine", 1e308, 1e308, 0], ["<b>", 5.0, -3.0, 99]]},
    {"tokens": [], "mask": [], "logprobs": [], "versions": [], "traces": []},
    {
        "info": {"a": {"b": [1, {"c": None}]}, "score": float("nan"), "long": "x" * 5000},
        "labels": {"a": [1]},
    },
    {"attempt": 10**30, "sampling": {"stop": ["<b>"]}, "pieces": [[0, "<b>"]]},
)


def test_damaged_records_break_no_page(tmp_path: Path, opens: Opens) -> None:
    path = write(tmp_path / "x.jsonl", *(record(trajectory()) | damage for damage in DAMAGES))
    place = ExportedFile(path)
    with served(place) as server:
        for found in place.runs():
            for key in place.listing(found["run"]).rows:
                page = opens(
                    f"{server.url}#/run/{quote(found['run'])}/rollout/{quote(key, safe='')}"
                )
                page.wait_for_selector("article.rollout, .banner")
            page = opens(f"{server.url}#/run/{quote(found['run'])}/group/g")
            page.wait_for_selector(".beside, .banner")
            is_unbroken(page)
