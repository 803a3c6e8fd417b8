"""A plugin's config is checked by the schema that it returns."""

import pytest

from declctl.errors import EntryPointError
from declctl.hooks.plugin_config import PluginConfigError, check_config

SCHEMA = {
    "type": "object",
    "required": ["channel"],
    "additionalProperties": False,
    "properties": {
        "channel": {"type": "string", "pattern": "^#"},
        "limits": {"type": "array", "items": {"type": "integer", "minimum": 1, "multipleOf": 2}},
        "mode": {"enum": ["a", "b"]},
    },
}


def test_a_value_that_is_known_later_counts_as_present_and_matches() -> None:
    """It is in a Secret; a key that the schema does not have is wrong whatever its value."""
    token = {"type": "string", "pattern": "^tok", "maxLength": 3}
    schema = {"required": ["token"], "properties": {"token": token}, "additionalProperties": False}
    check_config(schema, {}, known_later=["token"])
    with pytest.raises(PluginConfigError) as wrong:
        check_config(schema, {}, known_later=["token", "tokne"])
    assert [fault.path for fault in wrong.value.faults] == [("tokne",)]


def test_a_config_that_fits_passes():
    """Nothing is said."""
    check_config(SCHEMA, {"channel": "#ops", "limits": [2, 4], "mode": "a"})


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        ({}, (), "'channel' is a required property"),
        (
            {"channel": "#a", "chanel": 1},
            ("chanel",),
            "unknown key 'chanel'",
        ),
        ({"channel": 5}, ("channel",), 'this is not of type "string"'),
        ({"channel": "s3cret"}, ("channel",), 'this doesn\'t match the pattern "^#"'),
        ({"channel": "#a", "limits": [2, 0]}, ("limits", 1), "this is less than 1"),
        (
            {"channel": "#a", "limits": [3]},
            ("limits", 0),
            "this is no multiple of 2",
        ),
        ({"channel": "#a", "mode": "s3cret"}, ("mode",), 'this is none of ["a", "b"]'),
    ],
)
def test_a_config_that_does_not_fit_is_told_with_its_place(config, path, message):
    """The path leads to the line in the manifest; values are not shown, because they may be secret."""
    with pytest.raises(PluginConfigError) as caught:
        check_config(SCHEMA, config)
    (fault,) = caught.value.faults
    assert (fault.path, fault.message) == (path, message)


def test_all_faults_of_a_config_are_told_at_once():
    """Who has made three slips mends three, and does not validate three times."""
    config = {"chanel": "#a", "limits": [0, 2, 3], "mode": "c"}
    with pytest.raises(PluginConfigError) as caught:
        check_config(SCHEMA, config)
    assert {(fault.path, fault.suggestion) for fault in caught.value.faults} == {
        ((), None),  # channel is missing
        (("chanel",), 'did you mean "channel"?'),
        (("limits", 0), None),
        (("limits", 2), None),
        (("mode",), None),
    }


def test_of_alternatives_the_nearest_says_what_is_wrong():
    """That a value fits none of two schemas helps nobody; that it is no text does."""
    schema = {"properties": {"to": {"anyOf": [{"type": "array"}, {"type": "string", "pattern": "^#"}]}}}
    with pytest.raises(PluginConfigError) as caught:
        check_config(schema, {"to": "ops"})
    assert [fault.message for fault in caught.value.faults] == ['this doesn\'t match the pattern "^#"']


def faults_of(schema, config):
    """The faults of a config by its schema."""
    with pytest.raises(PluginConfigError) as caught:
        check_config(schema, config)
    return caught.value.faults


def test_all_faults_of_the_nearest_alternative_are_told():
    """A webhook with two slips in it is not told of one, and not of what an email would need."""
    webhook = {"required": ["url"], "additionalProperties": False, "properties": {"url": {}, "tls": {}}}
    email = {"required": ["to", "subject", "sender"], "properties": {"kind": {"const": "email"}}}
    schema = {"properties": {"send": {"oneOf": [webhook, email]}}}
    found = faults_of(schema, {"send": {"urls": 1, "tsl": 2}})
    assert sorted((fault.where, fault.message) for fault in found) == [
        ("config.send", "'url' is a required property"),
        ("config.send", "unknown key 'tsl'"),
        ("config.send", "unknown key 'urls'"),
    ]


@pytest.mark.parametrize(
    ("schema", "value", "suggestion"),
    [
        ({"enum": ["text", "json"]}, "JOSN", 'did you mean "json"?'),
        ({"enum": ["text", "json"]}, "protobuf", None),
        ({"type": "string"}, 5, "put the value in quotes"),
        ({"type": "string"}, True, "put the value in quotes"),
        ({"type": "integer"}, "5", "remove the quotes"),
        ({"type": ["number", "null"]}, "-0.5", "remove the quotes"),
        ({"type": "boolean"}, "true", "remove the quotes"),
        ({"type": "integer"}, "five", None),
        ({"type": "array"}, "a", "write a list, such as [a, b]"),
        (
            {"minLength": 3, "description": "The channel,\n  with its #."},
            "#",
            "the plugin says of it: The channel, with its #.",
        ),
    ],
)
def test_a_fault_comes_with_what_to_write(schema, value, suggestion):
    """A suggestion shows words of the schema, and never the value."""
    (fault,) = faults_of({"properties": {"it": schema}}, {"it": value})
    assert (fault.where, fault.suggestion) == ("config.it", suggestion)


def test_a_missing_key_is_described():
    """The description of the schema says what belongs there."""
    schema = {"required": ["to", "by"], "properties": {"to": {"description": "An address."}, "by": {}}}
    assert [(fault.message, fault.suggestion) for fault in faults_of(schema, {})] == [
        ("'to' is a required property", "add to: An address."),
        ("'by' is a required property", None),
    ]


def test_a_place_in_a_list_is_written_as_in_python():
    """`where` is what a user looks for in the manifest."""
    schema = {"properties": {"to": {"items": {"properties": {"port": {"type": "integer"}}}}}}
    (fault,) = faults_of(schema, {"to": [{"port": 1}, {"port": None}]})
    assert fault.where == "config.to[1].port"


@pytest.mark.parametrize("schema", [{"type": "strange"}, None, [1], {"$ref": "#/nowhere"}])
def test_a_schema_that_is_none_is_the_plugins_fault(schema):
    """The person's config is not blamed."""
    with pytest.raises(EntryPointError, match="is not a JSON Schema") as caught:
        check_config(schema, {"a": 1})
    assert caught.value.code == "DCL083"


def test_another_draft_may_be_chosen():
    """`$schema` decides, as everywhere."""
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 5, "exclusiveMaximum": True}
    with pytest.raises(PluginConfigError):
        check_config(schema, 5)
