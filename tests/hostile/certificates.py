"""Certificates for tests, made by openssl."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path, *, days: int = 30, name: str = "localhost") -> None:
    """`tls.crt` and `tls.key` in a folder, for a server or a client called `name`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make certificates")
    line = f"req -x509 -newkey rsa:2048 -nodes -days {days} -subj /CN={name} -keyout tls.key -out tls.crt"
    environment = {**os.environ, "HOME": str(folder)}
    subprocess.run([openssl, *line.split()], cwd=folder, check=True, capture_output=True, env=environment)
