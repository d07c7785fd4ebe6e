"""Policies by name, and the contract checker."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fedlane import check_policy
from fedlane.delay_predictions import PredictedDelays
from fedlane.matching import greedy_matching
from fedlane.rounds import PolicyError
from fedlane.scheduling import BatchPolicy, Choice, Policy, lift, make_policy, register
from fedlane.scheduling.registry import resolved_parameters, split_name
from fedlane.validate import InputError


def test_names_with_and_without_parameters():
    assert split_name("lane") == ("lane", {})
    assert split_name("mamab-om:V=100,queue_weight=success") == ("mamab-om", {"V": "100", "queue_weight": "success"})
    assert split_name("my.module:Mine") == ("my.module:Mine", {})
    assert split_name("my.module:Mine:a=1") == ("my.module:Mine", {"a": "1"})


def test_inline_parameters_override_settings_which_override_defaults():
    settings = {"mamab-om": {"V": 7, "exploration": 1.0}}
    policy = make_policy("mamab-om:V=3", settings)
    assert resolved_parameters(policy) == {
        "V": 3.0,
        "exploration": 1.0,
        "T0": 100.0,
        "quota_slack": 0.0,
        "queue_weight": "additive",
    }


def test_the_contract_s_defaults():
    assert resolved_parameters(make_policy("lane-2026")) == {"V": 5.0, "exploration": 0.03, "quota_slack": 0.125}
    defaults = {"V": 7.0, "exploration": 0.6, "quota_slack": 0.125}
    defaults |= {"forgetting": 0.0, "alarm": 8.0, "idle_channels": False}
    assert resolved_parameters(make_policy("lane")) == defaults
    assert resolved_parameters(make_policy("genie")) == {"V": 7.0, "exploration": 0.6, "quota_slack": 0.125}
    assert resolved_parameters(make_policy("single-ucb")) == {"beta": 0.1}
    assert resolved_parameters(make_policy("ucb-index")) == {"exploration": 0.1}
    assert resolved_parameters(make_policy("mamab-gmba"))["V"] == 100.0
    assert resolved_parameters(make_policy("random")) == {}


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("lne", {}, r"unknown policy 'lne' \(did you mean 'lane'\?\)"),
        ("zzzzzz", {}, "unknown policy 'zzzzzz': choose from age-of-update, clairvoyant, cs-ucb-q, fedcs, genie"),
        ("lane:T0=3", {}, "policy lane has no parameter 'T0'"),
        ("lane:explration=3", {}, r"no parameter 'explration' \(did you mean 'exploration'\?\)"),
        ("lane", {"lane": {"X": 1}}, "policy lane has no parameter 'X'"),
        ("lane", {"lann": {"V": 1}}, r"unknown policy 'policies.lann' \(did you mean 'lane'\?\)"),
        ("lane:V=high", {}, "policy lane: V must be a finite number, got 'high'"),
        ("lane:V=nan", {}, "policy lane: V must be a finite number, got 'nan'"),
        ("lane:V=-1", {}, "policy lane: V must be at least 0, got -1"),
        ("lane:V", {}, "policy 'lane:V' cannot be imported"),
        ("lane:V=1,exploration", {}, "'exploration' must have the form key=value"),
        ("lane:quota_slack=1", {}, "quota_slack must be at least 0 and less than 1, got 1"),
        ("mamab-om:T0=0", {}, "T0 must be greater than 0, got 0"),
        ("mamab-om:queue_weight=sum", {}, "queue_weight must be 'additive' or 'success', got 'sum'"),
        ("no_such_module:Thing", {}, "cannot be imported"),
        ("math:pi", {}, "must be a subclass of Policy"),
    ],
)
def test_bad_names_get_one_clear_line(text, settings, message):
    with pytest.raises(ValueError, match=message) as error:
        make_policy(text, settings)
    assert "\n" not in str(error.value)


@dataclass(frozen=True)
class First(Policy):
    """The first available clients on the first channels; counts its rounds."""

    name: ClassVar[str] = "first"

    def init(self, problem):
        return {"rounds": np.zeros(problem.channels)}

    def select(self, state, context, rng):
        order = np.argsort(~context.available, kind="stable")
        value = np.where(context.available[:, None], np.zeros((len(order), len(state["rounds"]))), -np.inf)
        return greedy_matching(value, order)

    def update(self, state, feedback):
        return {"rounds": state["rounds"] + 1}


def broken(**parts):
    """Return `First` with some functions replaced, lifted to many replicas."""
    return lift(type("Broken", (First,), parts)())


def test_a_single_policy_passes_lifted_and_by_registration():
    check_policy(First())
    register(First)
    assert make_policy("first").name == "first"


class Leaky(BatchPolicy):
    """A policy whose replicas depend on each other: all use the mean of their random numbers."""

    name = "leaky"

    def init(self, problem):
        return {"channels": np.full(problem.replicas, problem.channels)}

    def select(self, state, context, rng):
        from fedlane.matching import random_matching

        keys = rng.uniform(context.available.shape[1] + state["channels"][0])
        keys = np.broadcast_to(keys.mean(axis=0), keys.shape)
        clients = context.available.shape[1]
        return random_matching(context.available, keys[:, :clients], keys[:, clients:])


def double(self, state, context, rng):
    return np.where(context.available, 0, -1)


def unavailable(self, state, context, rng):
    result = np.full(len(context.available), -1)
    result[0] = 0
    return result


def too_high(self, state, context, rng):
    result = np.full(len(context.available), -1)
    result[np.flatnonzero(context.available)[:1]] = len(state["rounds"])
    return result


def floats(self, state, context, rng):
    return np.full(len(context.available), 0.5)


def unseeded(self, state, context, rng):
    result = np.full(len(context.available), -1)
    alive = np.flatnonzero(context.available)
    if len(alive):
        result[np.random.default_rng().choice(alive)] = np.random.default_rng().integers(len(state["rounds"]))
    return result


def mutating(self, state, context, rng):
    state["rounds"][:] += 1
    return np.full(len(context.available), -1)


def impatient(self, state, context, rng):
    context.queue[:] += 1
    return np.full(len(context.available), -1)


def forgetful(self, state, context, rng):
    context.previous[:] = -1
    return First.select(self, state, context, rng)


def generous(self, state, context, rng):
    context.problem.quotas[:] = 1
    return np.full(len(context.available), -1)


def optimistic(self, state, context, rng):
    context.channel_state[:] = 0
    return np.full(len(context.available), -1)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (broken(select=double), "channel 0 was given to"),
        (broken(select=unavailable), "an unavailable client was assigned"),
        (broken(select=too_high), "channels must lie in"),
        (broken(select=unseeded), "the same seeds gave different rounds"),
        (broken(select=mutating), "select changed the state"),
        (broken(select=impatient), "select changed the state or the context"),
        (broken(select=forgetful), "select changed the state or the context"),
        (broken(select=generous), "select changed the state or the context"),
        (broken(select=optimistic, requires=frozenset({"channel_state"})), "select changed the state or the context"),
        (broken(requires=frozenset({"tea"})), "requires 'tea', which no run supplies: choose from channel_state, dist"),
        (broken(requires=frozenset({"loss"})), r"requires 'loss', which no run supplies \(did you mean 'losses'\?\)"),
        (broken(requires=frozenset({"distribution"})), r"no run supplies \(did you mean 'distributions'\?\)"),
        (broken(requires="channel_state"), "requires must be a set of names, got 'channel_state'"),
        (broken(quota_slack=1.5), "quota_slack must be"),
        (broken(update=lambda self, state, feedback: {"rounds": np.array([object()])}), "plain array|Object arrays"),
        (Leaky(), "seed 0 alone got"),
    ],
)
def test_the_checker_notices(policy, message):
    with pytest.raises((PolicyError, ValueError), match=message):
        check_policy(policy)


@pytest.mark.parametrize("base", [Policy, BatchPolicy])
@pytest.mark.parametrize("retired", ["predictions", "select_and_predict", "predicts", "per_client"])
def test_a_class_with_a_retired_attribute_is_refused_when_it_is_defined(base, retired):
    with pytest.raises(InputError, match=f"^policy old: {retired} is no (method|attribute) of a policy: ") as error:
        type("Old", (base,), {"name": "old", retired: None})
    assert "\n" not in str(error.value)


def predicts_always(self, state, context, rng):
    channel = First.select(self, state, context, rng)
    seconds = np.where(channel >= 0, 1.0, np.nan)
    return Choice(channel, PredictedDelays(seconds, 2 * seconds, 3 * seconds))


def predicts_backwards(self, state, context, rng):
    channel = First.select(self, state, context, rng)
    seconds = np.where(channel >= 0, 1.0, np.nan)
    return Choice(channel, PredictedDelays(3 * seconds, 2 * seconds, seconds))


def predicts_nothing(self, state, context, rng):
    channel = First.select(self, state, context, rng)
    unknown = np.full(len(channel), np.nan)
    return Choice(channel, PredictedDelays(unknown, unknown, unknown))


def test_the_checker_accepts_predictions_and_refuses_impossible_ones():
    check_policy(broken(select=predicts_always))
    for select in (predicts_backwards, predicts_nothing):
        with pytest.raises(PolicyError, match=r"^5 clients, 2 channels, round 0: .*predict"):
            check_policy(broken(select=select))


def test_the_checker_requires_integers_and_the_right_shape():
    class Wrong(Leaky):
        def select(self, state, context, rng):
            return np.full(context.available.shape, 0.5)

    with pytest.raises(PolicyError, match="integer array, got float64"):
        check_policy(Wrong())

    class Flat(Leaky):
        def select(self, state, context, rng):
            return np.full(context.available.shape[1], -1)

    with pytest.raises(PolicyError, match="must return shape"):
        check_policy(Flat())
