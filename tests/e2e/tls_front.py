"""TLS in front of a plain server: the sandbox speaks plain HTTP, and a pod speaks to its cluster over TLS."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1 and its key; returns the files."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=front"]
    files = ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*request, *files], check=True, capture_output=True)
    return certificate, key


@contextmanager
def tls_front(folder: Path, behind: tuple[str, int]) -> Iterator[tuple[tuple[str, int], Path]]:
    """Gives the address that speaks TLS, and the certificate to trust."""
    certificate, key = self_signed(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, context, behind), daemon=True).start()
        yield listening.getsockname(), certificate
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def _accept(listening: socket.socket, context: ssl.SSLContext, behind: tuple[str, int]) -> None:
    while True:
        try:
            outer, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(outer, context, behind), daemon=True).start()


def _serve(outer: socket.socket, context: ssl.SSLContext, behind: tuple[str, int]) -> None:
    with suppress(OSError):
        front, back = context.wrap_socket(outer, server_side=True), socket.create_connection(behind)
        with front, back:
            threading.Thread(target=_pump, args=(back, front), daemon=True).start()
            _pump(front, back)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError, ValueError):
        while data := source.recv(65536):
            target.sendall(data)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
