"""Runs all benchmarks, and writes what they found, with facts of the machine, as JSON and as one
Markdown table.

    python benchmarks/run.py [--tokenizer DIR] [--templates DIR] [--only NAME ... [--keep]] [--out FILE]

Each benchmark is a process of its own, one after the other; its output goes through. Each result
has its own time and load, because `--keep` leaves the results of an earlier run where they are.
Exit code 1 when one of them fails or misses a target. The others run nevertheless.
"""  # noqa: E501

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from checks import Check
from tables import table

from rollq.processes.embedded_redis import binary

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TURNS = ("tau2_2025:retail", "tau2_2025:airline", "tau_bench:retail", "tau_bench:airline")
"""Environments of bench_turn; those of tau_bench only where it is installed."""
TOKENIZED = frozenset(
    f"bench_{name}"
    for name in (
        "turn",
        "peers",
        "worker",
        "crowd",
        "processes",
        "growth",
        "long_episode",
        "tokens",
        "start",
    )
)
"""Benchmarks that take --tokenizer."""
OTHERS = (
    *(
        "bench_peers",
        "bench_worker",
        "bench_crowd",
        "bench_processes",
        "bench_growth",
        "bench_long_episode",
        "bench_tokens",
        "bench_batch",
    ),
    *("bench_ledger", "bench_idle", "bench_start"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="for the benchmarks that encode (bundled)"
    )
    parser.add_argument("--templates", metavar="DIR", help="chat templates for bench_tokens")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=("bench_turn", *OTHERS),
        help="benchmarks to run (all)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep what the files have of other benchmarks"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "bench", help="files to write, without suffix"
    )
    args = parser.parse_args(argv)
    results = kept(args.out) if args.keep else {}
    failed = []
    for title, words in plan(args.only, args.templates).items():
        print(f"\n== {title}", flush=True)
        began = time.monotonic()
        facts = {"at": now(), "load before": load()}
        code, result = measure(words, args.tokenizer)
        facts |= {"load after": load(), "commit": commit()}
        results[title] = {"exit_code": code, "seconds": time.monotonic() - began, **facts, **result}
        failed += [title] * (code != 0)
    found = {
        "machine": machine(args.tokenizer),
        "benchmarks": {name: results[name] for name in plan() if name in results},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    page = markdown(found)
    args.out.with_suffix(".md").write_text(page)
    print("\n" + page)
    print(
        f"written to {args.out}.json and {args.out}.md"
        + (f"; not ok: {', '.join(failed)}" if failed else "")
    )
    return int(bool(failed))


def kept(out: Path) -> dict[str, Any]:
    """What the files have."""
    text = _text(out.with_suffix(".json"))
    return dict(json.loads(text)["benchmarks"]) if text else {}


def plan(only: Sequence[str] | None = None, templates: str | None = None) -> dict[str, list[str]]:
    """Title and words of each benchmark to run."""
    envs = [env for env in TURNS if not env.startswith("tau_bench") or find_spec("tau_bench")]
    every = {f"bench_turn {env}": ["bench_turn", "--env", env] for env in envs}
    every |= {name: [name] for name in OTHERS if (HERE / f"{name}.py").exists()}
    if templates:
        every["bench_tokens"] += ["--templates", templates]
    return {title: words for title, words in every.items() if only is None or words[0] in only}


def measure(words: Sequence[str], tokenizer: str | None) -> tuple[int, dict[str, Any]]:
    """Runs a benchmark with its output going through. Returns the exit code and its JSON, {} where
    it has none.
    """
    command = [sys.executable, "-u", str(HERE / f"{words[0]}.py"), *words[1:], "--json"]
    command += ["--tokenizer", tokenizer] if tokenizer and words[0] in TOKENIZED else []
    last = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if not line.startswith("{"):
                print(line, end="", flush=True)
            last = line
    try:
        result = json.loads(last)
    except ValueError:
        return process.returncode, {}
    return process.returncode, result if isinstance(result, dict) else {}


def machine(tokenizer: str | None) -> dict[str, str]:
    """Facts on which absolute figures depend."""
    models = [
        line for line in _text(Path("/proc/cpuinfo")).splitlines() if line.startswith("model name")
    ]
    redis = subprocess.run([binary(), "--version"], capture_output=True, text=True).stdout.split(
        " sha="
    )[0]
    return {
        "date": now(),
        "commit": commit(),
        "cores": str(len(os.sched_getaffinity(0))),
        "CPU": models[0].partition(": ")[2] if models else platform.machine(),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "Redis": redis.strip(),
        "tokenizer": "given" if tokenizer else "bundled",
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def commit() -> str:
    words = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "unknown"


def load() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def checks_of(found: Mapping[str, Any]) -> list[Check]:
    return [Check(**check) for check in found.get("checks", ())]


def markdown(found: Mapping[str, Any]) -> str:
    """All checks in one table, and the machine."""
    rows = []
    for title, one in found["benchmarks"].items():
        for check in checks_of(one):
            unit = check.unit or ""
            rows.append(
                [
                    check.what,
                    f"{check.value:.3g} {unit}",
                    f"{check.most:.3g} {unit}",
                    check.verdict,
                    title,
                ]
            )
        if one["exit_code"] and not one.get("checks"):
            rows.append([title, "", "", f"exit code {one['exit_code']}", title])
    figures = table(["figure", "measured", "at most", "", "benchmark"], rows)
    facts = table(["machine", ""], [[name, value] for name, value in found["machine"].items()])
    when = [
        [
            title,
            one["at"],
            f"{one['seconds']:.0f}",
            one["load before"],
            one["load after"],
            one["commit"],
        ]
        for title, one in found["benchmarks"].items()
    ]
    times = table(["benchmark", "at", "seconds", "load before", "load after", "commit"], when)
    intro = (
        "# What the benchmarks found\n\nWritten by `make bench`; a figure without unit is a ratio."
    )
    return f"{intro}\n\n{figures}\n\n{facts}\n\n{times}\n"


if __name__ == "__main__":
    sys.exit(main())
