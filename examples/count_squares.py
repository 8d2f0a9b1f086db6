"""An environment with images: the agent counts squares in a picture and looks closer with a tool
(docs/images.md).

Needs rollq[images]. The pictures are made by the code below, the same ones each time.
"""

import io
import re

from PIL import Image as Pillow
from PIL import ImageDraw

from rollq.env import RESPOND, STOP_MARKER, Action, Grade, Image, Observation, Task
from rollq.errors import JobFailure

QUARTER = {"type": "string", "enum": ["top left", "top right", "bottom left", "bottom right"]}
PARAMETERS = {"type": "object", "properties": {"quarter": QUARTER}, "required": ["quarter"]}
TOOL = {
    "name": "zoom",
    "description": "Shows a quarter of the picture, enlarged.",
    "parameters": PARAMETERS,
}
SIDE = 224
"""Pixels of a picture's side; a square has SIDE / 16, and two never touch."""
TASKS = 40


def squares(index: int) -> list[tuple[int, int]]:
    """Left upper corners, in pixels: from 1 to 7 places of a grid of 8 x 8."""
    places = {(index * 29 + n * 23) % 64 for n in range(1 + index % 7)}
    return [(place % 8 * SIDE // 8, place // 8 * SIDE // 8) for place in sorted(places)]


def picture(index: int) -> Pillow.Image:
    image = Pillow.new("RGB", (SIDE, SIDE), "white")
    draw = ImageDraw.Draw(image)
    for left, top in squares(index):
        draw.rectangle((left, top, left + SIDE // 16 - 1, top + SIDE // 16 - 1), fill="navy")
    return image


def as_file(image: Pillow.Image) -> Image:
    file = io.BytesIO()
    image.save(file, "PNG")
    return Image(file.getvalue())


class Counting:
    tools = ({"type": "function", "function": TOOL},)
    system_prompt = "Count the squares in the user's picture and tell the user their number."

    def __init__(self, index: int, task: Task) -> None:
        self.index, self.task, self.told = index, task, []

    def reset(self, user):
        self.user = user
        return Observation(user.open(), images=[as_file(picture(self.index))])

    def step(self, action):
        if action.name == RESPOND:
            self.told += re.findall(r"\d+", action.arguments["content"])
            reply = self.user.reply(action.arguments["content"])
            return Observation(reply, done=STOP_MARKER in reply)
        quarter = action.arguments.get("quarter")
        if action.name != "zoom" or quarter not in QUARTER["enum"]:
            return Observation(f"Error: call zoom with one of {', '.join(QUARTER['enum'])}")
        left, top = SIDE // 2 * ("right" in quarter), SIDE // 2 * ("bottom" in quarter)
        part = (
            picture(self.index)
            .crop((left, top, left + SIDE // 2, top + SIDE // 2))
            .resize((SIDE, SIDE))
        )
        return Observation(f"The {quarter} quarter:", images=[as_file(part)])

    def grade(self):
        return Grade(float(self.told[-1:] == [self.task.outputs[0]]))


class Squares:
    name, version = "count_squares", "count_squares 1"

    def splits(self):
        return {"train": TASKS}

    def task(self, split, index):
        if split != "train" or index not in range(TASKS):
            raise JobFailure(
                f"count_squares has tasks 0 to {TASKS - 1} of split 'train', not "
                f"{index} of {split!r}"
            )
        count = str(len(squares(index)))
        return Task(
            id=f"count_squares/{index}",
            hash=f"count_squares-1-{count}",
            instruction="You want to know how many squares your picture has.",
            opening=f"Picture {index}: how many squares do you see?",
            replies=(f"Thank you. {STOP_MARKER}",),
            moves=(
                Action("zoom", {"quarter": "top left"}),
                Action("zoom", {"quarter": "bottom right"}),
                Action(RESPOND, {"content": f"There are {count}."}),
            ),
            outputs=(count,),
        )

    def open(self, split, index, args):
        if args:
            raise JobFailure("count_squares takes no env_args")
        return Counting(index, self.task(split, index))


def load(variant):
    return Squares()
