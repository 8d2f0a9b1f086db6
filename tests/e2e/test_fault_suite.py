"""Two cheap rows of the fault suite (tests/chaos), to show that it works; `make chaos` runs all
rows.
"""

import json
import subprocess
import sys

from tests.conftest import REPO


def test_two_rows_of_the_fault_matrix():
    rows = ["--row", "redis-cut", "--row", "broker-junk"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *rows, "--at-once", "1", "--json"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accounts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [account["row"] for account in accounts] == ["redis-cut", "broker-junk"]
    for account in accounts:
        assert account["jobs"] == account["done"] == account["delivered"] > 0
        assert account["faults"] > 0
        assert (account["lost"], account["duplicated"], account["dead"], account["wrong"]) == (
            0,
            0,
            0,
            [],
        )
