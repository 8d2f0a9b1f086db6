"""An environment's tool schemas, checked for what templates, tool parsers and the wire rely on."""

import json

from rollq.job import Json
from rollq_worker.protocols import Environment


def schemas_of(environment: Environment) -> list[Json]:
    """Plain copies. Raises TypeError or ValueError for what is not a schema, and whatever reading them raises."""
    schemas: Json = json.loads(json.dumps(list(environment.tools), allow_nan=False))
    names = [_name(schema) for schema in schemas]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"there are several tools named {', '.join(repeated)}")
    return list(schemas)


def _name(schema: Json) -> str:
    """The tool's name."""
    function = schema.get("function") if isinstance(schema, dict) else None
    if not isinstance(function, dict):
        raise ValueError(f'a tool schema is {{"type": "function", "function": {{...}}}}, not {schema!r:.100}')
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a tool has no name: {function!r:.100}")
    for key, kind in (("description", str), ("parameters", dict)):
        if key in function and not isinstance(function[key], kind):
            raise ValueError(f"the {key} of tool {name!r} is {function[key]!r:.100}")
    return name
