"""What handlers of the tests write down: an installed module, the same for every generation.

A thread that a test has held up may go on when that test is over; the next test does not read what it tells.
"""

import threading

told: list[tuple] = []
gates: dict[str, threading.Event] = {}
_thread = threading.local()  # `is_late`: its test is over


def tell(*what) -> None:
    """Write a row; from any thread."""
    if not hasattr(_thread, "is_late"):
        told.append(what)


def wait(gate: str, seconds: float = 20.0) -> bool:
    """Wait, in a handler, until the test opens a gate."""
    event = gates.setdefault(gate, threading.Event())
    opened = event.wait(seconds)
    _go_on(gate, event)
    return opened


def open_gate(gate: str) -> None:
    """Let handlers pass."""
    gates.setdefault(gate, threading.Event()).set()


def clear() -> None:
    """Between tests: let everybody go and forget."""
    events = list(gates.values())
    gates.clear()  # first: whoever is let go by this finds its gate gone
    for event in events:
        event.set()
    told.clear()


def spin(gate: str) -> None:
    """Compute, in user code, until the test opens a gate."""
    event = gates.setdefault(gate, threading.Event())
    while not event.is_set():
        pass
    _go_on(gate, event)


def _go_on(gate: str, event: threading.Event) -> None:
    if gates.get(gate) is not event:
        _thread.is_late = True
