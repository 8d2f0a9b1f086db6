"""Chat templates of our own for training, by name: they keep in the history what was sampled.

A training template writes the first prompt, the calls and the results as the model's own template
does. It leaves nothing out of earlier turns and moves nothing, so every prompt begins with the one
before. It knows no token ids.
"""

import os.path
from collections.abc import Sequence
from pathlib import Path

from rollq.errors import SettingsError

_FOLDER = Path(__file__).parent


def training_templates() -> Sequence[str]:
    """The names of the training templates."""
    return sorted(path.stem for path in _FOLDER.glob("*.jinja"))


def template_text(name: str) -> str:
    """The Jinja text of the training template `name`, or of the file with that path. Raises
    SettingsError.
    """
    names = training_templates()
    path = _FOLDER / f"{name}.jinja" if name in names else Path(os.path.expanduser(name))
    if not os.path.isfile(path):  # unlike Path's, it takes any text, such as the template itself
        raise SettingsError(
            f"ROLLQ_TEMPLATE, or --template: {name!r:.200} is neither a file nor a training "
            f"template; there are {', '.join(names)}"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise SettingsError(f"the chat template {path} cannot be read: {e}") from e
