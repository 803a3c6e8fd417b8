"""A call in a child: what is believed of it, how it ends, what replaces it. The children are made up."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from declctl.errors import Conflict, InvalidWrite, NotSynced, ReloadRefused
from declctl.hooks.calls import Implementation, ReconcileTarget, describe_with_place, readable_traceback
from declctl.manifest.model import IsolationMode, IsolationSpec
from declctl.manifest.plan import HandlerPlan
from declctl.objects import ObjectKey, ObjectView, Record, Request
from declctl.objects.frame import FrameCodec
from declctl.objects.record import Layout
from declctl.runtime.checking.fork_server import STATUS
from declctl.runtime.handling.context import Context, HandlerEnvironment, Listers, Memo
from declctl.runtime.handling.failures import cause_of
from declctl.runtime.handling.invocation import CallTimedOut
from declctl.runtime.isolation.child import calls
from declctl.runtime.isolation.child.channel import CallChannel, ParentChannel
from declctl.runtime.isolation.child.context import ParentLog
from declctl.runtime.isolation.parent.child_process import ChildProcess, ProcessLost
from declctl.runtime.isolation.parent.children import HandlerChildren, ProcessRegistry, Template
from declctl.runtime.isolation.protocol import (
    LENGTH,
    Answer,
    Ask,
    Begin,
    Call,
    Done,
    Loaded,
    Raised,
    Ready,
    Tell,
    encoded,
    error_from,
    failure_of,
)
from declctl.testing import until

Behaviour = Callable[[ParentChannel, int], None]
_BODY = b'{"metadata":{"name":"web","namespace":"demo"}}'
_RECORD = Record(
    "demo/web", "u\n1", b"", (), _BODY, Layout(api_version="v1", kind="Pod", positions={}, codec=FrameCodec())
)


class MadeUpTemplate:
    """Forks threads, each of which behaves as a child, or is one, and has an exit status."""

    def __init__(self, behave: Behaviour | ReconcileTarget) -> None:
        self._behave = behave
        self.forks: list[float] = []  # when

    def fork(self, _until: float | None, _stop: Future[str]) -> ChildProcess:
        """A child."""
        self.forks.append(time.monotonic())
        (talk, their_talk), (fate, their_fate) = socket.socketpair(), socket.socketpair()
        self.talk = their_talk

        def run() -> None:
            channel, status, number = ParentChannel(their_talk), 0, 0
            try:
                begin = channel.next()
                if isinstance(self._behave, ReconcileTarget):
                    assert isinstance(begin, Begin)
                    code = Mock(targets={begin.handler: self._behave}, configs={})
                    code.view_of.return_value = ObjectView
                    calls.Child(channel, begin, code).run()
                channel.send(Ready(os.getpid()))
                while isinstance(call := channel.next(), Call):
                    channel.open(call.number)
                    self._behave(channel, number := number + 1)
                    channel.close()
            except SystemExit as end:
                status = int(str(end.code))
            except (EOFError, OSError):
                pass
            with suppress(OSError):
                their_talk.shutdown(socket.SHUT_RDWR)  # its own thread reads it still
            exited.append(status)
            if status:
                their_fate.send(STATUS.pack(status, False, 0))

        def end() -> None:  # as the process that has forked it
            their_fate.recv(1)
            with suppress(OSError):
                their_talk.shutdown(socket.SHUT_RDWR)
            if not any(exited):
                with suppress(OSError):
                    their_fate.send(STATUS.pack(-9, True, 0))
            their_fate.close()

        exited: list[int] = []
        threading.Thread(target=run, daemon=True).start()
        threading.Thread(target=end, daemon=True).start()
        return ChildProcess(talk, fate, parent=os.getppid())

    def close(self) -> None:
        """No effect."""


_open: list[HandlerChildren] = []


def _made(
    behave: Behaviour | ReconcileTarget, template: Any = None, *, timeout: float | None = None, **limits: int
) -> HandlerChildren:
    plan = HandlerPlan(
        path=(),
        name="score",
        resource="pods",
        timeout=timeout,
        isolation=IsolationSpec(mode=IsolationMode.PROCESS, **limits),
    )
    begin = Begin("score", "pods", 1, ["pods"], [], False)
    template = template or MadeUpTemplate(behave)
    children = HandlerChildren(plan, begin, template, ProcessRegistry())
    children.made_up = template  # type: ignore[attr-defined]
    _open.append(children)
    return children


def _call(
    children: HandlerChildren, memo: Memo | None = None, listers: Mapping[str, Any] | None = None
) -> object:
    request = Request(key=ObjectKey("demo/web"), obj=ObjectView(_RECORD), attempt=1, causes=(), id="1")
    environment = HandlerEnvironment("score", 1, Listers(listers or {}), {}, None, None, None)  # type: ignore[arg-type]
    context = Context(environment, lambda: Memo() if memo is None else memo)
    return children.call(0, {"request": request, "ctx": context})


@pytest.fixture(autouse=True)
def _no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("signal.pidfd_send_signal", lambda *_: None)  # it would be sent to this process
    before = threading.active_count()
    yield
    while _open:
        _open.pop().close("done")
    until("threads are as before", lambda: threading.active_count() <= before)


def _returns(channel: ParentChannel, _number: int) -> None:
    channel.send(Done())


def test_a_child_that_has_ended_idle_costs_no_attempt() -> None:
    """What has killed it, such as the end of the process that it was forked from, was no call."""
    children = _made(_returns)
    for _ in range(2):
        _call(children)
        children.made_up.talk.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
    _call(children)
    assert children.statistics().ends == {"Protocol": 2}


def test_the_timeout_holds_while_the_code_is_imported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import goes on for the next call; what it finds has to be what the generation was made of."""
    answers = [Loaded([], {"score": ["a"]}, 0), None, Loaded([], {"score": ["b"]}, 0)]
    made: list[Any] = []

    def ends() -> None:
        with suppress(TimeoutError, ReloadRefused):
            template.start(0.0)  # another call; nothing is left of what has failed when a new one begins

    def imports(*_: object, output: int | None) -> Any:
        control, theirs = socket.socketpair()
        if (answer := answers.pop(0)) is not None:
            theirs.sendall(encoded(answer))
        fork = Mock(side_effect=ConnectionError(output))  # it has ended
        made.append(Mock(control=control, fork=fork, kill=theirs.close, close=ends, pid=0))
        return made[-1]

    monkeypatch.setattr("declctl.runtime.isolation.parent.children.ForkServerProcess", imports)
    declared: Any = "what is imported"
    template = Template(declared, {"score": ["a"]}, limit=60.0, log=structlog.get_logger())
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(ProcessLost, match="can't start new thread"):
            template.fork(None, Future())
    stale = template.start()
    children = _made(_returns, template, timeout=0.2)
    for _ in range(2):
        with pytest.raises(CallTimedOut, match="no process was ready"):
            _call(children)
    assert len(made) == 2
    stopped = _made(_returns, template)
    with ThreadPoolExecutor(1) as thread:
        called = thread.submit(_call, stopped)
        until("it has ended", lambda: (stopped.stop_calls("the drain is over"), called.done())[1])
    assert "the drain is over" in str(called.exception())
    made[1].kill()

    def refused() -> str:
        with pytest.raises(ProcessLost) as lost:
            template.fork(None, Future())
        return str(lost.value)

    until("it was killed, and is replaced", lambda: "score: its code has other hooks" in refused())
    answers.append(Loaded([], {"score": ["a"]}, 0))
    stale.fork.side_effect = OSError("it is closed")
    fresh = template.start()
    monkeypatch.setattr(template, "start", Mock(side_effect=[stale, fresh, fresh]))
    assert "ends at once" in refused(), "another call has found the end of the first one, and closed it"
    template.close()


