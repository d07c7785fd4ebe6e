"""A single network as a Gymnasium environment."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from fedlane.gym.episode import Episode, EpisodeTerms
from fedlane.gym.memory import FEATURES
from fedlane.rounds import Outcome
from fedlane.scenario import Scenario
from fedlane.validate import InputError

Observation = NDArray[np.float32]
Action = NDArray[np.float32]
LARGEST_SEED = 2**31


class SchedulingEnv(gymnasium.Env[Observation, Action]):
    """Scheduling on one network; an episode is the rounds of a scenario.

    An action is a score from -1 to 1 for every client-channel pair (U, N). An observation has shape (U, N, F), with
    values from 0 to 1 (see `FEATURES`). With ``flat``, both are vectors. ``info`` holds the round's ``delay_s``, the
    simulated time ``clock_s``, the ``assignment`` made from the scores (U,), whether each client was ``punctual`` (U,),
    and the network's ``seed``.

    Args:
        scenario: The scenario, or the name of a preset or path of a TOML file.
        rounds: Rounds of an episode; None for the scenario's.
        V: Weight of time against queues in the reward.
        quota_slack: Share by which the quotas are reduced, from 0 to less than 1.
        networks: Seeds that networks are drawn from; None for all seeds.
        flat: Whether observations (U N F,) and actions (U N,) are vectors, in the order of the full arrays.
        render_mode: "ansi" or None.

    Raises:
        InputError: An argument is out of bounds, or the scenario is not valid.

    Examples:
        >>> env = SchedulingEnv("quickstart", rounds=10)
        >>> observation, info = env.reset(seed=3)
        >>> observation.shape
        (10, 4, 8)
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012 (as the base declares it)

    def __init__(
        self,
        scenario: Scenario | str = "paper-fmnist",
        *,
        rounds: int | None = None,
        V: float = 5.0,
        quota_slack: float = 0.125,
        networks: Sequence[int] | None = None,
        flat: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.terms = EpisodeTerms.of(scenario, rounds, V, quota_slack)
        self.networks = checked_networks(networks)
        self.render_mode = render_mode
        self.observation_space, self.action_space = spaces(self.terms, flat=flat)
        self.episode: Episode | None = None
        self._last: Outcome | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode on the network of ``seed``; without a seed, on a random network."""
        super().reset(seed=seed)
        network = drawn_network(self.np_random, self.networks) if seed is None else seed
        self.episode, self._last = Episode(self.terms, [network]), None
        return self._observed(self.episode), {"seed": network, "clock_s": 0.0}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play one round with the matching of the scores ``action``: (U, N), or (U N,) with ``flat``."""
        episode = self.episode
        if episode is None or episode.finished:
            raise gymnasium.error.ResetNeeded("call reset before the first step and after the last step of an episode")
        scores = checked_action(action, self.action_space.shape, (1, *self.terms.shape))  # type: ignore[arg-type]
        self._last, reward = episode.step(scores)
        outcome = self._last
        info = {
            "delay_s": float(outcome.delay_s[0]),
            "clock_s": float(episode.rounds.clock_s[0]),
            "assignment": outcome.orders.channel[0],
            "punctual": outcome.punctual[0],
            "seed": episode.seeds[0],
        }
        return self._observed(episode), float(reward[0]), False, episode.finished, info

    def _observed(self, episode: Episode) -> Observation:
        return episode.observe().reshape(self.observation_space.shape)

    def render(self) -> str | None:
        """Return the last round as text, one line per assigned client; None if the render mode is not "ansi"."""
        if self.render_mode != "ansi" or self.episode is None:
            return None
        rounds = self.episode.rounds
        lines = [f"round {rounds.round}, {rounds.clock_s[0]:.1f} s of simulated time"]
        if (last := self._last) is not None:
            channel, total_s = last.orders.channel[0], last.arrivals.delays.total_s[0]
            for client in np.flatnonzero(channel >= 0):
                delay = f"{total_s[client]:.2f} s" if last.punctual[0, client] else "late"
                lines.append(f"client {client} on channel {channel[client]}: {delay}")
        return "\n".join(lines)


def spaces(terms: EpisodeTerms, *, flat: bool) -> tuple[Any, Any]:
    """Return the spaces of observations (U, N, F), from 0 to 1, and of actions (U, N), from -1 to 1; or as vectors."""
    clients, channels = terms.shape
    seen, scores = (clients, channels, len(FEATURES)), (clients, channels)
    if flat:
        return Box(0.0, 1.0, (math.prod(seen),), np.float32), Box(-1.0, 1.0, (math.prod(scores),), np.float32)
    return Box(0.0, 1.0, seen, np.float32), Box(-1.0, 1.0, scores, np.float32)


def checked_networks(networks: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the seeds of the networks to draw from; None for all."""
    if networks is None:
        return None
    if len(networks) == 0 or min(networks) < 0:
        raise InputError(f"networks must be one or more seeds of at least 0, got {list(networks)}")
    return tuple(networks)


def drawn_network(rng: np.random.Generator, networks: tuple[int, ...] | None) -> int:
    """Draw the seed of a network, from ``networks`` if given."""
    return int(rng.integers(LARGEST_SEED)) if networks is None else networks[int(rng.integers(len(networks)))]


def checked_action(action: NDArray[Any], shape: tuple[int, ...], scores: tuple[int, ...]) -> NDArray[np.float64]:
    """Return an action of shape ``shape`` as scores of shape ``scores``, in double precision; refuse other shapes."""
    values = np.asarray(action, np.float64)
    if values.shape != shape:
        raise InputError(f"an action must have shape {shape}, got {values.shape}")
    return values.reshape(scores)
