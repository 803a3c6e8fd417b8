"""The Dockerfile keeps what a restricted pod needs; it is read here, and not built."""

import re

from markdown import ROOT


def test_the_image_suits_a_restricted_pod() -> None:
    """The process has a numeric user that is not root, receives signals itself, and writes to TMPDIR only."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
    final = text[text.rindex("\nFROM ") :]
    user = re.search(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    assert user is not None
    assert int(user[1]) > 0
    assert re.search(r'^ENTRYPOINT \["declctl"\]$', final, re.MULTILINE)
    assert "TMPDIR=/tmp" in final
    assert "org.opencontainers.image.licenses" in final
    assert not re.search(r"^RUN ", final, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert bases == ["${BASE}${BASE_DIGEST}"] * 2


def test_packages_are_compiled_when_the_image_is_built() -> None:
    """A read-only root keeps no bytecode: each start would take more than twice as long."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    build = text[: text.rindex("\nFROM ")]
    compiling = r'^RUN \["/opt/declctl/bin/python", "-m", ("compileall", .*)\]$'
    (command,) = re.findall(compiling, build, re.MULTILINE)
    # Bytecode that is checked by the time of its source is useless after a copy.
    assert '"--invalidation-mode", "unchecked-hash"' in command
    assert command.endswith('"/opt/declctl/lib"')


def test_the_context_of_the_build_is_the_wheel() -> None:
    """Nothing of the checkout but the wheel is sent to the build."""
    assert (ROOT / ".dockerignore").read_text("utf-8").split() == ["*", "!dist/declctl-*.whl"]
