"""The arguments of the application: one model, or several with settings of their own."""

from typing import Any

import pytest

from prolepsis.adapters.ray.arguments import ServeArguments, checked
from prolepsis.adapters.ray.autoscaling import Scaling
from prolepsis.core.errors import ConfigError

TWO: dict[str, Any] = {
    "engine": {"max_requests": 8},
    "server": {"keys_file": "/etc/keys.json", "replicas": 2, "store": "sqlite:////var/a.db"},
    "models": {
        "chat": {"engine": {"model": "a"}},
        "code": {"engine": {"model": "b", "max_requests": 4}, "server": {"store": "none", "max_replicas": 3}},
    },
}


def test_without_models_there_is_one() -> None:
    [model] = ServeArguments.model_validate({"engine": {"model": "a"}, "server": {"replicas": 3}}).served
    assert (model.engine.model, model.scaling) == ("a", Scaling(least=3, most=3))
    assert model.server.served_model_names == ()


def test_each_model_has_the_settings_of_all_and_its_own() -> None:
    chat, code = ServeArguments.model_validate(TWO).served
    assert (chat.engine.model, code.engine.model) == ("a", "b")
    assert (chat.engine.max_requests, code.engine.max_requests) == (8, 4)
    assert (chat.server.served_model_names, code.server.served_model_names) == (("chat",), ("code",))
    assert chat.server.keys_file == code.server.keys_file
    assert (chat.scaling, code.scaling) == (Scaling(least=2, most=2), Scaling(least=2, most=3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"front_ends": 0}, "front_ends is 0; allowed: greater than or equal to 1"),
        ({"front_end": 2}, "front_end is unknown; did you mean 'front_ends'?"),
        ({"engine": {"thread": 1}}, "engine.thread is unknown; did you mean 'threads'?"),
        ({"server": {"replicas": "many"}}, "server.replicas is 'many'; allowed: a whole number"),
        (
            {"front_ends": 2, "server": {"store": "none"}},
            "front_ends is 2, store none; allowed: a store that they share",
        ),
        ({"engine": {"engine": "vllm"}}, "engine is 'vllm'; allowed with replicas: prolepsis"),
        ({"server": {"store": "oracle://x"}}, "store is 'oracle://x'"),
        ({"models": {"a": {}, "b": {}}}, "the models a and b have the store auto; allowed: one each, or none"),
        ({"models": {"a": {"engine": {"modle": "x"}}}}, "models.a.engine.modle is unknown; did you mean 'model'?"),
    ],
)
def test_wrong_arguments_are_refused_with_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        checked(changes)
    assert str(refused.value).startswith(message)
