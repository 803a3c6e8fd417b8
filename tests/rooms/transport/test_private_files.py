"""Keys and certificates that are files for the official loader and in memory for everybody else."""

from pathlib import Path

import kubernetes.aio.config.kube_config  # noqa: F401 - whose files these are

from declctl.transport.credentials import PrivateFiles


def test_a_ca_stays_while_certificates_are_rotated():
    """A plugin gives a certificate every few minutes: what every login uses is never let go for it."""
    files = PrivateFiles()

    def take(content):
        path = Path(files.folder) / "content"
        path.write_bytes(content)
        return files.take(str(path))

    ca = take(b"ca")
    for number in range(40):
        take(b"certificate %d" % number)
        take(b"key %d" % number)
        assert take(b"ca") == ca
    assert Path(ca).read_bytes() == b"ca"
