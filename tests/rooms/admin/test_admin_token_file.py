"""A token in a file: it is replaced while the process runs, and a file that can't be used opens nothing."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from declctl.admin import StaticToken, TokenFile, from_environment, front, serve
from declctl.admin.authorization import AccessVerdict
from declctl.errors import UsageError
from declctl.manifest.model import AdminSpec
from declctl.testing import Logged
from tests.rooms.admin.conftest import LOOPBACK

CACHE = "/cache/pods"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_replaced_token_counts_at_once_and_the_old_one_no_more(
    tmp_path: Path, runtime, http: Callable
):
    """After a rotation, whoever has kept the old token can't read or reload any more."""
    file, log = tmp_path / "token", Logged()
    file.write_text("first\n")
    async with serve(runtime, LOOPBACK, authorizer=TokenFile(file, log)) as bound:

        async def status(token: str) -> int:
            return (await http(bound, CACHE, headers=bearer(token))).status

        before = [await status("first"), await status("second")]
        (tmp_path / "new").write_text("second\n")
        (tmp_path / "new").replace(file)
        assert [*before, await status("first"), await status("second")] == [200, 401, 401, 200]
    assert [line for line in log.events() if "was replaced" in line] == [
        f"admin address: the token in {file} was replaced; the one before it is refused now"
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("tok\u00e9n", "no header can carry"),
        ("x" * 70_000, "70,000 bytes"),
    ],
)
async def test_a_file_that_cannot_be_used_opens_nothing_and_is_told(
    tmp_path: Path, runtime, http: Callable, content: str | None, why: str
):
    """A Secret that is missing or empty does not open a loopback address, and the log says why."""
    log, told = Logged(), Logged()
    if content is not None:
        (tmp_path / "token").write_text(content)
    runtime.admin = AdminSpec(bind_address=LOOPBACK, token_file="token")
    async with serve(runtime, LOOPBACK, authorizer=TokenFile(tmp_path / "token", log)) as bound:
        for headers in ({}, bearer(""), bearer("x"), bearer("x")):
            assert (await http(bound, CACHE, headers=headers)).status == 401
    assert len([line for line in log.events() if why in line]) == 1
    async with front(folder=tmp_path, log=told)(runtime):
        assert any(why in line and "every token is refused" in line for line in told.events())


async def test_a_file_that_comes_back_is_used_again(tmp_path: Path):
    """A Secret that was missing for a moment is no reason for a restart; the log never has a token."""
    file, log = tmp_path / "token", Logged()
    authorizer = TokenFile(file, log)
    assert (await authorizer.decide("right", "get", "/")).verdict is AccessVerdict.UNAUTHENTICATED
    file.write_text("right")
    assert (await authorizer.decide("right", "get", "/")).verdict is AccessVerdict.ALLOWED
    assert log.events()[-1] == f"admin address: the token file {file} can be used again"
    before = len(log.events())
    for content in ("the-marker", "another-marker", "\u00e9marker", "", "x-marker"):
        file.write_text(content)
        await authorizer.read()
    assert len(log.events()) >= before + 4
    assert "marker" not in "".join(log.events()).replace(str(file), "")


def test_the_environment_names_a_token_or_a_file(tmp_path: Path):
    """Both at once is a mistake that is told, as nobody could say which one counts."""
    token, file = {"DECLCTL_ADMIN_TOKEN": "x"}, {"DECLCTL_ADMIN_TOKEN_FILE": str(tmp_path / "token")}
    assert from_environment({}) is from_environment({"DECLCTL_ADMIN_TOKEN": " \n"}) is None
    assert isinstance(from_environment(token), StaticToken)
    found = from_environment(file)
    assert isinstance(found, TokenFile)
    assert found.path == tmp_path / "token"
    with pytest.raises(UsageError, match="Both DECLCTL_ADMIN_TOKEN and DECLCTL_ADMIN_TOKEN_FILE"):
        from_environment({**token, **file})


async def test_a_mount_that_hangs_holds_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """However many requests come meanwhile, other work finds its threads; and then the file is read again."""
    file, log, hangs = tmp_path / "token", Logged(), threading.Event()
    file.write_text("right")

    def hanging(path: Path) -> bytes:
        assert hangs.wait(30)
        return path.read_bytes()

    monkeypatch.setattr("declctl.admin.authorization.FILE_SECONDS", 0.05)
    monkeypatch.setattr("declctl.admin.authorization.read_token", hanging)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    authorizer = TokenFile(file, log)
    async with asyncio.timeout(30):
        for _ in range(3):  # the second and the third time, the first read hangs already
            asked = (authorizer.decide("right", "get", "/") for _ in range(20))
            decisions = await asyncio.gather(*asked)
            assert {each.verdict for each in decisions} == {AccessVerdict.UNAUTHENTICATED}
        assert [each.name for each in threading.enumerate()].count("declctl-token-file") == 1
        assert await asyncio.to_thread(lambda: "free") == "free"
        hangs.set()
        while (await authorizer.decide("right", "get", "/")).verdict is not AccessVerdict.ALLOWED:
            await asyncio.sleep(0)  # so that the end of the hanging read arrives
    first, last = log.events()
    assert first.endswith("so every token is refused: reading takes longer than 0.05 s")
    assert last == f"admin address: the token file {file} can be used again"


async def test_each_request_reads_the_file_after_it_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A request that waits for the read of another one is not decided by a token that was replaced before."""
    file = tmp_path / "token"
    file.write_text("first")
    begun, go_on = threading.Event(), threading.Event()

    def reading(path: Path) -> bytes:
        found = path.read_bytes()
        begun.set()
        assert go_on.wait(30)
        return found

    monkeypatch.setattr("declctl.admin.authorization.read_token", reading)
    authorizer = TokenFile(file)
    before = asyncio.create_task(authorizer.decide("first", "get", "/"))
    await asyncio.to_thread(begun.wait, 30)
    file.write_text("second")
    after = asyncio.create_task(authorizer.decide("first", "get", "/"))
    await asyncio.sleep(0)
    go_on.set()
    verdicts = [each.verdict for each in await asyncio.gather(before, after)]
    assert verdicts == [AccessVerdict.ALLOWED, AccessVerdict.UNAUTHENTICATED]
