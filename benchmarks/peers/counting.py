"""What the handlers of `declctl run` share over reloads: a module that is not theirs."""

import os
import threading

from protocol import SENT, Burner, Counter, serve

counter = Counter(int(os.environ.get("BENCH_OBJECTS", "0")), lambda obj: obj.annotations[SENT])
burner = Burner()


def listen() -> None:
    """Take commands from standard input from here on."""
    threading.Thread(target=lambda: serve(counter=counter, read=None), daemon=True).start()
