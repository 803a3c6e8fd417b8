"""A peer for tests: it speaks the protocol as its one argument says."""

import json
import os
import subprocess
import sys


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


match sys.argv[1]:
    case "synced":
        print("a word in passing, which is no line of the protocol", flush=True)
        say("synced", objects=3, version="speaking 1")
    case "early":
        say("added", objects=3)
        say("synced", objects=3, version="speaking 1")
    case "ends":
        sys.exit("no such thing as a Lease")
    case "another":
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        say("process", pid=child.pid)
        say("synced", objects=3, version=str(child.pid))
    case "child that computes":
        subprocess.run([sys.executable, "-c", "for _ in range(10_000_000): pass"], check=True)
        say("synced", objects=3, version=str(os.times().children_user))
for line in sys.stdin:
    if line.split()[0] == "read":
        say("read", median=1e-6, values=1)
