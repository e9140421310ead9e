"""flagd's format, read strictly."""

import json

import pytest

from prolepsis.control.controls.flag_file import parse_flags
from prolepsis.core.errors import ConfigError
from tests.control.controls.flag_files import flag


def text(**flags: object) -> str:
    return json.dumps({"flags": {"speculation.enabled": flag(), **flags}})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "neither JSON nor YAML"),
        ("[1]", "the file is [1]; allowed: a mapping"),
        ('{"flag": {}}', "flag is unknown; did you mean 'flags'?"),
        ('{"flags": {}, "flagz": {}}', "flagz is unknown; did you mean 'flags'?"),
        (text(x=flag(state="on")), "flags.x.state is 'on'; allowed: ENABLED, DISABLED"),
        (text(x=flag(default="maybe")), "flags.x: defaultVariant is 'maybe'; allowed: on, off"),
        (text(x=flag(surprise=1)), "flags.x.surprise is unknown; did you mean"),
        (text(x={**flag(), "variants": {}}), "flags.x.variants is {}; allowed: one or more"),
        (text(x={**flag(), "variants": {"on": True, "off": "no"}}), "flags.x: variants are boolean, string"),
        (
            text(**{"speculation.kill": {**flag(), "variants": {"on": "y", "off": "n"}}}),
            "allowed for this flag: boolean",
        ),
        (text(x=flag({"iff": [True, "on"]})), "flags.x: targeting has the operator 'iff'; allowed: !, "),
        (text(x=flag({"if": [{"sum": [1, 2]}, "on"]})), "has the operator 'sum'"),
        (text(x=flag({"log": "tenant"})), "has the operator 'log'"),
        (text(x=flag({"if": [True, "on"], "or": []})), "has a mapping of 2 keys"),
        ('{"flags": {"a": {}, "a": {}}}', "key 'a' is given twice"),
    ],
)
def test_what_is_wrong_is_named(given: str, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse_flags(given, "flags.json")
    assert str(wrong.value).startswith("flags flags.json")
    assert said in str(wrong.value)
    assert wrong.value.param == "flags"


def test_json_and_yaml_say_the_same_and_the_version_is_of_the_content() -> None:
    yaml = """
    metadata: {version: v7}
    $evaluators:
      staff: {in: [{var: tenant}, [acme, bob]]}
    flags:
      speculation.enabled:   # variants may be called on and off here
        state: ENABLED
        variants: {on: true, off: false}
        defaultVariant: off
        targeting: {if: [{$ref: staff}, on]}
    """
    as_yaml = parse_flags(yaml, "a")
    said = {
        "flags": {"speculation.enabled": flag({"if": [{"$ref": "staff"}, "on"]}, default="off")},
        "$evaluators": {"staff": {"in": [{"var": "tenant"}, ["acme", "bob"]]}},
        "metadata": {"version": "v7"},
    }
    as_json = parse_flags(json.dumps(said), "b")
    assert as_yaml.version == as_json.version
    assert as_yaml.version.startswith("v7@")
    assert as_yaml.keys == {"speculation.enabled"}
    other = parse_flags(text(), "c")
    assert other.version != as_yaml.version.removeprefix("v7@")