@pytest.mark.parametrize(
    ("sends", "words"),
    [
        (None, "closed its connection"),
        (5, "what is no message of declctl"),
        (Ready(1), "out of turn"),
        ("late", "it was not ready within -1 s"),
    ],
)
def test_what_has_ended_a_child_is_the_failure_of_its_call(
    sends: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed connection, bytes that are no message, one out of turn or late: each is named."""
    if sends == "late":
        monkeypatch.setattr("declctl.runtime.isolation.parent.child_process.READY_SECONDS", -1.0)

    def ends(channel: ParentChannel, _number: int) -> None:
        if sends is None:
            raise EOFError
        channel.send(sends)

    children = _made(ends)
    with pytest.raises(ProcessLost, match=words):
        _call(children)
    assert list(children.statistics().ends) == ["Protocol"]


def test_a_child_that_crashes_is_replaced_with_a_growing_delay() -> None:
    """A crash loop does not fork as fast as it can; a success ends the delay."""

    def crashes_thrice(channel: ParentChannel, _number: int) -> None:
        if len(forks) < 4:
            raise SystemExit(1)
        channel.send(Done())

    children = _made(crashes_thrice)
    forks = children.made_up.forks  # type: ignore[attr-defined]
    for _ in range(3):
        with pytest.raises(ProcessLost):
            _call(children)
    _call(children)
    gaps = [after - before for before, after in pairwise(forks)]
    assert [gap >= least for gap, least in zip(gaps, (0.1, 0.2, 0.4), strict=True)] == [True] * 3


@pytest.mark.parametrize("talks", [False, True])
def test_a_call_that_exceeds_its_timeout_ends_with_its_child(talks: bool) -> None:
    """It fails at once, also if the child talks without end, instead of its stack; the next has another."""

    def hangs_first(channel: ParentChannel, _number: int) -> None:
        if len(children.made_up.forks) > 1:  # type: ignore[attr-defined]
            channel.send(Done())
            return
        while talks:
            children.made_up.talk.sendall(line)  # type: ignore[attr-defined]

    line = encoded(Tell("talker", "debug", "again" * 10_000, {}))
    children = _made(hangs_first, timeout=0.3)
    with pytest.raises(CallTimedOut, match=r"longer than its timeout of 0\.3 s; its process was ended"):
        _call(children)
    _call(children)
    assert children.statistics().ends == {"Timeout": 1}


@pytest.mark.parametrize("waits", [True, False])
def test_calls_that_have_to_end_do_so_also_while_they_wait_for_a_child(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a drain reaches the call under way, and the one that waits after a crash."""
    monkeypatch.setattr("declctl.runtime.isolation.parent.children.FIRST_DELAY", 60.0)

    def crashes_or_hangs(_channel: ParentChannel, _number: int) -> None:
        if waits:
            raise SystemExit(1)

    children = _made(crashes_or_hangs)
    if waits:
        with pytest.raises(ProcessLost):
            _call(children)
    with ThreadPoolExecutor(1) as thread:
        called = thread.submit(_call, children)
        until("it waits, or runs", lambda: waits or children.statistics().processes)
        until("it has ended", lambda: (children.stop_calls("the drain is over"), called.done())[1])
    assert "the drain is over" in str(called.exception())
    with pytest.raises(ProcessLost, match="the drain is over"):
        _call(children)  # the next hook of the same change


def test_questions_are_answered_in_the_call_and_refused_after_it() -> None:
    """The memo is read and stored, nonsense is an error of the child alone, and no call is left open."""
    asked: list[object] = []

    def asks(channel: ParentChannel, _number: int) -> None:
        opened = channel.running

        def ask(name: str, *given: object) -> object:
            try:
                return opened.ask(name, *given)
            except Exception as error:
                return str(error)

        asked.extend(
            [ask("memo"), ask("nothing"), ask("now", 1, 2), ask("read", ["lister", "no"], "get", "a")]
        )
        channel.close()
        asked.append(ask("memo"))
        channel.send(Raised(failure_of(ValueError("no")), '{"seen": 2}'))

    memo = Memo()
    memo["seen"] = memo["gone"] = 1
    children = _made(asks)
    with pytest.raises(ValueError, match="no"):  # a failure of the call, and not of the child
        _call(children, memo)
    assert (len(children.statistics().processes), children.statistics().ends) == (1, {})
    assert asked[0] == '{"seen": 1, "gone": 1}'
    assert "there is no question 'nothing'" in str(asked[1])
    assert "argument" in str(asked[2])
    assert "no resource is named 'no'" in str(asked[3])
    assert "ctx is valid for the length of its call" in str(asked[4])
    assert dict(memo) == {"seen": 2}


def test_what_a_child_can_not_send_is_shown_or_is_the_failure_of_its_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Large numbers and surrogates, in memo, log line and exception, and what no memo may hold."""
    logs: list[ParentLog] = []
    monkeypatch.setattr(calls, "send_logs", lambda channel: logs.append(ParentLog(channel, "odd")))
    monkeypatch.setattr("declctl.runtime.isolation.protocol.MOST_BYTES", 100_000)

    def reconcile(ctx: Any) -> None:
        numbers = ctx.memo["numbers"]
        numbers.append([2**70, object(), 3][len(numbers) - 1])
        if len(numbers) == 2:
            logs[0].tell("warning", "odd \udcff", {"\udcff": numbers})
            raise Conflict(2**70, "Conflict", "odd \udcff")
        ctx.memo["large"] = "x" * 200_000

    hook = Implementation("declctl_reconcile", "p", reconcile, ("ctx",), is_async=False)
    children, memo = _made(ReconcileTarget((hook,))), Memo()
    memo["numbers"] = ["\udcff"]
    with pytest.raises(Conflict, match=r"odd \\udcff"):
        _call(children, memo)
    assert memo["numbers"] == ["\udcff", 2**70]
    assert "odd \\udcff" in caplog.text
    for words in (r"ctx\.memo\['numbers'\] can't hold a list", "too much for one message"):
        with pytest.raises((TypeError, ValueError), match=words):
            _call(children, memo)
        memo["numbers"] = [1, 2, 3]
    assert (len(children.statistics().processes), children.statistics().ends) == (1, {})


def test_a_message_may_have_as_many_bytes_as_both_sides_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not one more: the other side would take it for nonsense, and end."""
    message = Ask(1, 1, "memo", ["x" * 100])
    size = len(encoded(message)) - LENGTH.size
    monkeypatch.setattr("declctl.runtime.isolation.protocol.MOST_BYTES", size)
    assert len(encoded(message)) == size + LENGTH.size
    monkeypatch.setattr("declctl.runtime.isolation.protocol.MOST_BYTES", size - 1)
    with pytest.raises(ValueError, match="too much for one message"):
        encoded(message)


class _Broken(Exception):
    def __str__(self) -> str:
        raise SystemExit


def test_a_child_reads_keys_of_a_cache_and_no_answer_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch by the official client is refused before it is asked for: no answer of it would ever come."""
    monkeypatch.setattr(calls, "send_logs", lambda _channel: None)  # it would be of this process

    def reconcile(ctx: Any) -> None:
        (key,) = ctx.listers["pods"].keys()
        found.append((key.namespace, key.name))
        ctx.sync_client.rest_client.request("GET", "http://parent/api/v1/pods?watch=true")

    hook = Implementation("declctl_reconcile", "p", reconcile, ("ctx",), is_async=False)
    found: list[tuple[str, str]] = []
    with pytest.raises(RuntimeError, match="GET /api/v1/pods does not end"):
        _call(_made(ReconcileTarget((hook,))), listers={"pods": Mock(keys=lambda: [ObjectKey("demo/web")])})
    assert found == [("demo", "web")]


def test_an_exception_arrives_with_what_declctl_needs_of_it() -> None:
    """Classes of declctl with attributes, causes and groups; of others name, text and place."""

    def sent(error: BaseException) -> BaseException:
        try:
            raise error
        except BaseException as raised:
            return error_from(failure_of(raised))

    conflict = Conflict(409, "Conflict", "others own it")
    conflict.fields = [".spec.replicas"]
    found = sent(conflict)
    assert isinstance(found, Conflict)
    assert (found.code, found.reason, list(found.fields)) == (409, "Conflict", [".spec.replicas"])
    outer = RuntimeError("later")
    outer.__cause__ = NotSynced("pods", resource="pods", is_relisted=True)
    unsynced = cause_of(sent(outer), NotSynced)
    assert unsynced is not None
    assert unsynced.is_relisted
    group = sent(ExceptionGroup("two", [InvalidWrite("a"), _Broken()]))
    assert isinstance(group, ExceptionGroup)
    assert [type(each).__name__ for each in group.exceptions] == ["InvalidWrite", "_Broken"]
    own = sent(KeyError("team"))
    assert describe_with_place(own).startswith("KeyError: 'team' (")
    assert "Traceback" in readable_traceback(own)
    assert "test_isolation.py" in readable_traceback(own)
    assert type(sent(_Broken())).__name__ == "_Broken"


def test_what_outlives_its_call_asks_nothing_of_the_next_one() -> None:
    """A thread that a hook has left must not write to the object of another call."""
    refused: list[str] = []

    def leaves_a_channel(channel: ParentChannel, number: int) -> None:
        if number == 1:
            left.append(channel.running)
        else:
            with pytest.raises(RuntimeError, match="this call has ended") as raised:
                left[0].ask("memo")
            refused.append(str(raised.value))
            channel.send(Ask(1, 1, "patch_status", [[], {}]))  # sent before the end of its call, and late
        channel.send(Done())

    left: list[CallChannel] = []
    children = _made(leaves_a_channel)
    for _ in range(2):
        _call(children)
    assert len(refused) == 1


def test_a_child_and_its_parent_do_not_wait_for_each_other() -> None:
    """A thousand questions at once, with large answers: both sides have more to say than a socket holds."""

    def asks(channel: ParentChannel, _number: int) -> None:
        opened = channel.running
        answers: list[Answer | None] = []
        for _ in range(1000):
            opened.begin(answers.append, "memo", ("x" * 10_000,))
        channel.read_until(lambda: len(answers) == 1000)
        found.append(sum("argument" in str(each) for each in answers))
        channel.send(Done())

    found: list[int] = []
    children = _made(asks, timeout=60.0)
    _call(children)
    assert found == [1000]
