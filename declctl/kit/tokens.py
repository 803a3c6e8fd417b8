"""The token of the admin address: the variables that name it, its file, and what a header can carry."""

from pathlib import Path
from typing import Final

from declctl.kit.files import TOKEN_BYTES, read_file_in_time

TOKEN_VARIABLE: Final = "DECLCTL_ADMIN_TOKEN"
TOKEN_FILE_VARIABLE: Final = "DECLCTL_ADMIN_TOKEN_FILE"


def read_token(path: Path) -> bytes:
    """What a token file has, without the white space around it. Blocks, with a deadline. Raises OSError."""
    return read_file_in_time(path, most=TOKEN_BYTES, name="declctl-token").strip()


def fits_header(token: str) -> bool:
    """Whether a header of HTTP can carry the token."""
    return token.isascii() and token.isprintable()
