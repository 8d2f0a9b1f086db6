"""The pages in a real browser: ten thousand rows, a run that grows, keys, colours, actions."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from rollq import Client, cli
from rollq.errors import FailureClass
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.wire.events import encode_event
from rollq_view.exported import ExportedFile
from rollq_view.redis_place import RedisPlace
from tests.rollq.samples import claim, events, group, job, journal, play, reader, trajectory
from tests.rollq_view.browser.conftest import Opens
from tests.rollq_view.hostile import export
from tests.rollq_view.served import Served, served

pytestmark = pytest.mark.browser
MANY = 10_000
IN_SIGHT = ".space .row"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every eighth rollout failed."""
    path = tmp_path_factory.mktemp("many") / "many.jsonl"
    made = trajectory()
    all = (
        replace(made, job=job(n % 8, f"g{n // 8}", size=8), events=events(float(n % 8 > 0))) for n in range(MANY)  # noqa: E501
    )  # fmt: skip
    return export(path, *all)


@pytest.fixture
def of_many(many: Path) -> Iterator[Served]:
    with served(ExportedFile(many)) as server:
        yield server


def first_cells(page: Any) -> list[str]:
    return page.locator(f"{IN_SIGHT} .c-reward").all_inner_texts()


def test_ten_thousand_rows_are_all_there_and_few_are_drawn(of_many: Served, opens: Opens) -> None:
    page = opens(of_many.url)
    page.wait_for_selector(IN_SIGHT)
    page.wait_for_selector(f'.table[aria-rowcount="{MANY + 1}"]')
    assert page.locator(IN_SIGHT).count() < 80
    page.evaluate("document.querySelector('.scroll').scrollTop = 1e9")
    page.wait_for_selector("text=g1249 / 7")
    page.click(".c-reward button")
    page.wait_for_selector('[aria-sort="descending"]')
    for then in ("ascending", "none", "descending"):
        page.click(".c-reward button")
        page.wait_for_selector(f'.c-reward[aria-sort="{then}"]')
    page.select_option("select >> nth=0", "failed")
    page.wait_for_selector('.table[aria-rowcount="1251"]')
    page.wait_for_selector(IN_SIGHT)
    assert set(first_cells(page)) == {"0.0"}
    page.fill("#search", "g77")
    page.wait_for_selector('.table[aria-rowcount="12"]')
    assert page.evaluate("document.activeElement.id") == "search"


def test_a_group_that_is_played_grows_without_a_reload(ledger: Ledger, opens: Opens) -> None:
    ledger.submit(group())
    lease = claim(ledger, "r/g/0").lease
    *first, second, end = events(0.0)
    index = journal(ledger, "r/g/0", lease, first[:3])
    with served(RedisPlace(ledger.redis, "redis://here"), run="r") as server:
        page, rows = opens(f"{server.url}#/run/r/rollout/r%2Fg%2F0"), opens(server.url)
        page.wait_for_selector("#turn-0")
        rows.wait_for_selector("text=playing")
        assert page.locator("#turn-1").count() == 0
        for event in (first[3], second):
            ledger.append("r/g/0", lease, index, [encode_event(event, "r/g/0")])
            index += 1
        page.wait_for_selector("#turn-1")
        ledger.complete("r/g/0", lease, index, [encode_event(end, "r/g/0")])
        page.wait_for_selector(".verdict.bad")
        rows.wait_for_selector(f"{IN_SIGHT} .reward.bad")
        ledger.submit(group("later"))
        rows.wait_for_selector("text=later / 1")


def test_what_a_trainer_takes_is_counted_and_its_group_says_where_it_is(
    ledger: Ledger, opens: Opens
) -> None:
    for name in ("g", "h"):
        ledger.submit(group(name))
    with served(RedisPlace(ledger.redis, "redis://here"), run="r") as server:
        page = opens(server.url)
        page.wait_for_selector("text=4 queued")
        for sample in range(2):
            play(ledger, f"r/g/{sample}", float(sample))
        page.wait_for_selector(f"{IN_SIGHT} .reward.bad")
        deliveries = Deliveries(ledger.redis, "r")
        deliveries.take(1, "session/1")
        deliveries.ack("session/1")
        page.wait_for_selector("text=No longer in Redis: 2 acknowledged (see your exported file).")
        assert [page.inner_text(f".card-{name} b") for name in ("rollouts", "reward")] == [
            "4",
            "0.500",
        ]
        beside = opens(f"{server.url}#/run/r/group/g")
        beside.wait_for_selector(".member")
        assert beside.locator(".member b").all_inner_texts() == ["0.0", "1.0"]
        assert beside.locator(".error, .parts").count() == 0
        assert (
            beside.locator("text=Acknowledged: its conversation is in your exported file.").count()
            == 2
        )
        fresh = opens(f"{server.url}#/run/r/group/none")
        fresh.wait_for_selector("text=they are in your exported file only")


def absent(page: Any, words: str) -> None:
    """The page says so in place, and leads back."""
    page.wait_for_selector(f"main .empty:has-text('{words}')")
    assert page.locator("#bar nav a").count() > 1 and page.inner_text("#said") == ""


