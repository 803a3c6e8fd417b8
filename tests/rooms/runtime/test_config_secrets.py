"""Keys of Secrets for the configs of plugins: what is read, and what a refusal says."""

import base64

import pytest

from declctl.errors import ApiError, Forbidden, NotFound, ServerError
from declctl.runtime.checking.config_secrets import SecretReader, UnreadSecretKey
from declctl.runtime.checking.declaration import SecretKey

KEY = SecretKey(name="pager", key="token")
ACCOUNT = 'User "system:serviceaccount:team-a:guard" cannot get resource "secrets"'
GRANT = "declctl generate rbac MANIFEST --namespace team-a --name guard | kubectl apply --server-side -f -"
RULE = '{apiGroups: [""], resources: ["secrets"], resourceNames: ["pager"], verbs: ["get"]}'


def reader(answer: dict | ApiError) -> SecretReader:
    """Of namespace team-a, whose API server gives this answer, once."""
    answers = [answer]

    async def request(method: str, path: str) -> dict:
        assert (method, path) == ("GET", "/api/v1/namespaces/team-a/secrets/pager")
        found = answers.pop()
        if isinstance(found, ApiError):
            raise found
        return found

    return SecretReader(request, "team-a")


async def test_a_value_has_no_line_end_and_its_secret_is_read_once() -> None:
    """As that of a file; two keys of one Secret are of one version."""
    read = reader({"data": {"token": base64.b64encode(b"tok-1\n\n").decode()}})
    assert [await read.value(KEY) for _ in range(2)] == ["tok-1", "tok-1"]


@pytest.mark.parametrize(
    ("answer", "message", "advice"),
    [
        (
            NotFound(404, "NotFound", "no"),
            "the Secret team-a/pager is not in the cluster",
            "create it: `kubectl create secret generic pager --namespace team-a --from-file token=FILE`",
        ),
        (
            Forbidden(403, "Forbidden", ACCOUNT),
            "the Secret team-a/pager may not be read: ",
            f"grant it: `{GRANT}`",
        ),
        (
            Forbidden(403, "Forbidden", "no"),
            "the Secret team-a/pager may not be read: ",
            f"grant it by a Role of the namespace team-a with the rule {RULE}",
        ),
        (
            ServerError(503, "ServiceUnavailable", "no"),
            "the Secret team-a/pager can't be read: ",
            "check that the API server answers",
        ),
        ({"data": {"b": "eA==", "a": "eA=="}}, "team-a/pager has no key token", "its keys are: a, b"),
        ({"data": {"token": "/w=="}}, "is not UTF-8", "name a key whose value is text"),
    ],
    ids=["missing", "forbidden to an account", "forbidden to a person", "no answer", "no key", "no text"],
)
async def test_what_can_not_be_read_is_said_with_what_to_do(answer, message: str, advice: str) -> None:
    """Where it is, and the command or the rule that mends it."""
    with pytest.raises(UnreadSecretKey) as caught:
        await reader(answer).value(KEY)
    assert message in caught.value.message
    assert advice in caught.value.suggestion
