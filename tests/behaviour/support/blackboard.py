"""What handlers of the tests write down: an installed module, the same for every generation."""

import threading

told: list[tuple] = []
gates: dict[str, threading.Event] = {}


def tell(*what) -> None:
    """Write a row; from any thread."""
    told.append(what)


def wait(gate: str, seconds: float = 20.0) -> bool:
    """Wait, in a handler, until the test opens a gate."""
    return gates.setdefault(gate, threading.Event()).wait(seconds)


def open_gate(gate: str) -> None:
    """Let handlers pass."""
    gates.setdefault(gate, threading.Event()).set()


def clear() -> None:
    """Between tests: let everybody go and forget."""
    for gate in gates.values():
        gate.set()
    gates.clear()
    told.clear()


def spin(gate: str) -> None:
    """Compute, in user code, until the test opens a gate."""
    opened = gates.setdefault(gate, threading.Event()).is_set
    while not opened():
        pass
