"""`rollq audit`: has the engine score the tokens of an exported file again, and compares with the
recorded logprobs. With --offline, `offline_audit` checks the file without an engine.

For an engine the file is read three times, a line at a time: to check that all of it can be
audited, to choose turns that the engine decodes again, and to audit it.
"""

import argparse
import io
import json
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollq.commands.connect import settings
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_json, add_tokenizer
from rollq.commands.flags.types import http_url
from rollq.commands.progress import ProgressDisplay, open_progress
from rollq.errors import ContractError, EngineFailure, SettingsError
from rollq.pip_extras import needs
from rollq_worker.commands import offline_audit

if TYPE_CHECKING:
    from rollq_worker.audit.comparison import Auditor, ComparisonResult
    from rollq_worker.audit.report import Report
    from rollq_worker.audit.scorer import Scorer


PARALLEL_REQUESTS = 4
"""Number of requests to the engine at a time."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "audit",
        description="Checks an exported file. With --offline, checks that each trajectory is sound "
        "and that no job occurs twice; this needs no engine and no extra. Otherwise the engine "
        "scores the sampled tokens again by prefill, and each score is compared with the recorded "
        "logprob. Turns that the engine decodes again say how far its own decoding and prefill are "
        "apart. Exit code 1: something is wrong, the logprobs do not fit, or under 95 % of the "
        "tokens could be compared.",
    )
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="JSON Lines that --out wrote",
    )
    parser.add_argument("--offline", action="store_true", help="ask no engine")
    parser.add_argument(
        "--engine",
        type=http_url,
        metavar="URL",
        help="SGLang or vLLM server (ROLLQ_ENGINE_URL, else http://127.0.0.1:30000)",
    )
    parser.add_argument(
        "--teacher",
        default="",
        metavar="NAME",
        help="compare the logprobs of this teacher; --engine is the teacher's",
    )
    parser.add_argument(
        "--versions",
        type=version_names,
        metavar="V[,V]",
        help="weight versions in the file that the engine serves under another name (the engine's "
        "own version)",
    )
    add_tokenizer(parser)
    add_json(
        parser, "print one JSON object: the verdict and what it rests on; the rest goes to stderr"
    )
    parser.set_defaults(run=run)


def version_names(text: str) -> frozenset[str]:
    """An argument type: weight versions with commas between them."""
    names = frozenset(filter(None, (part.strip() for part in text.split(","))))
    if not names:
        raise argparse.ArgumentTypeError(
            f"expected weight versions with commas between them, not {text!r}"
        )
    return names


@dataclass
class FileContents:
    """Facts about a file that are needed before any of it is sent."""

    trajectories: int = 0
    token_ids: set[int] = field(default_factory=set)
    prompt_ids: set[int] = field(default_factory=set)
    """Ids that were not sampled."""
    name_width: int = len("trajectory")
    """Width of the table's first column."""


def run(args: argparse.Namespace) -> int:
    if args.offline and args.teacher:
        raise SettingsError("--offline checks every teacher: leave out --teacher, or --offline")
    if args.offline and args.engine:
        raise SettingsError("--offline asks no engine: leave out --engine, or --offline")
    if args.offline:
        return offline_audit.run(args)
    with needs("worker"):
        from rollq_worker.audit.comparison import Auditor
        from rollq_worker.audit.detection import open_scorer
    # On a terminal the rows themselves show the progress.
    shows_rows = not args.json and sys.stdout.isatty()
    with open_progress(io.StringIO() if shows_rows else sys.stderr) as progress:
        contents = _read(args.file, args.teacher, progress)
        scorer = open_scorer(args.engine or _engine_url(args))
        try:
            auditor = Auditor(
                scorer, _versions(args, scorer), _vocabulary_end(args, scorer, contents)
            )
            report = _audit(auditor, args, contents, progress)
        finally:
            scorer.close()
    result = report.as_json()
    if args.json:
        print(json.dumps(result))
    _print_summary(report, result, sys.stderr if args.json else sys.stdout)
    return 0 if result["verdict"] == "ok" else 1


def _engine_url(args: argparse.Namespace) -> str:
    """The first engine of ROLLQ_ENGINE_URL. Raises SettingsError when that is a list which may
    change.
    """
    url = settings(args).engine_urls[0]
    if not url.startswith("http"):
        raise SettingsError(
            f"rollq audit asks one engine: name it with --engine URL ({url} is a list of engines)"
        )
    return url


def _read(path: Path, teacher: str, progress: ProgressDisplay) -> FileContents:
    """Reads the whole file, before anything is sent. Raises SettingsError for one that cannot be
    read twice, and ContractError for one that cannot be audited.
    """
    from rollq_worker.audit.exported_file import read

    if path.exists() and not path.is_file():
        raise SettingsError(f"cannot read {path}: it is read several times, so it must be a file")
    contents = FileContents()
    read_bytes = 0
    for trajectory in read(path, teacher):
        contents.trajectories += 1
        contents.token_ids.update(trajectory.tokens)
        contents.prompt_ids.update(trajectory.prompt_ids)
        contents.name_width = max(contents.name_width, len(trajectory.job))
        read_bytes += trajectory.size
        progress.show(read_bytes >> 20, path.stat().st_size >> 20, {"MB": "read"})
    return contents


