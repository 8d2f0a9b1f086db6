"""Texts of `rollq --help` and `rollq COMMAND --help` beyond the flags.

The texts are here so that the help of all commands imports none of them.
"""

from collections.abc import Mapping

TASKS: Mapping[str, Mapping[str, str]] = {
    "try it": {
        "demo": "run the whole pipeline on this machine, without a GPU",
    },
    "the parts, each in a terminal": {
        "redis": "run a Redis server in the foreground",
        "engine": "run the replay engine: SGLang's HTTP API without a GPU",
        "worker": "play rollouts, in one or more processes",
    },
    "jobs and results": {
        "submit": "submit jobs to a run",
        "pull": "take finished groups off a run",
        "eval": "measure a policy: mean reward and pass^k",
        "audit": "check an exported file, and score its tokens again on the engine",
        "jobs": "list, requeue, drop and cancel jobs",
    },
    "see what happens": {
        "top": "watch runs, engines and workers, and what holds them up",
        "stats": "count a run's jobs and groups, and show late ones",
        "show": "show one trajectory, turn by turn",
        "view": "look at runs and rollouts in a browser",
        "metrics": "serve the metrics of runs and workers to Prometheus",
    },
    "set up and change": {
        "doctor": "check what a worker would use: Redis, engines, environments",
        "env": "list environments, check one, or begin a new one",
        "engines": "edit lists of engines, load new weights, publish a step's policy",
    },
}
"""Commands and their summaries, by what one wants to do."""
SUMMARIES = {
    command: summary for commands in TASKS.values() for command, summary in commands.items()
}
EPILOG = "\n".join(
    [
        *(
            f"{task}:\n"
            + "".join(f"  {command:<9} {summary}\n" for command, summary in commands.items())
            for task, commands in TASKS.items()
        ),
        "`rollq COMMAND --help` explains a command and shows examples.",
    ]
)
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "demo": (
        "rollq demo",
        "rollq demo --env tau2_2025:retail --set split=test",
        "rollq demo --out demo.jsonl",
    ),
    "redis": ("rollq redis", "rollq redis --port 6380 --dir data"),
    "engine": ("rollq engine --env shop --mistakes 0.3",),
    "worker": (
        "rollq worker -c 64",
        "rollq worker --engine http://127.0.0.1:30000 --tokenizer Qwen/Qwen3-8B",
    ),
    "submit": (
        "rollq submit --run try --env shop --tasks 0-31 --size 4 --seal",
        "rollq submit --run maths --env maths.jsonl:number --tasks 0-99 --set epochs=2",
    ),
    "pull": ("rollq pull --run try --groups 32 --out try.jsonl",),
    "eval": ("rollq eval --run try-eval --env shop --split test --tasks 0-15",),
    "audit": (
        "rollq audit try.jsonl --offline",
        "rollq audit try.jsonl --engine http://127.0.0.1:30000",
    ),
    "jobs list": ("rollq jobs list try", "rollq jobs list try --class env"),
    "jobs requeue": ("rollq jobs requeue try --class env", "rollq jobs requeue try/shop.train.3/0"),
    "jobs drop": ("rollq jobs drop try --class job", "rollq jobs drop try --whole-run --yes"),
    "jobs cancel": ("rollq jobs cancel try --all", "rollq jobs cancel try/shop.train.3/0"),
    "top": ("rollq top", "rollq top --run try"),
    "stats": ("rollq stats --run try", "rollq stats --run try --late"),
    "show": ("rollq show try.jsonl:1", "rollq show try/shop.train.0/0"),
    "view": ("rollq view try.jsonl", "rollq view --run try"),
    "metrics": ("rollq metrics --port 9808",),
    "engines list": ("rollq engines list big",),
    "engines add": ("rollq engines add big http://10.0.0.7:30000",),
    "engines remove": ("rollq engines remove big http://10.0.0.7:30000",),
    "engines sync": (
        "rollq engines sync --engine http://127.0.0.1:30000 --path checkpoints/7 --version 7",
    ),
    "engines publish": ("rollq engines publish --run try --step 7 --version 7",),
    "doctor": ("rollq doctor", "rollq doctor --env shop --engine http://127.0.0.1:30000"),
    "env check": ("rollq env check shop",),
    "env new": ("rollq env new words",),
}
"""Lines to try. A test parses each of them."""


def examples(command: str) -> str:
    """The end of a command's help; empty for one that has no examples."""
    lines = EXAMPLES.get(command, ())
    return "\nexamples:\n" * bool(lines) + "".join(f"  {line}\n" for line in lines)


def elsewhere(name: str) -> str:
    """The lines that somebody may mean who writes `rollq NAME`; empty when none is known."""
    known = [*EXAMPLES, "stats --late", "--help"]
    return " or ".join(f"`rollq {line}`" for line in known if line.split()[-1].lstrip("-") == name)
