"""A real Flower: every rollout is legible, nothing is shown without a password, and no button does
nothing.
"""

import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO
from tests.deploy.flower_scene import (
    ATTEMPTS_OF_DEAD,
    DEAD,
    DONE,
    LOGIN,
    RETRIED,
    RUN,
    Flower,
    Scene,
    scene,
)
from tests.waiting import until

pytestmark = [pytest.mark.packages, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("flower")) as made:
        yield made


def test_each_attempt_is_a_line(shown: Scene) -> None:
    rows = shown.flower.tasks()
    states = Counter(row["state"] for row in rows)
    assert states["SUCCESS"] == DONE + RETRIED
    assert states["FAILURE"] == DEAD
    assert states["RETRY"] == RETRIED + (ATTEMPTS_OF_DEAD - 1) * DEAD
    for row in rows:
        if row["state"] == "SUCCESS":
            assert re.fullmatch(rf"\w+ train/\d+, {RUN}/g\d{{4}}/0, attempt \d", row["args"])
            assert re.fullmatch(r"reward [\d.]+, done, \d+ turns, [\d,]+ tokens", row["result"])
            assert row["runtime"] > 0
    dead = {row["args"]: row["result"] for row in rows if row["state"] == "FAILURE"}
    assert list(dead) == [f"faulty train/41, {RUN}/g0041/0, attempt 2"]
    assert dead.popitem()[1].startswith("env: environment.step(")
    again = [row for row in rows if row["state"] == "RETRY"]
    assert all(row["args"].endswith(", attempt 1") for row in again)
    assert all(
        row["result"].startswith("env: ") and row["exception"] == row["result"] for row in again
    )


def test_rollouts_are_found_by_what_is_shown(shown: Scene) -> None:
    assert len(shown.flower.tasks("state:FAILURE")) == DEAD
    assert len(shown.flower.tasks("g0040")) >= 2


def test_a_workers_counts_tell_dead_from_done(shown: Scene) -> None:
    (worker,) = (found for found in shown.flower.workers() if found["status"])
    assert (worker["task-failed"], worker["task-succeeded"]) == (DEAD, DONE + RETRIED)


@pytest.mark.parametrize(
    "page", ["/", "/workers", "/tasks", "/broker", "/metrics", "/api/workers", "/worker/any"]
)
def test_nothing_is_shown_without_the_password(shown: Scene, page: str) -> None:
    assert shown.flower.ask(page).status == 401
    assert shown.flower.ask(page, login="operator:wrong").status == 401


def test_with_the_password_metrics_and_queues_are_shown(shown: Scene) -> None:
    metrics = shown.flower.ask("/metrics", login=LOGIN)
    assert 'le="1280.0"' in metrics.text and "flower_events_total" in metrics.text
    assert "rollq" in shown.flower.ask("/broker", login=LOGIN).text


def test_flower_gives_no_orders(shown: Scene) -> None:
    name = shown.flower.workers()[0]["hostname"]
    for order in (
        f"worker/shutdown/{name}",
        f"worker/pool/grow/{name}",
        "task/revoke/x",
        "task/send-task/rollq.play",
    ):
        assert shown.flower.ask(f"/api/{order}", {"n": 1}, LOGIN).status == 403, order
    uuid = shown.flower.tasks()[0]["uuid"]
    for page in (f"/task/{uuid}", "/workers", "/tasks"):
        text = shown.flower.ask(page, login=LOGIN).text
        assert not re.search("Terminate|Revoke|Grow|Shrink|Shut Down", text), page


def test_a_worker_leads_to_its_rollouts(shown: Scene) -> None:
    name = shown.flower.workers()[0]["hostname"]
    reply = shown.flower.ask(f"/worker/{name}", login=LOGIN)
    assert (reply.status, reply.url) == (
        200,
        f"{shown.flower.url}/tasks?worker={name.replace('@', '%40')}",
    )


def test_its_log_has_no_errors(shown: Scene) -> None:
    log = shown.flower.log.read_text()
    assert "Traceback" not in log and "failed" not in log.lower(), log


def test_a_flower_that_starts_later_lists_an_idle_worker(shown: Scene, tmp_path: Path) -> None:
    later = Flower(tmp_path, shown.redis_url)
    try:
        later.wait()
        until(lambda: [worker for worker in later.workers() if worker["status"]], 30)
    finally:
        later.close()


def test_there_is_no_default_password(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = REPO / "deploy" / "flower"
    command = [sys.executable, "-m", "celery", "flower", "--conf=flowerconfig.py"]
    env = {**os.environ, "FLOWER_BASIC_AUTH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 1 and "FLOWER_BASIC_AUTH" in ended.stderr
    for login in ("operator", "operator:short"):
        monkeypatch.setenv("FLOWER_BASIC_AUTH", login)
        with pytest.raises(SystemExit, match="FLOWER_BASIC_AUTH"):
            runpy.run_path(str(folder / "flowerconfig.py"))


@pytest.mark.browser
def test_in_a_browser_a_rollout_is_legible_at_a_glance(shown: Scene, browser: Any) -> None:
    user, _, password = LOGIN.partition(":")
    page = browser.new_page(http_credentials={"username": user, "password": password})
    page.goto(f"{shown.flower.url}/tasks")
    page.get_by_text("reward").first.wait_for()
    heads = [
        head.strip().lower() for head in page.locator("#tasks-table_wrapper th").all_inner_texts()
    ]
    assert heads[:3] == ["state", "args", "result"]
    dead = (
        page.locator("tr", has_text="g0041")
        .filter(has_text="attempt 2")
        .locator(".badge.text-bg-danger")
    )
    again = (
        page.locator("tr", has_text="g0041")
        .filter(has_text="attempt 1")
        .locator(".badge.text-bg-warning")
    )
    assert (dead.inner_text(), again.inner_text()) == ("FAILURE", "RETRY")
    page.get_by_role("button", name="Succeeded").click()
    page.get_by_text("ZeroDivisionError").first.wait_for(state="detached")
    lines = page.locator("#tasks-table tbody tr").all_inner_texts()
    assert len(lines) == DONE + RETRIED and all("reward " in line and RUN in line for line in lines)
    page.close()
