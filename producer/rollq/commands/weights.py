"""`rollq engines sync` loads new weights into a fleet of engines; `publish` says which step's
policy they serve.
"""

import argparse
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rollq.commands.connect import open_client, open_redis, open_run, settings
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import add_engines, add_json, add_redis, add_run
from rollq.commands.flags.types import integer, name, one_of, words
from rollq.commands.progress import ProgressDisplay, open_progress
from rollq.errors import SettingsError, SyncError
from rollq.job import LONGEST_VERSION
from rollq.ledger.replies import Published
from rollq.ledger.versions import LAST_STEP, Versions
from rollq.ledger.workers.engine_addresses import read_list
from rollq.settings import FILE, REDIS
from rollq.weights import EngineUpdate, Fleet, PauseMode

step = integer(0, LAST_STEP - 1)
"""An argument type: a training step."""


def weight_version(text: str) -> str:
    """An argument type: the name of a weight version."""
    if 0 < len(text) <= LONGEST_VERSION:
        return text
    raise argparse.ArgumentTypeError(
        f"expected a name of 1 to {LONGEST_VERSION} characters, not {text!r:.80}"
    )


def add(commands: Commands) -> None:
    _add_sync(commands)
    _add_publish(commands)


def _add_sync(commands: Commands) -> None:
    parser = commands.add_parser(
        "sync",
        help="load new weights into engines",
        description="Pauses each engine, loads the weights under the version's name, verifies them "
        "and continues. An engine that fails stays paused and is named; the others continue. "
        "Repeat the line to repair it. With --run and --step, the version is published once all "
        "engines have it. With --adapter, loads a version of a LoRA adapter without a pause, and "
        "then unloads the others but for the one before.",
    )
    add_engines(parser)
    parser.add_argument(
        "--path",
        required=True,
        metavar="DIR",
        help="folder with the weights, as the engines see it",
    )
    parser.add_argument(
        "--version",
        type=weight_version,
        required=True,
        metavar="V",
        help="name of these weights, used for no others",
    )
    parser.add_argument(
        "--adapter", type=name, metavar="NAME", help="the folder holds a LoRA adapter of this name"
    )
    add_run(parser, required=False, help="run to publish the version to (none)")
    parser.add_argument(
        "--step", type=step, metavar="K", help="training step that made these weights, with --run"
    )
    parser.add_argument(
        "--pause",
        type=one_of(PauseMode),
        default=PauseMode.RETRACT,
        metavar=words(PauseMode),
        help="what happens to running requests: docs/weights.md (%(default)s; SGLang before "
        "0.5.20: abort)",
    )
    parser.add_argument(
        "--no-checksums", action="store_true", help="do not compare the engines' weights"
    )
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key that the engines ask for",
    )
    add_redis(parser)
    add_json(
        parser,
        "end stdout with one JSON object: path, adapter, version, engines, failed, published",
    )
    parser.set_defaults(run=sync)


def sync(args: argparse.Namespace) -> int:
    if (args.run_name is None) != (args.step is None):
        raise SettingsError(
            "--run and --step go together: the version is published as the policy of that step"
        )
    fleet = Fleet(
        engine_addresses(args, settings(args).engine_urls),
        args.api_key_file,
        pause=args.pause,
        checksums=not args.no_checksums,
    )
    with contextlib.ExitStack() as stack:
        client = (
            stack.enter_context(open_client(args, args.run_name, must_exist=True))
            if args.run_name
            else None
        )
        if client:
            _check_run(args)
        try:
            with open_progress(sys.stderr) as display:
                report = _reporter(display)
                if args.adapter:
                    updates = fleet.load_adapter(args.adapter, args.path, args.version, report)
                else:
                    updates = fleet.update(args.path, args.version, report)
                before = client.published() if client else None
                if client:  # before the display ends, which raises when stderr was closed
                    client.publish(args.step, args.version)
        except SyncError as e:
            _print(args, e.updated, e)
            raise
        _print(args, updates)
        if client and args.adapter:
            _unload(fleet, args, before)
    return 0


