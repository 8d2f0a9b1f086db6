"""`rollq simulate`: plays a fleet on a simulated clock, or measures the costs that it is played with."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollq.commands.flags.shared import Commands, add_json, add_tokenizer, whole
from rollq.commands.progress import open_progress
from rollq.errors import SettingsError

if TYPE_CHECKING:
    from rollq_worker.simulation.costs.table import Costs
    from rollq_worker.simulation.fleet.bottlenecks import Limit
    from rollq_worker.simulation.fleet.fleet import Fleet
    from rollq_worker.simulation.fleet.outcome import Outcome
    from rollq_worker.simulation.fleet.rehearsal import Rehearsal

EXAMPLE = Path(__file__).with_name("example.toml")


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "simulate",
        help="size a fleet on a simulated clock",
        description="Plays a fleet that a file describes on a simulated clock, with measured costs, and says what"
        " limits it. `rollq simulate --example > fleet.toml` writes a file to begin with.",
    )
    parser.add_argument("fleet", nargs="?", type=Path, metavar="FLEET.toml", help="the fleet and its jobs")
    parser.add_argument("--example", action="store_true", help="print a fleet to begin with")
    parser.add_argument("--measure", action="store_true", help="measure the costs on this machine (three minutes)")
    parser.add_argument("--out", type=Path, metavar="FILE.toml", help="where --measure writes them (standard output)")
    parser.add_argument("--env", default="shop", metavar="NAME", help="environment that --measure plays (%(default)s)")
    parser.add_argument(
        "--costs", type=Path, metavar="FILE.toml", help="costs to simulate with (those that rollq ships)"
    )
    parser.add_argument(
        "--rollouts", type=whole(1), metavar="N", help="grow or shrink the fleet to about so many rollouts at a time"
    )
    parser.add_argument(
        "--vary",
        type=variation,
        metavar="TABLE.KEY=A,B,..",
        help="play the fleet with each of these values, as in workers.concurrency=64,128, and compare",
    )
    parser.add_argument("--seed", type=whole(0), default=0, help="seed of every random choice (%(default)s)")
    parser.add_argument(
        "--no-ledger", action="store_true", help="do not run the ledger's scripts on a Redis of this machine first"
    )
    add_tokenizer(parser)
    add_json(parser, "print one JSON object; progress goes to stderr")
    parser.set_defaults(run=run)


def variation(text: str) -> tuple[str, list[Any]]:
    """An argument type: a key of the fleet's file, and values in TOML."""
    name, _, values = text.partition("=")
    table, dot, key = name.partition(".")
    try:
        found = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        found = []
    if not (table and dot and key and found):
        raise argparse.ArgumentTypeError(f"expected TABLE.KEY=A,B as in workers.concurrency=64,128, not {text!r}")
    return name, found


def run(args: argparse.Namespace) -> int:
    if args.example:
        print(EXAMPLE.read_text(), end="")
        return 0
    if args.measure:
        return _measure(args)
    if args.fleet is None:
        raise SettingsError("name the fleet's file, or write one: rollq simulate --example > fleet.toml")
    return _compare(args) if args.vary else _play(args)


def _measure(args: argparse.Namespace) -> int:
    from rollq.extras import needs

    with needs("worker"):
        from rollq_worker.commands.simulate.measuring import measure
    from rollq_worker.simulation.costs.table import as_toml

    costs = measure(args.env, args.tokenizer, lambda text: print(text, file=sys.stderr, flush=True))
    if args.out:
        args.out.write_text(as_toml(costs))
        print(f"next: rollq simulate fleet.toml --costs {args.out}", file=sys.stderr)
    else:
        print(as_toml(costs), end="")
    return 0


def _costs(args: argparse.Namespace) -> Costs:
    from rollq_worker.simulation.costs.table import SHIPPED, read_costs

    return read_costs(args.costs or SHIPPED)


def _fleet(args: argparse.Namespace, changes: dict[str, Any] | None = None) -> Fleet:
    from rollq_worker.simulation.fleet.fleet import read_fleet

    fleet = read_fleet(args.fleet, changes)
    return fleet.scaled(args.rollouts) if args.rollouts else fleet


def _rehearse(args: argparse.Namespace, fleet: Fleet, costs: Costs) -> tuple[Costs, Rehearsal | None, str]:
    """The costs of Redis as the ledger's scripts have them on this machine for these jobs, if it has a server; what was
    rehearsed, and a line that says so."""
    from rollq.processes.embedded_redis import binary
    from rollq_worker.simulation.fleet.rehearsal import rehearse

    if args.no_ledger:
        return costs, None, "the ledger's scripts were not run: the costs of Redis are the table's"
    try:
        binary()
    except SettingsError:
        return costs, None, "no Redis server on this machine: the costs of Redis are the table's"
    found = rehearse(fleet, costs, args.seed)
    told = (
        f"the ledger's scripts played {found.rollouts} of these rollouts on a real Redis: {found.calls} calls and"
        f" {found.batches} batches as simulated, {found.cpu_s / found.rollouts * 1000:.2f} ms of Redis a rollout"
        f" ({found.factor:.2f} times the table)"
    )
    return replace(costs, redis=costs.redis.times(found.factor)), found, told


def _simulate(fleet: Fleet, costs: Costs, seed: int) -> tuple[Outcome, Limit]:
    from rollq_worker.simulation.fleet.bottlenecks import limit_now
    from rollq_worker.simulation.fleet.run import FleetRun

    with open_progress(sys.stderr) as progress:
        outcome = FleetRun(fleet, costs, seed).play(
            lambda done, total: progress.show(done, total, {"rollouts": "simulated"})
        )
    return outcome, limit_now(fleet, outcome)


def _play(args: argparse.Namespace) -> int:
    from rollq_worker.commands.simulate.printing import show_outcome
    from rollq_worker.simulation.fleet.bottlenecks import limits

    fleet = _fleet(args)
    costs, rehearsal, told = _rehearse(args, fleet, _costs(args))
    print(told, file=sys.stderr)
    outcome, now = _simulate(fleet, costs, args.seed)
    later = limits(outcome)
    if args.json:
        found = {"outcome": outcome.as_json(), "limits": [_plain(limit) for limit in (now, *later)]}
        print(json.dumps(found | {"ledger": rehearsal and rehearsal.as_json(), "costs": dict(costs.machine)}))
        return 0
    show_outcome(fleet, outcome, now, later)
    print(f"\nnext: compare fleets: rollq simulate {args.fleet} --vary workers.concurrency=64,128,256")
    return 0


def _plain(limit: Limit) -> dict[str, Any]:
    return {"rollouts": limit.rollouts, "limit": limit.name, "load": limit.load, "remedy": limit.remedy}


def _compare(args: argparse.Namespace) -> int:
    from rollq_worker.commands.simulate.printing import VARY_HEAD, show_table, vary_row

    name, values = args.vary
    costs, _, told = _rehearse(args, _fleet(args), _costs(args))
    print(told, file=sys.stderr)
    rows, found = [], []
    for value in values:
        outcome, limit = _simulate(_fleet(args, {name: value}), costs, args.seed)
        rows.append([str(value), *vary_row(outcome, limit)])
        found.append({"value": value, "outcome": outcome.as_json(), "limit": _plain(limit)})
    if args.json:
        print(json.dumps({"key": name, "runs": found}))
    else:
        show_table("", [name, *VARY_HEAD], rows)
    return 0
