"""Write again the tables of tune.md that `rollq simulate` makes. Run it after the costs were measured again.

    .venv/bin/python docs/make_tables.py

Such a table stands between a comment with its command and `<!-- end -->`. The file fleet.toml is the example.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("tune.md")
BLOCK = re.compile(r"(<!-- rollq (?P<command>[^\n]+) -->\n)(?P<tables>.*?)(<!-- end -->)", re.DOTALL)


def made(command: str) -> str:
    """What the command prints, without the line on what to do next."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fleet.toml").write_text(printed(["simulate", "--example"], folder))
        lines = printed(command.split(), folder).splitlines()
    return "\n".join(line for line in lines if not line.startswith("next: ")).strip()


def printed(words: list[str], folder: str) -> str:
    command = [sys.executable, "-m", "rollq", *words]
    return subprocess.run(command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(lambda block: f"{block[1]}\n{made(block['command'])}\n\n{block[4]}", PAGE.read_text()))
