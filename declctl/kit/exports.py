"""Names of a package that are loaded when somebody first asks for them (PEP 562).

For what few programs use: a process that starts pays for each module that it loads.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def late(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """The `__getattr__` of a package that loads each of `modules`, relative to it, for the names listed.

    A type checker has to be told by imports under TYPE_CHECKING. Any other name is an AttributeError,
    as everywhere.
    """
    found_in = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> object:
        if name not in found_in:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{found_in[name]}"), name)
        setattr(sys.modules[package], name, value)  # so that it is asked for once
        return value

    return load
