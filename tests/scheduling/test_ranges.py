"""Ranges of parameters that tuning may search, and what a policy is said to know."""

from typing import ClassVar

import pytest

from fedlane import BatchPolicy, Policy, policies
from fedlane.scheduling import lift
from fedlane.scheduling.policy import LEAGUES
from fedlane.scheduling.ranges import Choices, ParameterRange
from fedlane.scheduling.registry import parameters
from fedlane.validate import InputError

BUILT_IN = {name: policy for name, policy in policies().items() if policy.__module__.startswith("fedlane.")}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_end_of_every_range_makes_a_policy(name):
    policy = BUILT_IN[name]
    assert set(policy.ranges) <= set(parameters(policy))
    for key, values in policy.ranges.items():
        ends = values.values if isinstance(values, Choices) else (values.low, values.high)
        for value in ends:
            default = parameters(policy)[key]
            assert getattr(policy(**{key: type(default)(value)}), key) == value
            if isinstance(values, ParameterRange):
                assert values.integer == isinstance(default, int)


def test_policies_that_learn_delays_are_tuned_and_yardsticks_are_not():
    tuned = {name for name, policy in BUILT_IN.items() if policy.ranges}
    untuned = {name for name in BUILT_IN if not BUILT_IN[name].ranges}
    assert untuned == {"age-of-update", "clairvoyant", "genie", "proportional-fair", "random", "round-robin"}
    assert {"lane", "mamab-om", "oort", "thompson"} <= tuned


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_a_policy_knows_follows_from_what_it_requires(name):
    policy = BUILT_IN[name]
    assert policy.knows in LEAGUES
    sees_channels = bool({"channel_state", "distributions"} & policy.requires)
    assert (policy.knows == "channels") == sees_channels
    assert (policy.knows == "losses") == ("losses" in policy.requires and not sees_channels)


def test_what_a_user_s_policy_knows():
    class Plain(BatchPolicy):
        name = "plain"

    class WithLosses(Plain):
        requires = frozenset({"losses", "sizes"})

    class Heir(WithLosses):
        name = "heir"

    class Single(Policy):
        requires = frozenset({"channel_state"})
        ranges: ClassVar = {"x": Choices((1, 2))}
        name = "single"

        def init(self, problem):
            return {}

        def select(self, state, context, rng):
            return context.available - 2

    assert [kind.knows for kind in (Plain, WithLosses, Heir)] == ["delays", "losses", "losses"]
    assert lift(Single()).knows == "channels"
    assert lift(Single()).ranges == Single.ranges


@pytest.mark.parametrize(
    ("low", "high", "scale", "integer", "message"),
    [
        (1.0, 1.0, "linear", False, "finite ends, the smaller one first, got 1.0 and 1.0"),
        (0.0, float("inf"), "linear", False, "finite ends"),
        (0.0, 1.0, "log", False, "must begin above 0, got 0.0"),
        (0.0, 1.0, "cubic", False, "'linear' or 'log', got 'cubic'"),
        (0.5, 2, "linear", True, "whole ends, got 0.5 and 2"),
    ],
)
def test_bad_ranges(low, high, scale, integer, message):
    with pytest.raises(InputError, match=message):
        ParameterRange(low, high, scale, integer)


def test_no_choices():
    with pytest.raises(InputError, match="at least one value"):
        Choices(())
