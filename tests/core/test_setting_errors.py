"""Errors of constructors: the same words as errors of a config."""

import pydantic
import pytest
from pydantic_core import PydanticCustomError

import tardigrad as td
from tardigrad.core.setting import Setting


class Odd(Setting):
    number: int = 1

    @pydantic.field_validator("number")
    @classmethod
    def _odd(cls, number):
        if number % 2 == 0:
            raise PydanticCustomError("even", "is even")
        return number


@pytest.mark.parametrize(
    ("make", "says", "place"),
    [
        (lambda: td.Local(lrr=1), "Local: unknown key 'lrr'; did you mean 'lr'?", ("lrr",)),
        (lambda: td.Local(lr=-1), "Local: lr: must be greater than 0 (got -1)", ("lr",)),
        (lambda: td.Local(epochs=1, steps=2), "Local: give epochs or steps, not both", ()),
        (
            lambda: td.Config(algorithm={"kind": "fedbuff", "momentun": 1}),
            "Config: unknown key 'algorithm.momentun'; did you mean 'momentum'?",
            ("algorithm", "fedbuff", "momentun"),
        ),
        (lambda: Odd(number=2), "Odd: number: is even (got 2)", ("number",)),
    ],
)
def test_a_constructor_names_the_key_and_what_would_be_right(make, says, place):
    with pytest.raises(td.SettingError) as caught:
        make()
    assert str(caught.value) == says
    assert isinstance(caught.value, td.ConfigError)
    assert isinstance(caught.value, pydantic.ValidationError)
    assert caught.value.errors()[0]["loc"] == place
    assert caught.value.exit_code == 2


def test_errors_of_several_keys_are_all_named():
    with pytest.raises(td.ConfigError, match=r"Stop: trips: must be .*; Stop: steps: must be"):
        td.Stop(trips=1.5, steps="many")


def test_unknown_keywords_of_run_are_explained_as_unknown_keys():
    with pytest.raises(td.ConfigError, match="unknown key 'stopp'; did you mean 'stop'"):
        td.run(stopp=td.Stop(trips=1))