def test_an_acknowledged_rollout_and_an_unknown_run_are_no_dead_ends(
    ledger: Ledger, browser: Any
) -> None:
    """Here answers are errors, which the console shows."""
    for name in ("g", "h"):
        ledger.submit(group(name))
    page = browser.new_page()
    with served(RedisPlace(ledger.redis, "redis://here"), run="r") as server:
        page.goto(server.url)
        page.wait_for_selector(IN_SIGHT)
        for sample in range(2):
            play(ledger, f"r/g/{sample}", float(sample))
        page.wait_for_selector(f"{IN_SIGHT} .reward.bad")
        deliveries = Deliveries(ledger.redis, "r")
        deliveries.take(1, "session/1")
        deliveries.ack("session/1")
        page.wait_for_selector("text=acknowledged >> nth=0")
        page.click(IN_SIGHT)
        absent(page, "see your exported file")
        page.keyboard.press("]")
        page.wait_for_function("location.hash.includes('g%2F1')")
        page.keyboard.press("Escape")
        page.wait_for_selector(IN_SIGHT)
        page.goto(f"{server.url}#/run/nope")
        absent(page, "nope")
    page.close()


def test_a_group_that_was_acknowledged_between_two_looks_has_no_spread(
    ledger: Ledger, opens: Opens
) -> None:
    ledger.submit(group())
    place = RedisPlace(ledger.redis, "redis://here")
    with served(place, run="r") as server:
        play(ledger, "r/g/0", 1.0)
        page = opens(f"{server.url}#/run/r?tab=groups")
        page.wait_for_selector("text=1 of 2 ended")
        play(ledger, "r/g/1", 0.0)
        deliveries = Deliveries(ledger.redis, "r")
        deliveries.take(1, "session/1")
        deliveries.ack("session/1")
        page.wait_for_selector(".groups .pill:has-text('acknowledged')")
        assert page.locator("text=no advantage").count() == 0


def test_what_is_typed_into_the_search_stays(of_many: Served, opens: Opens) -> None:
    """Answers that come late redraw the page while somebody types."""
    page = opens(of_many.url)
    page.route("**/api/run?**", lambda route: (page.wait_for_timeout(300), route.continue_()))
    page.wait_for_selector(IN_SIGHT)
    page.keyboard.press("/")
    page.keyboard.type("g1234 / late", delay=130)
    page.wait_for_timeout(1500)
    assert page.input_value("#search") == "g1234 / late"


def test_the_pages_of_runs_and_of_a_group_follow(ledger: Ledger, opens: Opens) -> None:
    ledger.submit(group())
    with served(RedisPlace(ledger.redis, "redis://here")) as server:
        runs, beside = opens(server.url), opens(f"{server.url}#/run/r/group/g")
        runs.wait_for_selector("text=2 queued")
        beside.wait_for_selector(".member")
        Ledger(ledger.redis, "later").submit(group("g", run="later"))
        runs.wait_for_selector("b:has-text('later')")
        play(ledger, "r/g/0", 1.0)
        beside.wait_for_selector(".member.good")