def _check_run(args: argparse.Namespace) -> None:
    """Raises SettingsError when the run has another adapter, or this version's name for another
    step.
    """
    with open_run(args, args.run_name) as reader:
        versions = Versions(reader.redis, reader.run)
        versions.check_name(args.step, args.version)
        of_run = versions.adapter()
    if of_run not in (None, args.adapter or ""):
        remedy = "leave --adapter out, or use another run"
        if of_run:
            remedy = f"name it with --adapter {of_run}"
        raise SettingsError(
            f"run {args.run_name} is played with adapter {of_run or 'none'}: {remedy}"
        )


def _unload(fleet: Fleet, args: argparse.Namespace, before: Published | None) -> None:
    """Unloads the versions of the adapter that no turn begins with. After a step back to a
    checkpoint, those that were trained since then are made again.
    """
    keep = [args.version]
    if before and before.step < args.step:
        keep.append(before.weight_version)
    for url, reason in fleet.unload_adapter(args.adapter, keep).items():
        print(
            f"{url}: other versions of {args.adapter} stay loaded until the next sync: {reason}",
            file=sys.stderr,
        )


def engine_addresses(args: argparse.Namespace, sources: Sequence[str]) -> list[str]:
    """The addresses of engines, those in files and in Redis included. `sources` are as in
    `Settings.engine_urls`. Raises SettingsError.
    """
    urls: dict[str, None] = {}
    for source in sources:
        if source.startswith(FILE):
            urls |= dict.fromkeys(read_list(source, None))
        elif source.startswith(REDIS):
            with open_redis(args) as redis:
                urls |= dict.fromkeys(read_list(source, redis))
        else:
            urls[source] = None
    return [*urls]


def _reporter(display: ProgressDisplay) -> Callable[[str, str], None]:
    """Shows what each engine does. It is called by the engines' threads."""
    steps: dict[str, str] = {}
    lock = threading.Lock()

    def report(url: str, step: str) -> None:
        with lock, contextlib.suppress(OSError):  # stderr was closed; the engines go on
            steps[url] = step
            display.show(list(steps.values()).count("done"), len(steps), dict(steps))

    return report


def _print(
    args: argparse.Namespace, updates: Sequence[EngineUpdate], error: SyncError | None = None
) -> None:
    failed = dict(error.failed) if error else {}
    published = args.step if not error else None
    if args.json:
        result = {
            "path": args.path,
            "adapter": args.adapter,
            "version": args.version,
            "engines": [asdict(update) for update in updates],
            "failed": failed,
            "published": published,
        }
        print(json.dumps(result))
        return
    states = {update.url: _state(update, args.adapter) for update in updates}
    states |= dict.fromkeys(failed, "failed")
    width = max(map(len, states))
    for url, state in states.items():
        print(f"{url:<{width}}  {state}")
    of = f" of adapter {args.adapter}" if args.adapter else ""
    print(f"version {args.version}{of} on {len(updates)} of {len(states)} engines")
    if published is not None:
        print(f"published: run {args.run_name} is at step {published}")
    elif not error:
        print(f"next: rollq engines publish --run RUN --step K --version {args.version}")


def _state(update: EngineUpdate, adapter: str | None) -> str:
    state = "loaded" if update.loaded else "unchanged"
    if adapter:
        return state
    if update.loaded:
        state += f"     paused {update.paused_s:.2f} s"
    return f"{state}  checksum {(update.checksum or 'none')[:8]}"


def _add_publish(commands: Commands) -> None:
    parser = commands.add_parser(
        "publish",
        help="say which step's policy the engines serve",
        description="Says that the engines serve the policy of a training step from now on. "
        "Waiting producers go on when the run admits groups for it. `rollq engines sync --run R "
        "--step K` loads the weights and does this.",
    )
    add_run(parser)
    parser.add_argument(
        "--step",
        type=step,
        required=True,
        metavar="K",
        help="the policy's step: 0 is the first, and each trained batch makes the next",
    )
    parser.add_argument(
        "--version",
        type=weight_version,
        metavar="NAME",
        help="the engines' name of its weights (the step)",
    )
    add_redis(parser)
    parser.set_defaults(run=publish)


def publish(args: argparse.Namespace) -> int:
    with open_client(args, args.run_name, must_exist=True) as client:
        client.publish(args.step, args.version)
        admission = client.stats()["admission"]
    room = f", {max(0, admission['capacity'])} more groups may enter" if admission else ""
    print(
        f"run {args.run_name}: step {args.step} is published as version "
        f"{args.version or args.step}{room}"
    )
    return 0
