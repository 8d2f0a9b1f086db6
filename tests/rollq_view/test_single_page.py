"""One rollout in one file: nothing outside is needed, and its data cannot end its script."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest

from rollq import cli
from rollq.ledger.ledger import Ledger
from tests.rollq.samples import group, play
from tests.rollq_view.hostile import ALL, export, said_everywhere

SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def written(path: Path, line: str = "") -> str:
    out = path.with_suffix(".html")
    assert cli.main(["show", f"{path}{line}", "--html", str(out)]) == 0
    return out.read_text()


def test_hostile_words_stay_data(tmp_path: Path) -> None:
    text = written(export(tmp_path / "x.jsonl", said_everywhere()))
    [data] = DATA.findall(text)
    assert "<" not in data and {entry["text"] for entry in json.loads(data)["entries"]} == {
        ALL,
        "Error: " + ALL,
    }
    assert text.lower().count("<script") == 2 and text.lower().count("</script") == 2


def test_the_policy_allows_exactly_the_script_and_the_style_of_the_file(tmp_path: Path) -> None:
    text = written(export(tmp_path / "x.jsonl", said_everywhere()), ":1")
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    allowed = dict(part.strip().split(" ", 1) for part in unescape(policy).split(";"))
    for name, pattern in (("script-src", SCRIPT), ("style-src", STYLE)):
        [inline] = pattern.findall(text)
        assert allowed[name] == f"'sha256-{b64encode(sha256(inline.encode()).digest()).decode()}'"
    assert allowed["default-src"] == "'none'" and not re.search(r"\b(src|href)=\"", text)


def test_a_job_of_a_run_has_its_times(ledger: Ledger, redis_url: str, tmp_path: Path) -> None:
    ledger.submit(group())
    play(ledger, "r/g/0")
    out = tmp_path / "x.html"
    assert cli.main(["show", "r/g/0", "--html", str(out), "--redis", redis_url]) == 0
    page = json.loads(DATA.findall(out.read_text())[0])
    assert (page["state"], page["reward"], len(page["times"])) == ("done", 1.0, 4)


def test_a_folder_that_is_not_there_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = export(tmp_path / "x.jsonl", said_everywhere())
    assert cli.main(["show", str(path), "--html", str(tmp_path / "none/x.html")]) == 2
    assert "cannot write" in capsys.readouterr().err
