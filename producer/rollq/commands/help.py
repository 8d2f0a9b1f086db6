"""What `rollq --help` and `rollq COMMAND --help` say beyond the flags, and what a misspelled word may have meant.

The texts are here so that the help of all commands imports none of them.
"""

import difflib
from collections.abc import Iterable, Mapping

TASKS: Mapping[str, Mapping[str, str]] = {
    "try it": {
        "demo": "run the whole pipeline on this machine, without a GPU",
    },
    "the parts, each in a terminal": {
        "redis": "run a Redis server in the foreground",
        "engine": "run the replay engine: SGLang's HTTP API without a GPU",
        "worker": "play rollouts (one worker process)",
    },
    "jobs and results": {
        "submit": "submit jobs to a run",
        "pull": "take finished groups off a run",
        "eval": "measure a policy: mean reward and pass^k",
        "validate": "check an exported file",
        "audit": "score an exported file again on the engine, and compare",
    },
    "see what happens": {
        "top": "watch runs, engines and workers, and what holds them up",
        "stats": "count a run's jobs and groups",
        "late": "show what the oldest groups are waiting for",
        "show": "show one trajectory, turn by turn",
        "view": "look at runs and rollouts in a browser",
        "metrics": "serve the metrics of runs and workers to Prometheus",
    },
    "jobs that failed": {
        "dead": "list the jobs that ended without a grade",
        "requeue": "play dead jobs again",
        "drop": "delete dead jobs, or a whole run",
        "cancel": "end jobs that are queued or being played",
    },
    "engines and weights": {
        "engines": "list, add and remove the engines of workers",
        "sync": "load new weights into the engines",
        "publish": "say which step's policy the engines serve",
    },
    "before a run": {
        "doctor": "check what a worker would use, from Redis to engines and environments",
        "env": "list environments, check one, or begin a new one",
        "completion": "print what completes rollq's words in bash, zsh or tcsh",
    },
}
"""Commands and their summaries, by what one wants to do."""
SUMMARIES = {command: summary for commands in TASKS.values() for command, summary in commands.items()}
EPILOG = "\n".join(
    [
        *(
            f"{task}:\n" + "".join(f"  {command:<11} {summary}\n" for command, summary in commands.items())
            for task, commands in TASKS.items()
        ),
        "`rollq COMMAND --help` explains a command and shows examples. Values in parentheses are defaults.",
    ]
)
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "demo": ("rollq demo", "rollq demo --env tau2_2025:retail --split test --groups 4", "rollq demo --out demo.jsonl"),
    "redis": ("rollq redis", "rollq redis --port 6380 --dir data"),
    "engine": ("rollq engine --env shop --mistakes 0.3",),
    "worker": ("rollq worker -c 64", "rollq worker --engine http://127.0.0.1:30000 --tokenizer Qwen/Qwen3-8B"),
    "submit": (
        "rollq submit --run try --env shop --tasks 0-31 --size 4 --seal",
        "rollq submit --run maths --env maths.jsonl:number --tasks 0-99 --size 8 --temperature 1",
    ),
    "pull": ("rollq pull --run try --groups 32 --out try.jsonl",),
    "eval": ("rollq eval --run try-eval --env shop --split test --tasks 0-15",),
    "validate": ("rollq validate try.jsonl",),
    "audit": ("rollq audit try.jsonl --engine http://127.0.0.1:30000",),
    "top": ("rollq top", "rollq top --run try"),
    "stats": ("rollq stats --run try",),
    "late": ("rollq late --run try",),
    "show": ("rollq show try.jsonl:1", "rollq show try/shop.train.0/0"),
    "view": ("rollq view try.jsonl", "rollq view --run try"),
    "metrics": ("rollq metrics --port 9808",),
    "dead": ("rollq dead --run try", "rollq dead --run try --class env"),
    "requeue": ("rollq requeue --run try --class env",),
    "drop": ("rollq drop --run try --class job",),
    "cancel": ("rollq cancel --run try --all",),
    "engines": ("rollq engines --name a --add http://10.0.0.7:30000", "rollq engines --name a"),
    "sync": ("rollq sync --engine http://127.0.0.1:30000 --path checkpoints/7 --version 7",),
    "publish": ("rollq publish --run try --step 7 --version 7",),
    "doctor": ("rollq doctor", "rollq doctor --env shop --engine http://127.0.0.1:30000"),
    "env": ("rollq env list", "rollq env check shop", "rollq env new words"),
    "completion": ('eval "$(rollq completion bash)"',),
}
"""Lines to try. A test parses each of them."""


def examples(command: str) -> str:
    """The end of a command's help."""
    return "\nexamples:\n" + "".join(f"  {line}\n" for line in EXAMPLES[command])


def near(word: str, known: Iterable[str]) -> str:
    """What the word may have meant, as the end of a sentence; else empty."""
    found = difflib.get_close_matches(word, known, 2)
    return f"; did you mean {' or '.join(found)}?" if found else ""
