"""What the page's scripts make of texts, in Node."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import rollq_view

SCRIPT = Path(rollq_view.__file__).parent / "page" / "turns.js"
SHOWS = """
const fs = require('fs'), vm = require('vm');
vm.runInThisContext(fs.readFileSync(process.argv[1], 'utf8'));
const shown = JSON.parse(fs.readFileSync(0, 'utf8')).map((text) => pretty({ role: 'tool', text }));
process.stdout.write(JSON.stringify(shown));
"""
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(
    NODE is None and "CI" not in os.environ, reason="NOT TESTED: there is no node"
)


def pretty(*texts: str) -> list[str]:
    """The texts of results as the page shows them."""
    done = subprocess.run(
        [NODE or "", "-e", SHOWS, str(SCRIPT)],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_result_keeps_its_numbers_and_the_order_and_repeats_of_its_keys() -> None:
    texts = [
        '{"id": 1234567890123456789, "amount": 10.0, "most": 1e400}',
        '{"b": 1, "10": 2, "2": 3, "b": 4}',
    ]
    assert pretty(*texts) == texts


def test_a_long_result_is_indented_and_what_fits_on_a_line_stays_on_one() -> None:
    [shown] = pretty(json.dumps({"words": ["é, " * 20] * 2, "at": {"x": 1.0, "y": []}}))
    line = f'"{"é, " * 20}"'
    assert (
        shown
        == f'{{\n  "words": [\n    {line},\n    {line}\n  ],\n  "at": {{"x": 1.0, "y": []}}\n}}'
    )


def test_what_is_nested_deeply_or_is_no_json_is_shown_as_well() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    [shown, broken] = pretty(deep, "[1,")
    assert "".join(shown.split()) == deep and len(shown) < 2 * len(deep)
    assert broken == "[1,"