def test_the_keys_are_shown(of_many: Served, opens: Opens) -> None:
    page = opens(of_many.url)
    page.wait_for_selector(IN_SIGHT)
    page.keyboard.press("?")
    page.wait_for_selector("dialog:has-text('previous and next rollout')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert "#/run/" in page.url
    page.click(".help")
    page.wait_for_selector("dialog")


def test_the_table_is_in_sight_on_a_phone(of_many: Served, opens: Opens) -> None:
    page = opens(of_many.url, viewport={"width": 390, "height": 800})
    page.wait_for_selector(IN_SIGHT)
    top = page.evaluate("document.querySelector('.space .row').getBoundingClientRect().top")
    assert top < 500


def test_everything_can_be_reached_by_keys(tmp_path: Path, opens: Opens) -> None:
    path = export(tmp_path / "x.jsonl", *(trajectory(float(n), of=job(n)) for n in range(2)))
    with served(ExportedFile(path)) as server:
        page = opens(server.url)
        page.wait_for_selector(IN_SIGHT)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=r/g/1")
        page.keyboard.press("[")
        page.wait_for_selector("text=r/g/0")
        page.keyboard.press("]")
        page.wait_for_selector("text=r/g/1")
        for _ in range(2):
            page.keyboard.press("j")
        assert page.evaluate("document.activeElement.id") == "turn-1"
        page.keyboard.press("k")
        assert page.evaluate("document.activeElement.id") == "turn-0"
        page.keyboard.press("Escape")
        page.wait_for_selector(".beside")
        page.keyboard.press("Escape")
        page.wait_for_selector(IN_SIGHT)
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "search"


def test_a_row_of_cells_opens_to_the_texts_of_tokens(tmp_path: Path, opens: Opens) -> None:
    path = export(tmp_path / "x.jsonl", trajectory())
    with served(ExportedFile(path), texts=lambda ids: ["h", "m"]) as server:
        page = opens(f"{server.url}#/run/r/rollout/r%2Fg%2F0")
        page.wait_for_selector("details.tokens")
        page.keyboard.press("t")
        page.wait_for_selector(".strip.texts")
        assert page.locator(".strip.texts").all_inner_texts() == ["hm", "hm"]
        assert "logprob -0.5" in page.locator(".strip.texts i").first.get_attribute("title")


def dead_job(ledger: Ledger, url: str) -> RedisPlace:
    ledger.pin_budgets({FailureClass.JOB: 1})
    ledger.submit(group())
    ledger.fail("r/g/0", claim(ledger, "r/g/0").lease, FailureClass.JOB, "no")
    return RedisPlace(ledger.redis, "redis://here", lambda run: Client(url, run=run))


def test_a_dead_rollout_is_played_again_with_the_token_of_the_address(
    redis_url: str, ledger: Ledger, opens: Opens
) -> None:
    with served(dead_job(ledger, redis_url), run="r", token="secret") as server:
        page = opens(f"{server.url}#token=secret")
        page.wait_for_selector(IN_SIGHT)
        assert "secret" not in page.url
        page.click(".tabs >> text=dead")
        page.click("text=Play again")
        page.wait_for_selector(".banner.good")
        assert reader(ledger).job("r/g/0").state == "queued"  # type: ignore[union-attr]


@pytest.mark.parametrize("token", ["", "secret"])
def test_without_the_token_there_is_no_button(
    redis_url: str, ledger: Ledger, opens: Opens, token: str
) -> None:
    with served(dead_job(ledger, redis_url), run="r", token=token) as server:
        page = opens(f"{server.url}#/run/r?tab=dead")
        page.wait_for_selector(".dead .said")
        assert page.locator("text=Play again").count() == 0


def test_a_server_that_is_gone_is_said(tmp_path: Path, browser: Any) -> None:
    """Here the requests fail, so errors are expected."""
    with served(ExportedFile(export(tmp_path / "x.jsonl", trajectory()))) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector(IN_SIGHT)
    page.click(IN_SIGHT)
    page.wait_for_selector("text=does not answer")
    page.close()


@contextmanager
def without(ledger: Ledger, away: list[bool]) -> Iterator[None]:
    """A Redis that does not answer while the list is not empty."""
    connection: Any = ledger.redis
    answer = connection.retrying

    def call(*of: Any, **options: Any) -> Any:
        if away:
            raise redis.TimeoutError("Timeout reading from socket")
        return answer(*of, **options)

    connection.retrying = call
    yield
    del connection.retrying


@pytest.mark.parametrize("path", ["#/", "#/run/r", "#/run/r/rollout/r%2Fg%2F0"])
def test_a_page_that_is_opened_while_redis_is_away_comes_when_it_is_back(
    ledger: Ledger, browser: Any, path: str
) -> None:
    """Here the first answers are errors, which the console shows."""
    ledger.submit(group())
    away = [True]

    with served(RedisPlace(ledger.redis, "redis://here")) as server, without(ledger, away):
        page = browser.new_page()
        page.goto(server.url + path)
        page.wait_for_selector("text=does not answer")
        away.clear()
        page.wait_for_selector("text=does not answer", state="detached")
        page.wait_for_selector("text=queued")
        page.close()


def test_the_page_of_a_group_says_that_redis_is_away(ledger: Ledger, opens: Opens) -> None:
    ledger.submit(group())
    away: list[bool] = []
    with served(RedisPlace(ledger.redis, "redis://here")) as server, without(ledger, away):
        page = opens(f"{server.url}#/run/r/group/g")
        page.wait_for_selector(".member")
        away.append(True)
        page.wait_for_selector("#said >> text=This was read")
        away.clear()
        page.wait_for_selector("#said >> text=This was read", state="detached")
        assert page.locator(".member").count() == 2


@pytest.mark.parametrize("size", [(1280, 800), (390, 800)])
def test_light_and_dark_on_any_screen(
    ledger: Ledger, tmp_path: Path, opens: Opens, size: tuple[int, int]
) -> None:
    ledger.submit(group())
    for sample in range(2):
        play(ledger, f"r/g/{sample}", float(sample))
    out, grounds = tmp_path / "x.html", set()
    assert (
        cli.main(["show", str(export(tmp_path / "x.jsonl", trajectory())), "--html", str(out)]) == 0
    )
    with served(RedisPlace(ledger.redis, "redis://here"), run="r") as server:
        for scheme in ("light", "dark"):
            for address in (
                server.url,
                f"{server.url}#/run/r/group/g",
                f"{server.url}#/run/r/rollout/r%2Fg%2F0",
                out.as_uri(),
            ):
                page = opens(
                    address, color_scheme=scheme, viewport={"width": size[0], "height": size[1]}
                )
                page.wait_for_selector("main h1")
                assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
                    address
                )
                grounds.add(
                    (scheme, page.evaluate("getComputedStyle(document.body).backgroundColor"))
                )
    assert len(grounds) == 2
