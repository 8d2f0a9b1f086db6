"""`rollq audit`: has the engine score an exported file's tokens again, and compares with what was recorded.

The file is read twice, a line at a time: once to know that all of it can be audited, then to do it.
"""

import argparse
import io
import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollq.commands.connect import settings
from rollq.commands.flags import Commands, add_json, add_tokenizer, http_url, whole
from rollq.commands.progress import Progress, open_progress
from rollq.errors import ContractError, EngineFailure, SettingsError
from rollq.extras import needs

if TYPE_CHECKING:
    from rollq_worker.audit.comparison import Auditor, Result
    from rollq_worker.audit.report import Report
    from rollq_worker.audit.scorer import Scorer


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "audit",
        help="score an exported file again on the engine, and compare",
        description="Has the engine score the sampled tokens again by prefill and compares with the recorded logprobs,"
        " token by token. Exit code 1: they do not fit, or under 95 % of the tokens could be compared.",
    )
    parser.add_argument("file", type=Path, metavar="FILE.jsonl", help="what rollq pull --out wrote")
    parser.add_argument(
        "--engine", type=http_url, metavar="URL", help="SGLang server (ROLLQ_ENGINE_URL, else http://127.0.0.1:30000)"
    )
    parser.add_argument(
        "--versions",
        type=names,
        metavar="V[,V]",
        help="weight versions that the engine speaks for, when it has those weights under another name (its own)",
    )
    parser.add_argument(
        "-c", "--concurrency", dest="at_once", type=whole(1), default=4, metavar="N", help="requests at a time (4)"
    )
    add_tokenizer(parser)
    add_json(parser, "print one JSON object: the numbers, the worst tokens and the verdict; the rest goes to stderr")
    parser.set_defaults(run=run)


def names(text: str) -> frozenset[str]:
    """Weight versions with commas between them."""
    found = frozenset(filter(None, (part.strip() for part in text.split(","))))
    if not found:
        raise argparse.ArgumentTypeError(f"expected weight versions with commas between them, not {text!r}")
    return found


@dataclass
class Contents:
    """What must be known of a file before any of it is sent."""

    lines: int = 0
    ids: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    """Ids that were not sampled."""
    width: int = len("trajectory")
    """Of the table's first column."""


def run(args: argparse.Namespace) -> int:
    with needs("worker"):
        from rollq_worker.audit.comparison import Auditor
        from rollq_worker.audit.report import Report
        from rollq_worker.audit.scorer import Scorer
    report = Report()
    # On a terminal the rows themselves show how far it is.
    rows_show = not args.json and sys.stdout.isatty()
    with open_progress(io.StringIO() if rows_show else sys.stderr) as progress:
        contents = _read(args.file, progress)
        scorer = Scorer(settings(args).engine_url, args.at_once)
        try:
            auditor = Auditor(scorer, _versions(args, scorer), _vocabulary(args, scorer, contents))
            _audit(auditor, args, contents, report, progress)
        except EngineFailure as e:
            raise EngineFailure(f"{e} ({report.trajectories} of {contents.lines} trajectories were scored)") from e
        finally:
            scorer.close()
    found = report.found()
    if args.json:
        print(json.dumps(found))
    _tell(report, found, sys.stderr if args.json else sys.stdout)
    return 0 if found["verdict"] == "ok" else 1


def _read(path: Path, progress: Progress) -> Contents:
    """A file that cannot be audited is refused before anything is sent. Raises SettingsError, ContractError."""
    from rollq_worker.audit.exported_file import read

    if path.exists() and not path.is_file():
        raise SettingsError(f"cannot read {path}: it is read twice, so it must be a file")
    contents, reached = Contents(), 0
    for line in read(path):
        contents.lines += 1
        contents.ids.update(line.tokens)
        contents.given.update(line.given)
        contents.width = max(contents.width, len(line.job))
        reached += line.size
        progress.show(reached >> 20, path.stat().st_size >> 20, {"MB": "read"})
    return contents


