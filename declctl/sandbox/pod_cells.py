"""What `kubectl get pods` says about a pod: ready containers, one word for its state, restarts.

Source: printPod.
"""

from datetime import datetime
from typing import Any

from declctl.objects import KubeObject
from declctl.sandbox import durations


def pod_ready(pod: KubeObject) -> str:
    """Ready containers of all, such as `1/2`."""
    wanted = (pod.get("spec") or {}).get("containers") or []
    ready = [each for each in _containers(pod) if each.get("ready")]
    return f"{len(ready)}/{len(wanted)}"


def pod_status(pod: KubeObject) -> str:
    """The phase, or the reason that says more than it."""
    status: KubeObject = pod.get("status") or {}
    word = status.get("reason") or status.get("phase") or "Unknown"
    word = _initialising(pod) or _container_word(pod) or word
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(word)


def pod_restarts(pod: KubeObject, now: datetime) -> str:
    """How often containers restarted, and when last."""
    count = sum(each.get("restartCount", 0) for each in _containers(pod))
    last: list[str] = [
        finished
        for each in _containers(pod)
        if (finished := ((each.get("lastState") or {}).get("terminated") or {}).get("finishedAt"))
    ]
    return f"{count} ({durations.age(max(last), now)} ago)" if count and last else str(count)


def _containers(pod: KubeObject) -> list[KubeObject]:
    return (pod.get("status") or {}).get("containerStatuses") or []


def _initialising(pod: KubeObject) -> str | None:
    states = (pod.get("status") or {}).get("initContainerStatuses") or []
    for at, each in enumerate(states):
        state: dict[str, Any] = each.get("state") or {}
        if (state.get("terminated") or {}).get("exitCode") == 0:
            continue
        reason = (state.get("waiting") or {}).get("reason") or (state.get("terminated") or {}).get("reason")
        return f"Init:{reason}" if reason and reason != "PodInitializing" else f"Init:{at}/{len(states)}"
    return None


def _container_word(pod: KubeObject) -> str | None:
    word: str | None = None
    running = False
    for each in reversed(_containers(pod)):
        state: dict[str, Any] = each.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason"):
            word = waiting["reason"]
        elif ended is not None:
            word = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
        elif each.get("ready") and "running" in state:
            running = True
    return "Running" if word == "Completed" and running else word
