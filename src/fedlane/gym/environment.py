"""One network as a Gymnasium environment."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from fedlane.gym.memory import FEATURES
from fedlane.gym.rounds import Episode, EpisodeTerms, Outcome
from fedlane.scenario import Scenario
from fedlane.validate import InputError

Observation = NDArray[np.float32]
Action = NDArray[np.float32]
LARGEST_SEED = 2**31


class SchedulingEnv(gymnasium.Env[Observation, Action]):
    """An action scores every pair, (U, N) from -1 to 1; an episode is a scenario's rounds on one network.

    ``reset(seed=s)`` is the network of seed s; without a seed the next one is drawn, from ``networks`` if given.
    ``info`` has the round's ``delay_s``, the ``clock_s`` so far, the ``assignment`` that the scores became, who was
    ``punctual``, and the network's ``seed``.
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
        render_mode: str | None = None,
    ) -> None:
        self.terms = EpisodeTerms.of(scenario, rounds, V, quota_slack)
        self.networks = checked_networks(networks)
        self.render_mode = render_mode
        self.observation_space, self.action_space = spaces(self.terms)
        self.episode: Episode | None = None
        self._last: Outcome | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        network = drawn_network(self.np_random, self.networks) if seed is None else seed
        self.episode, self._last = Episode(self.terms, [network]), None
        return self.episode.observe()[0], {"seed": network, "clock_s": 0.0}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        episode = self.episode
        if episode is None or episode.finished:
            raise gymnasium.error.ResetNeeded("call reset before the first step, and after the last")
        self._last = outcome = episode.play(checked_action(action, self.terms.shape)[None])
        info = {
            "delay_s": float(outcome.delay_s[0]),
            "clock_s": float(episode.clock_s[0]),
            "assignment": outcome.assignment[0],
            "punctual": outcome.punctual[0],
            "seed": episode.seeds[0],
        }
        return episode.observe()[0], float(outcome.reward[0]), False, episode.finished, info

    def render(self) -> str | None:
        """The last round in a line a client."""
        if self.render_mode != "ansi" or self.episode is None:
            return None
        lines = [f"round {self.episode.round}, {self.episode.clock_s[0]:.1f} s on the air"]
        if (last := self._last) is not None:
            for client in np.flatnonzero(last.assignment[0] >= 0):
                late = "" if last.punctual[0, client] else " late"
                delay = last.delays.total_s[0, client]
                lines.append(f"client {client} on channel {last.assignment[0, client]}: {delay:.2f} s{late}")
        return "\n".join(lines)


def spaces(terms: EpisodeTerms) -> tuple[Any, Any]:
    """Of observations, (U, N, F) from 0 to 1, and of actions, (U, N) from -1 to 1."""
    return (
        Box(0.0, 1.0, (*terms.shape, len(FEATURES)), np.float32),
        Box(-1.0, 1.0, terms.shape, np.float32),
    )


def checked_networks(networks: Sequence[int] | None) -> tuple[int, ...] | None:
    if networks is None:
        return None
    if len(networks) == 0 or min(networks) < 0:
        raise InputError(f"networks must be seeds of at least 0, at least one, got {list(networks)}")
    return tuple(networks)


def drawn_network(rng: np.random.Generator, networks: tuple[int, ...] | None) -> int:
    """The next network's seed, from those given or from all."""
    return int(rng.integers(LARGEST_SEED)) if networks is None else networks[int(rng.integers(len(networks)))]


def checked_action(action: NDArray[Any], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Scores as doubles."""
    scores = np.asarray(action, np.float64)
    if scores.shape != shape:
        raise InputError(f"an action must have shape {shape}, got {scores.shape}")
    return scores
