"""The counter of `declctl run`, in a module outside the bundle, so that it survives reloads."""

import os
import threading

from protocol import SENT, Burner, Counter, Reconciliations, serve

counter = Counter(int(os.environ.get("BENCH_OBJECTS", "0")), lambda obj: obj.annotations[SENT])
burner = Burner()
reconciliations = Reconciliations(counter)


def listen() -> None:
    """Starts a thread that serves the commands of standard input."""
    threading.Thread(target=lambda: serve(counter=counter, read=None), daemon=True).start()