def _vocabulary(args: argparse.Namespace, scorer: "Scorer", contents: Contents) -> int:
    """The first id that must not be sent, by the word of the named tokenizer, else of the engine, else of the tokenizer
    that rollq ships (routers and the replay engine do not say). Raises ContractError when the file needs others."""
    named = settings(args).tokenizer
    bound, whose = (None if named else scorer.known(contents.ids)), "the engine's tokenizer"
    if bound is None:
        with needs("worker"):
            from rollq_worker.tokens.tokenizer import load_tokenizer
        bound, whose = load_tokenizer(named).vocab_size, f"the tokenizer {named or 'of rollq'}"
    if (highest := max(contents.given, default=0)) >= bound:
        raise ContractError(
            f"{args.file} holds token id {highest}, which {whose} does not know; an unknown id can kill an engine, so"
            " nothing was sent. Is it the same model? --tokenizer names its tokenizer"
        )
    return bound


def _versions(args: argparse.Namespace, scorer: "Scorer") -> frozenset[str]:
    if args.versions:
        found: frozenset[str] = args.versions
        return found
    if scorer.version is None:
        raise SettingsError(f"{scorer.url} does not say which weights it has: name them with --versions")
    return frozenset([scorer.version])


def _audit(
    auditor: "Auditor", args: argparse.Namespace, contents: Contents, report: "Report", progress: Progress
) -> None:
    """Fill the report and print the rows. Raises EngineFailure."""
    from rollq_worker.audit.report import spread

    if not args.json:
        print(f"{'trajectory':<{contents.width}}  {'tokens':>7} {'skipped':>7} {'mean':>9} {'p99':>9} {'max':>9}")
    for result in _results(auditor, args.file, args.at_once):
        report.add(result)
        progress.show(report.trajectories, contents.lines, {"trajectories": "scored"})
        if not args.json:
            numbers = {**spread(result.differences), "skipped": result.skipped.total()}
            print(_row(result.job, numbers, contents.width), flush=True)
    if not args.json:
        print(_row("all", spread(report.total.differences) | {"skipped": report.total.skipped.total()}, contents.width))
    report.revise(auditor.decode)


def _results(auditor: "Auditor", path: Path, at_once: int) -> "Iterator[Result]":
    """Some lines at a time, in the file's order. Raises EngineFailure."""
    from rollq_worker.audit.exported_file import read

    running: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for line in read(path):
                running.append(pool.submit(auditor.audit, line))
                if len(running) > 2 * at_once:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _row(job: str, numbers: Mapping[str, Any], width: int) -> str:
    values = [numbers[key] for key in ("mean_abs", "p99_abs", "max_abs")]
    columns = " ".join(f"{'-':>9}" if value is None else f"{value:9.6f}" for value in values)
    return f"{job:<{width}}  {numbers['tokens']:>7} {numbers['skipped']:>7} {columns}"


def _tell(report: "Report", found: Mapping[str, Any], stream: Any) -> None:
    """What a person wants to know beside the numbers."""
    for token in found["worst"][:3]:
        decoded = "" if token["decoded"] is None else f", decoded {token['decoded']:.4f}"
        print(
            f"worst: {token['job']} token {token['position']} (id {token['token']}):"
            f" recorded {token['recorded']:.4f}, scored {token['scored']:.4f}{decoded}",
            file=stream,
        )
    if found["revised"]:
        print(
            f"revised: decoding gives what was recorded for {found['revised']} of the worst tokens; largest difference"
            f" then {found['max_abs']:.6f}, by prefill {found['max_abs_prefill']:.6f}",
            file=stream,
        )
    for reason, count in report.total.skipped.items():
        print(f"skipped: {count} tokens {reason}", file=stream)
    print("; ".join([f"verdict: {found['verdict']}", *report.reasons]), file=stream)
