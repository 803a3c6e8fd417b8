"""`GET /why` on the admin address: who wrote the fields of an object."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from declctl.errors import Forbidden, NotFound, UsageError
from declctl.objects import FieldPathError
from declctl.runtime.reporting.why import ExplainedWrite, OwnedField, WriteExplanation
from tests.rooms.admin.conftest import EVERYWHERE

WRITE = ExplainedWrite(
    time=datetime(2026, 1, 2, 2, tzinfo=UTC),
    verb="apply",
    result="succeeded",
    manager="declctl/guard/web",
    handler="web",
    generation=3,
    called_for="team-a/shop",
    request_id="r1",
    causes=("Modified webapps team-a/shop (Watch)",),
    resource_version="7",
    seconds=0.01,
    retries=0,
    error="",
)
FOUND = WriteExplanation(
    kind="v1 ConfigMap",
    resource="configmaps",
    key="team-a/settings",
    exists=True,
    uid="u",
    resource_version="9",
    fields=(OwnedField("data.a", "declctl/guard/web", "Apply", "", "2026-01-02T02:00:00Z", "web", WRITE),),
    writes=(WRITE,),
)


def test_the_answer_has_fields_and_writes(ask: Callable, runtime) -> None:
    """Each field with its manager, its handler, its generation and the cause of the call."""
    runtime.told_why = FOUND
    answer = ask("/why/configmaps/team-a/settings?field=data.a")
    assert (answer.status, runtime.asked_why) == (200, [("configmaps", "team-a/settings", "data.a")])
    (field,) = answer.json["fields"]
    assert (field["path"], field["handler"], field["write"]["generation"]) == ("data.a", "web", 3)
    assert field["write"]["causes"] == ["Modified webapps team-a/shop (Watch)"]
    assert answer.json["writes"][0]["calledFor"] == "team-a/shop"
    assert answer.json["writes"][0]["time"] == "2026-01-02T02:00:00Z"


def test_a_resource_may_be_named_with_its_group_and_version(ask: Callable, runtime) -> None:
    """As kubectl's full form, whose slashes are escaped."""
    runtime.told_why = FOUND
    assert ask("/why/apps%2Fv1%2Fdeployments/team-a/web").status == 200
    assert runtime.asked_why == [("apps/v1/deployments", "team-a/web", "")]


@pytest.mark.parametrize(
    ("told", "status", "sentence"),
    [
        (UsageError("'a b' is no name of a resource"), 400, "'a b' is no name of a resource"),
        (FieldPathError("'spec[' has a bracket without its end", 5), 400, "bracket"),
        (NotFound(404, "NotFound", "the server serves no shoes"), 404, "serves no shoes"),
        (Forbidden(403, "Forbidden", "may not get"), 502, "may not get"),
        (replace(FOUND, exists=False, fields=(), writes=()), 404, "The cluster has no v1 ConfigMap"),
    ],
)
def test_what_can_not_be_answered_is_a_sentence(ask: Callable, runtime, told, status, sentence) -> None:
    """A wrong name, a wrong field, a missing object, and a right that the controller lacks."""
    runtime.told_why = told
    answer = ask("/why/configmaps/team-a/settings")
    assert answer.status == status
    assert sentence in answer.json["error"]


def test_an_object_that_is_gone_has_its_writes(ask: Callable, runtime) -> None:
    """The delete is one of them."""
    runtime.told_why = replace(FOUND, exists=False, fields=())
    assert ask("/why/configmaps/team-a/settings").status == 200


def test_reasons_are_behind_the_token(ask: Callable, runtime) -> None:
    """They have keys and errors, as reads of the cache."""
    runtime.told_why = FOUND
    assert ask("/why/configmaps/a/b", address=EVERYWHERE).status in (401, 403)
    assert ask("/why/configmaps/a/b", token="secret").status in (401, 403)
    assert not runtime.asked_why


def test_before_the_first_generation_the_answer_is_to_wait(ask: Callable, runtime) -> None:
    """The names of the manifest's resources are not known yet."""
    runtime.say(generation=0)
    assert ask("/why/configmaps/a/b").status == 503
