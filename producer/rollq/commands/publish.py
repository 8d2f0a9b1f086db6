"""`rollq publish`: says which training step's policy the engines serve."""

import argparse

from rollq.commands.connect import open_client
from rollq.commands.flags.policy import step, weight_version
from rollq.commands.flags.shared import Commands, add_durability, add_redis, add_run


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "publish",
        help="say which step's policy the engines serve",
        description="Says that the engines serve the policy of a training step from now on. Waiting producers go on"
        " when the run admits groups for it. `rollq sync --run R --step K` loads the weights and does this.",
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
        "--version", type=weight_version, metavar="NAME", help="the engines' name of its weights (the step)"
    )
    add_redis(parser)
    add_durability(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with open_client(args, args.run_name, known=True) as client:
        client.publish(args.step, args.version)
        admission = client.reader.standing().admission
    room = f", {max(0, admission.capacity)} more groups may enter" if admission else ""
    print(f"run {args.run_name}: step {args.step} is published as version {args.version or args.step}{room}")
    return 0
