"""The first minute of the README: a new manifest runs against demo pods, and an edit is live."""

import subprocess
import sys
from pathlib import Path

from processes import Declctl, environment
from waiting import until


def test_a_new_manifest_is_moving_at_once(tmp_path: Path) -> None:
    """`declctl new manifest hello`, then `declctl run hello --sandbox --churn RATE`."""
    subprocess.run(
        [sys.executable, "-m", "declctl", "new", "manifest", "hello"],
        cwd=tmp_path,
        env=environment(),
        check=True,
        timeout=60,
    )
    handlers = tmp_path / "hello" / "handlers.py"
    with Declctl(tmp_path / "hello", "--sandbox", "--churn", "20") as declctl:
        until("changes are printed", lambda: sum("Modified pods demo/" in line for line in declctl.out) > 2)
        text = handlers.read_text("utf-8")
        handlers.write_text(text.replace("{change.type}", "{change.type.upper()}!"), "utf-8")
        until("the new code is called", lambda: any("MODIFIED! pods" in line for line in declctl.out))
        assert any("generation 2: ~handler print-changes (code), 0 LIST" in line for line in declctl.err)
        assert declctl.stop() == 0
