"""Dead letters and debounce, as a user sees them: a process, its commands and its lines."""

import json
from pathlib import Path
from typing import Any

from bundles import telling
from clusters import Cluster
from processes import Declctl, run
from rest import pod
from waiting import until

BROKEN = "def tell(change):\n    raise ValueError(f'no {change.key}')\n"
POLICY = "retry: {maxAttempts: 2, initialBackoff: 50ms}, onFailure: DeadLetter"


def test_what_was_given_up_is_listed_and_requeued(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Broken code gives two objects up; it is mended, and `requeue` brings one back, then all."""
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    good = (bundle.path / "handlers.py").read_text("utf-8")
    bundle.write("handlers.py", BROKEN)
    bundle.edit("manifest.yaml", '"handlers:tell"', f'"handlers:tell", {POLICY}')
    for name in ("a", "b"):
        cluster.rest.create(pod(name, namespace))
    with Declctl(bundle.path, "--no-watch", kubeconfig=cluster.kubeconfig) as declctl:

        def letters() -> list[dict[str, object]]:
            return json.loads(declctl.command("get", "deadletters", "-o", "json").stdout or "{}")[
                "deadLetters"
            ]

        until("both are given up", lambda: len(letters()) == 2)
        first = min(letters(), key=lambda letter: str(letter["key"]))
        assert (first["handler"], first["key"], first["type"]) == ("tell", f"{namespace}/a", "Added")
        assert (first["attempts"], first["error"]) == (2, f"ValueError: no {namespace}/a")
        assert "handlers.py" in str(first["traceback"])
        listed = declctl.command("get", "deadletters")
        assert listed.stdout.splitlines()[0].startswith("HANDLER")
        assert len(listed.stdout.splitlines()) == 3
        assert "DEAD LETTERS" in declctl.command("status").stdout
        bundle.write("handlers.py", good)
        assert declctl.command("reload").returncode == 0
        assert len(letters()) == 2
        requeued = declctl.command("requeue", f"tell/{namespace}/a")
        assert (requeued.returncode, requeued.stdout) == (0, "1 requeued\n")
        until("it is told", lambda: any(f"Added pods {namespace}/a " in line for line in declctl.out))
        assert [letter["key"] for letter in letters()] == [f"{namespace}/b"]
        again = declctl.command("requeue", f"tell/{namespace}/a")
        assert again.returncode == 2
        assert f"tell has no dead letter of {namespace}/a" in again.stderr
        assert declctl.command("requeue", "--all").stdout == "1 requeued\n"
        until("the other is told", lambda: any(f"Added pods {namespace}/b " in line for line in declctl.out))
        assert letters() == []
        assert declctl.stop() == 0


def test_a_requeue_says_what_it_needs() -> None:
    """A handler or --all, and not both."""
    for words in ((), ("notify", "--all")):
        refused = run("requeue", *words)
        assert refused.returncode == 2
        assert "Name a handler or HANDLER/KEY, or write --all" in refused.stderr


SAYING = (
    "def tell(change, ctx):\n"
    "    ctx.log.debug(f'looks at {change.key}')\n"
    "    ctx.log.info(f'has {change.key}')\n"
    "    if change.key.endswith('/bad'):\n"
    "        raise ValueError(f'no {change.key}')\n"
)


def test_what_waits_is_listed_and_the_log_shows_more_on_request(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """One object fails and backs off: it is listed. The level is changed, survives a reload, and is told."""
    bundle = telling(tmp_path / "bundle", namespace=namespace)
    bundle.write("handlers.py", SAYING)
    policy = "retry: {initialBackoff: 10m, maxBackoff: 10m}"
    bundle.edit("manifest.yaml", '"handlers:tell"', f'"handlers:tell", {policy}')
    cluster.rest.create(pod("bad", namespace))
    with Declctl(bundle.path, "--no-watch", kubeconfig=cluster.kubeconfig) as declctl:

        def queue() -> dict[str, Any]:
            return json.loads(declctl.command("get", "queue", "tell", "-o", "json").stdout)

        def is_logged(text: str) -> bool:
            return any(text in line for line in declctl.err)

        until("it backs off", lambda: queue()["backingOff"] == 1)
        (item,) = queue()["items"]
        assert (item["key"], item["state"], item["type"]) == (f"{namespace}/bad", "BackingOff", "Added")
        assert (item["attempts"], item["lastErrorType"]) == (1, "ValueError")
        assert item["since"] < item["due"]
        listed = declctl.command("get", "queue", "tell")
        assert listed.stdout.splitlines()[2:] == ["tell: 1 backing off"]
        assert listed.stderr == ""
        unknown = declctl.command("get", "queue", "nobody")
        assert (unknown.returncode, "No handler is named nobody" in unknown.stderr) == (2, True)

        assert not is_logged("looks at")
        changed = declctl.command("loglevel", "debug")
        assert (changed.returncode, changed.stdout) == (0, "the log level is debug, and was info\n")
        assert "LOG LEVEL" in declctl.command("status").stdout
        assert declctl.command("reload", "--force").returncode == 0
        cluster.rest.create(pod("a", namespace))
        until("the new code shows more", lambda: is_logged(f"looks at {namespace}/a"))
        assert declctl.command("loglevel", "error").returncode == 0
        before = len(declctl.err)
        cluster.rest.create(pod("b", namespace))
        until("it is handled", lambda: declctl.status()["handlers"][0]["succeeded"] == 2)
        assert not any(f"{namespace}/b" in line for line in declctl.err[before:])
        assert is_logged("the log level is error from now on, and was debug: 127.0.0.1 asked for it")
        assert declctl.stop() == 0
