"""YAML in, objects out: what people and kubectl write, read as Kubernetes reads it (timestamps stay text)."""

from typing import Any, Final

import yaml

from declctl.errors import SandboxError

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """YAML without dates: an object's times are strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(text: str | bytes, *, name: str = "<objects>") -> list[Any]:
    """Every document of a YAML (or JSON) text.

    Raises SandboxError with the place of a fault, counted from 1.
    """
    try:
        return list(yaml.load_all(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise SandboxError(f"{where}: the YAML can't be read: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise SandboxError(f"{name}: the YAML can't be read: {error}") from error
