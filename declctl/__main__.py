"""`python -m declctl`, and the command `declctl`.

The kernel keeps a signal from process 1 of a container that it has no handler for: a pod that is deleted
while it starts would stay until it is killed. So the handler of SIGTERM comes before all other imports. Until
then, while Python itself starts, SIGTERM has no effect on process 1.
"""

import os
import signal


def main() -> None:
    """Run the command of the process's arguments, and exit with its status."""
    if os.getpid() == 1:
        # As the kernel ends any other process. An exception could be lost in the middle of an import.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    from declctl.cli import main as command

    command()


if __name__ == "__main__":
    main()
