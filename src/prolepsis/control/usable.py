"""From a text to a policy that may be used."""

from prolepsis.control.check import Known, check
from prolepsis.control.policy import Policy
from prolepsis.control.reading import InvalidPolicy, located, parse_policy


def usable_policy(text: str, name: str, known: Known) -> Policy:
    """Return the policy that `text` holds; `name` is what errors call it.

    Raises `InvalidPolicy` with all that is wrong with its shape, else with all errors that `check` finds.
    """
    policy, document = parse_policy(text, name)
    errors = [one for one in located(check(policy, known), document) if one.severity == "error"]
    if errors:
        raise InvalidPolicy(name, errors)
    return policy
