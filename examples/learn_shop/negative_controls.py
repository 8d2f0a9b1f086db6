"""Mistakes of a trainer, one change of the rows at a time, and the reward that the policy still
reaches.

    python -m examples.learn_shop.negative_controls [--only NAME,NAME] [--model DIR] [--steps 40] [--out FOLDER]

All runs begin with the same policy, take the same tasks and have the same budget. A run that has
its results in the folder is not made again; that of the correct trainer is `make learn`'s.
"""  # noqa: E501

import argparse
from dataclasses import dataclass, replace

from torch import Tensor

from examples.learn_shop.courses import add_flags, clock, course_of, run_main
from examples.learn_shop.engines import choose_sglang
from examples.learn_shop.figure import draw
from examples.learn_shop.learn import results, run
from examples.learn_shop.policy import Loss, Rows
from examples.learn_shop.train import Change, policy_loss, unchanged


def shift_mask(rows: Rows) -> Rows:
    """Each turn loses its first token, and the token after the turn is trained."""
    mask = rows.mask.roll(1, dims=1)
    mask[:, 0] = False
    return replace(rows, mask=mask)


def shift_logprobs(rows: Rows) -> Rows:
    """Each token has the logprob of the token before it."""
    return replace(rows, logprobs=rows.logprobs.roll(1, dims=1))


def swap_rewards(rows: Rows) -> Rows:
    """Members 0 and 1 of a group have each other's reward, and so on. (All groups are complete, of
    an even size.)
    """
    return replace(rows, advantages=rows.advantages.view(-1, 2).flip(1).flatten())


def no_ratio(rows: Rows, logprobs: Tensor) -> Tensor:
    """The policy that is trained counts as the one that sampled, so the importance ratio is 1."""
    return policy_loss(replace(rows, logprobs=logprobs.detach()), logprobs)


@dataclass(frozen=True, kw_only=True)
class Control:
    title: str
    folder: str
    staleness: int = 0
    change: Change = unchanged
    loss_of: Loss = policy_loss


CONTROLS = {
    "correct": Control(title="correct, staleness 0", folder="staleness-0"),
    "mask": Control(title="mask shifted by one", folder="mask", change=shift_mask),
    "logprobs": Control(title="logprobs shifted by one", folder="logprobs", change=shift_logprobs),
    "rewards": Control(
        title="rewards of members swapped in pairs", folder="rewards", change=swap_rewards
    ),
    "stale": Control(title="correct, staleness 4", folder="staleness-4", staleness=4),
    "no-ratio": Control(
        title="no importance ratio, staleness 4", folder="no-ratio", staleness=4, loss_of=no_ratio
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(parser)
    parser.add_argument("--only", default=",".join(CONTROLS), help="names with commas between them")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - CONTROLS.keys():
        parser.error(f"--only {', '.join(sorted(unknown))}: the names are {', '.join(CONTROLS)}")
    say = clock()
    course = course_of(args)
    sglang = choose_sglang(args)
    start = course.start(args.out, say)
    histories = {}
    for name in names:
        control = CONTROLS[name]
        say(f"control: {control.title}")
        options, folder = (
            replace(course.options, staleness=control.staleness),
            args.out / control.folder,
        )
        histories[control.title] = results(folder, options) or run(
            start,
            folder,
            options,
            say,
            sglang=sglang,
            engine_url=args.engine,
            change=control.change,
            loss_of=control.loss_of,
        )
        picture = draw(histories, args.out / "controls.png")
    for title, history in histories.items():
        say(f"{title}: {history[0]['held_out']:.2f} -> {history[-1]['held_out']:.2f}")
    say(f"figure: {picture}")


if __name__ == "__main__":
    run_main(main)
