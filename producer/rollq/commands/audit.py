"""`rollq audit`: has the engine score an exported file's tokens again, and compares with what was recorded."""

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollq.commands.addresses import extra, settings
from rollq.commands.arguments import Commands, add_json, add_tokenizer, http_url, whole
from rollq.errors import ContractError, SettingsError
from rollq.progress import Progress, open_progress

if TYPE_CHECKING:
    from rollq_worker.audit import Auditor, Report, Result
    from rollq_worker.exported import Line
    from rollq_worker.scorer import Scorer


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "audit",
        help="score an exported file again on the engine, and compare",
        description="Has the engine score the sampled tokens again by prefill and compares with the recorded logprobs,"
        " token by token. Exit code 1: they do not fit, or under 95 %% of the tokens could be compared.",
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
    add_json(parser, "print one JSON object: the numbers, the worst tokens, the verdict, and each trajectory's numbers")
    parser.set_defaults(run=run)


def names(text: str) -> frozenset[str]:
    """Weight versions with commas between them."""
    found = frozenset(filter(None, (part.strip() for part in text.split(","))))
    if not found:
        raise argparse.ArgumentTypeError(f"expected weight versions with commas between them, not {text!r}")
    return found


def run(args: argparse.Namespace) -> int:
    with extra("worker"):
        from rollq_worker.audit import Auditor, Report
        from rollq_worker.exported import read
        from rollq_worker.scorer import Scorer
    ids: set[int] = set()
    given: set[int] = set()
    lines = 0
    for line in read(args.file):  # a file that cannot be audited is refused before anything is sent
        ids.update(line.tokens)
        given.update(line.given)
        lines += 1
    scorer = Scorer(settings(args).engine_url, args.at_once)
    try:
        vocabulary, whose = _vocabulary(args, scorer, ids)
        if max(given) >= vocabulary:
            raise ContractError(
                f"{args.file} holds token id {max(given)}, which {whose} does not know; an unknown id can kill an"
                " engine, so nothing was sent. Is it the same model? --tokenizer names its tokenizer"
            )
        auditor = Auditor(scorer, _versions(args, scorer), vocabulary)
        report = Report()
        with open_progress(sys.stderr) as progress:
            _audit(auditor, read(args.file), lines, report, args.at_once, progress)
    finally:
        scorer.close()
    found = report.found()
    print(json.dumps(found) if args.json else "\n".join(table(found)))
    return 0 if found["verdict"] == "ok" else 1


def _vocabulary(args: argparse.Namespace, scorer: "Scorer", ids: set[int]) -> tuple[int, str]:
    """The first id that must not be sent, and whose word that is: the named tokenizer's, else the engine's, else that
    of the tokenizer that rollq ships (routers and the replay engine do not say)."""
    named = settings(args).tokenizer
    if named is None and (bound := scorer.known(ids)) is not None:
        return bound, "the engine's tokenizer"
    with extra("worker"):
        from rollq_worker.tokenizer import load_tokenizer
    return load_tokenizer(named).vocab_size, f"the tokenizer {named or 'of rollq'}"


def _versions(args: argparse.Namespace, scorer: "Scorer") -> frozenset[str]:
    if args.versions:
        found: frozenset[str] = args.versions
        return found
    if scorer.version is None:
        raise SettingsError(f"{scorer.url} does not say which weights it has: name them with --versions")
    return frozenset([scorer.version])


def _audit(
    auditor: "Auditor", lines: "Iterator[Line]", total: int, report: "Report", at_once: int, progress: Progress
) -> None:
    """Some lines at a time, reported in the file's order. Raises EngineFailure."""
    running: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for line in lines:
                running.append(pool.submit(auditor.audit, line))
                if len(running) > 2 * at_once:
                    report.add(running.popleft().result())
                    progress.show(len(report.each), total, {"trajectories": "scored"})
            while running:
                report.add(running.popleft().result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def table(found: Mapping[str, Any]) -> list[str]:
    """The report for people."""
    width = max([len(each["job"]) for each in found["each"]] + [len("trajectory")])
    lines = [f"{'trajectory':<{width}}  {'tokens':>7} {'skipped':>7} {'mean':>9} {'p99':>9} {'max':>9}"]
    for each in (*found["each"], {**found, "job": "all"}):
        numbers = [each[key] for key in ("mean_abs", "p99_abs", "max_abs")]
        columns = " ".join(f"{'-':>9}" if number is None else f"{number:9.6f}" for number in numbers)
        lines.append(f"{each['job']:<{width}}  {each['tokens']:>7} {each['skipped']:>7} {columns}")
    for token in found["worst"][:3]:
        lines.append(
            f"worst: {token['job']} token {token['position']} (id {token['token']}):"
            f" recorded {token['recorded']:.4f}, scored {token['scored']:.4f}"
        )
    lines += [f"skipped: {count} tokens {reason}" for reason, count in found["reasons"].items()]
    lines.append(f"verdict: {found['verdict']}" + "".join(f"; {problem}" for problem in found["problems"]))
    return lines