def _vocabulary_end(args: argparse.Namespace, scorer: "Scorer", contents: FileContents) -> int:
    """The first id that must not be sent. Raises ContractError if a prompt in the file has it or a
    higher one.

    The tokenizer that was named decides, else the engine's. If the engine does not say (a router,
    the replay engine), the tokenizer that rollq ships decides.
    """
    named = settings(args).tokenizer
    engine_end = None if named else scorer.vocabulary_end(contents.token_ids)
    if engine_end is not None:
        whose = "the engine's tokenizer"
        end = engine_end
    else:
        with needs("worker"):
            from rollq_worker.tokens.tokenizer import load_tokenizer
        whose = f"the tokenizer {named or 'of rollq'}"
        end = load_tokenizer(named).vocab_size
    highest = max(contents.prompt_ids, default=0)
    if highest >= end:
        raise ContractError(
            f"{args.file} holds token id {highest}, which {whose} does not know; an unknown id can "
            "kill an engine, so nothing was sent. Is it the same model? --tokenizer names its "
            "tokenizer"
        )
    return end


def _versions(args: argparse.Namespace, scorer: "Scorer") -> frozenset[str]:
    if args.versions:
        return frozenset(args.versions)
    if scorer.version is None:
        raise SettingsError(
            f"{scorer.url} does not say which weights it has: name them with --versions"
        )
    return frozenset([scorer.version])


def _audit(
    auditor: "Auditor", args: argparse.Namespace, contents: FileContents, progress: ProgressDisplay
) -> "Report":
    from rollq_worker.audit.exported_file import read
    from rollq_worker.audit.floor import TURNS, Floor, turns_to_decode
    from rollq_worker.audit.report import Report

    def show(row: str) -> None:
        if not args.json:
            print(row, flush=True)

    turns = turns_to_decode(read(args.file, args.teacher), contents.trajectories)
    decoded = _in_order(auditor.audit_again, turns)
    floor = Floor(_with_progress(decoded, progress, TURNS, "turns that the engine decodes again"))
    report = Report(floor)
    width = contents.name_width
    show(f"{'trajectory':<{width}}  {'tokens':>7} {'skipped':>7} {'mean':>9} {'p99':>9} {'max':>9}")
    file = ((trajectory, floor.outlier) for trajectory in read(args.file, args.teacher))
    audited = _in_order(auditor.audit, file)
    for result in _with_progress(audited, progress, contents.trajectories, "trajectories"):
        report.add(result)
        show(_row(result.job, result.differences, result.skipped.total(), width))
    show(_row("all", report.total.differences, report.total.skipped.total(), width))
    show(_row("noise", floor.differences, floor.skipped.total(), width))
    return report


def _with_progress(
    results: "Generator[ComparisonResult]", progress: ProgressDisplay, total: int, unit: str
) -> "Iterator[ComparisonResult]":
    """The results, shown as they come. Raises EngineFailure, with the number that came before."""
    done = 0
    with closing(results):  # no request goes on when the caller stops early
        try:
            for done, result in enumerate(results, 1):
                progress.show(done, total, {unit: "compared"})
                yield result
        except EngineFailure as e:
            raise EngineFailure(f"{e} ({done} of {total} {unit} were compared)") from e


def _in_order(
    compare: "Callable[..., ComparisonResult]", items: Iterable[tuple[Any, ...]]
) -> "Generator[ComparisonResult]":
    """The results for the items, in their order, from a few at a time. Raises EngineFailure."""
    running: deque[Future[ComparisonResult]] = deque()
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        try:
            for item in items:
                running.append(pool.submit(compare, *item))
                if len(running) > 2 * PARALLEL_REQUESTS:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:  # also when the caller stops early
            pool.shutdown(wait=False, cancel_futures=True)


def _row(name: str, differences: Sequence[float], skipped: int, width: int) -> str:
    from rollq_worker.audit.floor import spread

    numbers = spread(differences)
    values = [numbers[key] for key in ("mean_abs", "p99_abs", "max_abs")]
    columns = " ".join(f"{'-':>9}" if value is None else f"{value:9.6f}" for value in values)
    return f"{name:<{width}}  {numbers['tokens']:>7} {skipped:>7} {columns}"


def _print_summary(report: "Report", result: Mapping[str, Any], stream: Any) -> None:
    for token in result["worst"][:3]:
        print(
            f"worst: {token['job']} token {token['position']} (id {token['token']}): recorded "
            f"{token['recorded']:.4f}, scored {token['scored']:.4f}",
            file=stream,
        )
    for reason, count in report.total.skipped.items():
        print(f"skipped: {count} tokens {reason}", file=stream)
    print(report.detectable_text, file=stream)
    print("; ".join([f"verdict: {result['verdict']}", *report.reasons]), file=stream)
