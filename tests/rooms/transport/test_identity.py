"""Names to show."""

import base64
import json

import pytest

from declctl.transport.config import token_subject


def encoded(claims):
    return base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")


def test_a_service_account_is_shown_under_the_name_that_rbac_knows():
    """In a cluster, `run` says as whom it speaks, so that a missing RoleBinding can be written."""
    subject = "system:serviceaccount:team-a:guard"
    assert token_subject(f"bearer head.{encoded({'sub': subject})}.tail") == subject


NO_SUBJECT = [f"h.{encoded(claims)}.t" for claims in ([], {"sub": 3}, {})]


@pytest.mark.parametrize("token", ["", "opaque", "a.b.c", "h.\xff.t", *NO_SUBJECT])
def test_a_token_that_is_no_jwt_has_no_name(token):
    """Opaque tokens are fine: there is just no name to show."""
    assert token_subject(token) is None
