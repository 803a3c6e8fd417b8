"""The service account of a pod."""

import asyncio
from datetime import UTC, datetime, timedelta

from kubernetes.aio.client import Configuration

from declctl.transport.config import ServiceAccount


def test_a_rotated_token_is_read(tmp_path, monkeypatch, certificates):
    """When the kubelet swaps the projected token, the next reading has the new one, within a minute."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "ca.crt").write_bytes((certificates / "ca.crt").read_bytes())
    for name in ("..1", "..2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(f"token{name}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "token").symlink_to("..data/token")
    account, configuration = ServiceAccount(tmp_path), Configuration()
    asyncio.run(account.load(configuration, afresh=False))
    assert (configuration.host, configuration.api_key["BearerToken"]) == (
        "https://[fd00::1]:443",
        "bearer token..1",
    )
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    asyncio.run(account.load(configuration, afresh=False))
    assert configuration.api_key["BearerToken"] == "bearer token..2"
    assert account.good_for(datetime.now(UTC)) == timedelta(minutes=1)
