"""Draws docs/architecture.svg: the rooms of all packages in layers, and the ways of a job and of a
trajectory.

    python docs/draw_architecture.py

The words are in docs/architecture.toml. The layers are import-linter's contracts in pyproject.toml:
a room imports only what is drawn below it.
"""

import textwrap
import tomllib
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
WIDTH, EDGE, GAP, LINE = 960, 20, 8, 16
LEFT, INNER = 2 * EDGE, WIDTH - 4 * EDGE
NARROWEST = 16  # of the space around the name of a module
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
COLORS = {
    "rollq_integrations": ("#fbf1f7", "#a8467f"),
    "rollq_worker": ("#f1f8f1", "#3a8a3f"),
    "rollq_view": ("#fdf4ec", "#c26a1b"),
    "rollq": ("#f0f5ff", "#3b6fd4"),
}


class Picture:
    """SVG elements from top to bottom; `y` is where the next ones go."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = 0.0
        self.badges: dict[str, list[tuple[int, str]]] = {}

    def text(self, x: float, y: float, words: str, size: float = 12, **style: str) -> None:
        styles = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}"{styles}>{escape(words)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str, stroke: str) -> None:
        size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect {size} rx="6" fill="{fill}" stroke="{stroke}"/>')

    def badge(self, x: float, y: float, number: int, color: str) -> None:
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="9.5" fill="{color}"/>')
        self.text(x, y + 4, str(number), 11, fill="#fff", text_anchor="middle", font_weight="bold")

    def name(self, x: float, y: float, width: float, package: str, room: str) -> None:
        """A room's name, and at the right the numbers of the steps that go through it."""
        self.text(x + 10, y, room, 13, font_family=MONO, font_weight="bold")
        for place, (number, color) in enumerate(reversed(self.badges.pop(f"{package}/{room}", []))):
            self.badge(x + width - 16 - 23 * place, y - 4.5, number, color)

    def rooms(self, package: dict[str, Any], names: list[str]) -> None:
        """One layer of folders, side by side."""
        width = (INNER - GAP * (len(names) - 1)) / len(names)
        words = {
            name: textwrap.wrap(package["rooms"][name], int((width - 16) / 6.5)) for name in names
        }
        height = 26 + LINE * max(map(len, words.values()))
        for place, name in enumerate(names):
            x = LEFT + place * (width + GAP)
            self.box(x, self.y, width, height, "#fff", COLORS[package["name"]][1])
            self.name(x, self.y + 18, width, package["name"], name)
            for number, line in enumerate(words[name]):
                self.text(x + 10, self.y + 35 + LINE * number, line, fill="#57606a")
        self.y += height + GAP

    def modules(self, package: dict[str, Any], layers: list[list[str]]) -> None:
        """Layers of single modules, from left to right, in two rows if they do not fit into one."""
        arrow, badge = 16, 23
        names = [name for layer in layers for name in layer]
        steps = {name: len(self.badges.get(f"{package['name']}/{name}", [])) for name in names}
        used = sum(8 * len(name) + badge * steps[name] for name in names)
        used += (GAP + arrow) * (len(layers) - 1) + GAP * (len(names) - len(layers))
        padding = (INNER - used) / len(names)
        if padding < NARROWEST:
            half = len(layers) // 2
            self.modules(package, layers[:half])
            self.modules(package, layers[half:])
            return
        x = float(LEFT)
        for layer in layers:
            for name in layer:
                width = padding + 8 * len(name) + badge * steps[name]
                self.box(x, self.y, width, 28, "#fff", COLORS[package["name"]][1])
                self.name(x, self.y + 18.5, width, package["name"], name)
                x += width + GAP
            if layer is not layers[-1]:
                self.text(
                    x + arrow / 2 - GAP / 2,
                    self.y + 19,
                    "›",
                    16,
                    fill="#57606a",
                    text_anchor="middle",
                )
                x += arrow
        self.y += 28 + GAP

    def package(self, package: dict[str, Any]) -> None:
        fill, stroke = COLORS[package["name"]]
        top, place = self.y, len(self.parts)
        self.y += 24
        self.text(
            LEFT, self.y, package["folder"], 15, font_family=MONO, font_weight="bold", fill=stroke
        )
        self.text(WIDTH - LEFT, self.y, package["title"], 13, fill="#57606a", text_anchor="end")
        self.y += 12
        folder = DOCS.parent / package["folder"]
        for is_room, layers in groupby(
            read_layers(package["name"]), lambda layer: (folder / layer[0]).is_dir()
        ):
            for layer in layers if is_room else ():
                self.rooms(package, layer)
            if not is_room:
                self.modules(package, list(layers))
        self.box(EDGE, top, WIDTH - 2 * EDGE, self.y - top + 4, fill, "none")
        self.parts.insert(place, self.parts.pop())
        self.y += 16

    def way(self, way: dict[str, Any], first: int, x: float, y: float) -> None:
        self.text(x, y, way["title"], 14, font_weight="bold")
        for number, step in enumerate(way["steps"]):
            at = y + 26 + 25 * number
            self.badge(x + 10, at - 4.5, first + number, way["color"])
            room = step["room"].partition("/")[2]
            self.text(x + 28, at, room, 12, font_family=MONO, font_weight="bold")
            self.text(x + 126, at, step["text"], 12)


def read_layers(package: str) -> list[list[str]]:
    """The rooms and modules of the package, top layer first."""
    contracts = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    [found] = [c for c in contracts if c["type"] == "layers" and c.get("containers") == [package]]
    return [[name.strip() for name in layer.split("|")] for layer in found["layers"]]


def draw() -> str:
    words = tomllib.loads((DOCS / "architecture.toml").read_text())
    picture, firsts, first = Picture(), [], 1
    for way in words["ways"]:
        for number, step in enumerate(way["steps"], first):
            picture.badges.setdefault(step["room"], []).append((number, way["color"]))
        firsts.append(first)
        first += len(way["steps"])
    picture.y = EDGE + 28
    picture.text(LEFT, EDGE + 12, words["title"], 13, font_weight="bold")
    for package in words["packages"]:
        picture.package(package)
    assert not picture.badges, f"steps in rooms that are not drawn: {list(picture.badges)}"
    for place, (way, first) in enumerate(zip(words["ways"], firsts, strict=True)):
        picture.way(way, first, LEFT + place * (INNER / 2 + GAP), picture.y + 14)
    height = picture.y + 34 + 25 * max(len(way["steps"]) for way in words["ways"])
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" fill="#1f2328"'
    )
    frame = (
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{height - 2:g}" rx="10" fill="#fff" '
        'stroke="#d0d7de"/>'
    )
    title = f"<title>{escape(words['description'])}</title>"
    lines = [
        f'{head} font-family="Helvetica, Arial, sans-serif">',
        title,
        frame,
        *picture.parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (DOCS / "architecture.svg").write_text(draw())
