"""A page that is played: its commands are run, its edits are made, and what it shows has to come.

The blocks of a page are played in their order, in a fresh folder:

- `sh`: each line is run, and has to end with 0, or with what its comment says (`# exits 1`). `declctl run`
  goes on until the next one.
- `text`: each line has to be printed by the commands above it or, from then on, by `declctl run`. `…` stands
  for anything, and so do a time of day at the begin, a port and a number of milliseconds.
- what stands below a comment `<!-- DIRECTIVE FILE -->`: `write` and `append` make the file, `edit` changes it
  by a diff, and `part of` says that the file has these lines.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from markdown import Block, blocks
from processes import environment, find_kubectl
from waiting import until

from tests.written import WrittenLines

DIRECTIVE = re.compile(r"<!-- (write|append|edit|part of) (\S+) -->")
_TIME = re.compile(r"^\d\d:\d\d:\d\d ")
_VARYING = re.compile(r"…|(?<=127\.0\.0\.1:)\d+|\d+(?= ms)")
_SKIPPED = ("pip install", "git clone")


def section(page: Path, first: str, last: str = "") -> list[Block]:
    """The blocks of a page from one heading to before another one, or to the end."""
    lines = page.read_text("utf-8").splitlines()
    begin, end = lines.index(first), lines.index(last) if last else len(lines)
    return [block for block in blocks(page) if begin < block.line - 1 < end]


def edit(folder: Path, block: Block) -> None:
    """Make the change of a block below a directive, or compare the part of a file."""
    directive = DIRECTIVE.fullmatch(block.above)
    assert directive is not None, f"{block}: no directive is above it"
    what, path = directive[1], folder / directive[2]
    if what == "write":
        path.write_text(block.text, "utf-8")
        return
    text = path.read_text("utf-8")
    if what == "append":
        path.write_text(f"{text}\n\n{block.text}", "utf-8")
        return
    old, new = _sides(block.text) if what == "edit" else (block.text, block.text)
    assert text.count(old) == 1, f"{block}: {path.name} does not have these lines once:\n{old}"
    path.write_text(text.replace(old, new), "utf-8")


class Walkthrough:
    """A reader of a page, who has a folder and two terminals."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self._programs = folder / ".programs"
        self._programs.mkdir()
        self._add_program("declctl", sys.executable, "-m", "declctl")
        self._add_program("python", sys.executable)
        self._add_program("kubectl", find_kubectl())
        path = f"{self._programs}{os.pathsep}{os.environ['PATH']}"
        self._env = environment(PATH=path, KUBECACHEDIR=str(folder / ".cache"), **env)
        self._run: subprocess.Popen[bytes] | None = None
        self._written = WrittenLines()
        self._begin = 0  # how many lines of `declctl run` came before the step that is played
        self._printed: list[str] = []  # by the commands of the step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if kind is not None:  # pytest shows it beside the failure
            print("\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        """What `declctl run` has printed so far."""
        return self._written.read()

    def play(self, steps: Iterable[Block]) -> None:
        """Do what the blocks say, and compare what they show."""
        for block in steps:
            if block.language == "text":
                for line in block.text.splitlines():
                    self._expect(line, f"{block}: {line!r} is printed")
                continue
            self._begin = len(self.lines)
            if block.language == "sh":
                self._printed = []
                for line in block.text.splitlines():
                    self.command(line)
            elif DIRECTIVE.fullmatch(block.above):
                edit(self.folder, block)

    def command(self, line: str) -> None:
        """Run one line of a shell."""
        command, _, comment = line.partition("#")
        words = shlex.split(command)
        if command.startswith(_SKIPPED):
            return
        if words[0] == "cd":
            self.folder /= words[1]
        elif words[0] == "export":
            name, _, value = words[1].partition("=")
            self._env[name] = value.replace("$PWD", str(self.folder))
        elif words[:2] == ["declctl", "run"]:
            self.stop()
            self._written, self._begin = WrittenLines(), 0
            self._run = subprocess.Popen(
                [sys.executable, "-m", *words, "--admin", "127.0.0.1:0"],
                cwd=self.folder,
                env=self._env,
                stdout=self._written.file,
                stderr=subprocess.STDOUT,
            )
        else:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self._env,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            expected = int(comment.split()[-1]) if comment.strip().startswith("exits ") else 0
            assert done.returncode == expected, f"{line}\n{done.stdout}{done.stderr}"
            self._printed += f"{done.stdout}{done.stderr}".splitlines()

    def stop(self) -> None:
        """Ctrl-C in the first terminal. The process ends with 0."""
        if self._run is not None:
            self._run.terminate()
            assert self._run.wait(60) == 0
            self._run = None

    def _expect(self, line: str, what: str) -> None:
        pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in _VARYING.split(_TIME.sub("", line))]
        pattern = re.compile(r".*".join(pieces))

        def printed() -> bool:
            assert self._run is None or self._run.poll() is None, "\n".join(self.lines)
            return any(map(pattern.search, (*self._printed, *self.lines[self._begin :])))

        until(what, printed)

    def _add_program(self, name: str, *command: str) -> None:
        file = self._programs / name
        file.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', "utf-8")
        file.chmod(0o755)


def _sides(diff: str) -> tuple[str, str]:
    """The lines of a diff before and after it."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if not line.startswith("+"))
    return old, "".join(line[1:] for line in lines if not line.startswith("-"))
