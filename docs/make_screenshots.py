"""Makes the pictures of docs/view.md: plays a run on this machine and takes pictures of `rollq
view` in Chromium.

    python docs/make_screenshots.py

Needs `make test-browser`'s packages, and a Chromium on PATH.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).resolve().parent
REDIS, ENGINE = 26379, 30479
RUN = "shop-grpo"
PLAYED = 60
"""Rollouts that are done when the pictures are taken."""
ENVIRONMENT = {**os.environ, "ROLLQ_REDIS_URL": f"redis://127.0.0.1:{REDIS}/0"}


def rollq(*line: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "rollq", *line],
        env=ENVIRONMENT,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    ).stdout


@contextmanager
def running(*line: str, until: str) -> Iterator[str]:
    """A command that runs, and the line that says that it is ready."""
    command = [sys.executable, "-m", "rollq", *line]
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as one:
        try:
            assert one.stdout is not None
            said = []
            while not said or not re.search(until, said[-1]):
                said.append(one.stdout.readline())
                if not said[-1]:
                    raise SystemExit(f"rollq {' '.join(line)} ended: {''.join(said)}")
            yield said[-1]
        finally:
            one.terminate()
            with suppress(subprocess.TimeoutExpired):  # a worker would finish its turns first
                one.wait(5)
            one.kill()


def pages(url: str) -> dict[str, tuple[str, str, str]]:
    """Address, what to wait for, and colours of each picture: of a group whose members differ, and
    of its worst one.
    """
    with urllib.request.urlopen(f"{url}api/groups?run={RUN}&limit=500") as reply:
        found = json.load(reply)["groups"]
    group = next(
        group
        for group in found
        if group["spread"] and all(m["outcome"] == "done" for m in group["members"])
    )
    worst = min(group["members"], key=lambda member: float(member["reward"]))
    name = group["group"]
    return {
        "view-run": (f"#/run/{RUN}", ".space .row", "light"),
        "view-group": (f"#/run/{RUN}/group/{name}", ".beside .cell", "light"),
        "view-rollout": (
            f"#/run/{RUN}/rollout/{RUN}%2F{name}%2F{worst['sample']}",
            "article.rollout",
            "dark",
        ),
    }


def take(url: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (address, ready, colours) in pages(url).items():
            page: Any = browser.new_page(
                color_scheme=colours, viewport={"width": 1280, "height": 760}
            )
            page.goto(url + address)
            page.wait_for_selector(ready)
            page.evaluate("document.fonts.ready")
            if name == "view-rollout":
                page.keyboard.press("t")
                page.wait_for_selector(".strip.texts")

            page.screenshot(path=DOCS / f"{name}.png")
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stack.enter_context(
            running("redis", "--port", str(REDIS), "--dir", folder, until="^redis://")
        )
        time.sleep(1)  # until it has read its empty file
        engine = (
            "--env",
            "shop",
            "--port",
            str(ENGINE),
            "--mistakes",
            "0.4",
            "--latency",
            "0.4",
            "--seed",
            "0",
        )
        stack.enter_context(running("engine", *engine, until="http"))
        stack.enter_context(
            running("worker", "-c", "8", "--engine", f"http://127.0.0.1:{ENGINE}", until="ready")
        )
        rollq("submit", "--run", RUN, "--env", "shop", "--tasks", "0-31", "--size", "4", "--seal")
        rollq("jobs", "cancel", f"{RUN}/shop.train.30/1", f"{RUN}/shop.train.31/0")
        while int(re.findall(r"(\d+) done", rollq("stats", "--run", RUN))[0]) < PLAYED:
            time.sleep(0.3)
        take(
            stack.enter_context(running("view", "--run", RUN, "--port", "0", until="http")).strip()
        )


if __name__ == "__main__":
    main()
