"""Many networks as one Gymnasium vector environment, whose sub-environments are FedLane's replicas."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fedlane.gym.environment import Action, Observation, checked_action, checked_networks, drawn_network, spaces
from fedlane.gym.episode import Episode, EpisodeTerms
from fedlane.scenario import Scenario
from fedlane.validate import InputError, at_least

BoolVector = NDArray[np.bool_]


class SchedulingVectorEnv(VectorEnv[Observation, Action, NDArray[Any]]):
    """``num_envs`` networks that advance together, each with the same results as `SchedulingEnv`.

    All episodes end together. The step after the last one starts new episodes and ignores its action (Gymnasium's
    `AutoresetMode.NEXT_STEP`).

    Args:
        num_envs: Number of networks.
        scenario: The scenario, or the name of a preset or path of a TOML file.
        rounds: Rounds of an episode; None for the scenario's.
        V: Weight of time against queues in the reward.
        quota_slack: Share by which the quotas are reduced, from 0 to less than 1.
        networks: Seeds that networks are drawn from; None for all seeds.
        flat: Whether each network's observation (U N F,) and action (U N,) is a vector.
        render_mode: Not supported; must be None.

    Raises:
        InputError: An argument is out of bounds, or the scenario is not valid.

    Examples:
        >>> envs = SchedulingVectorEnv(3, "quickstart", rounds=10)
        >>> observation, info = envs.reset(seed=5)
        >>> info["seed"].tolist()
        [5, 6, 7]
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (as the base declares it)
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        num_envs: int = 1,
        scenario: Scenario | str = "paper-fmnist",
        *,
        rounds: int | None = None,
        V: float = 5.0,
        quota_slack: float = 0.125,
        networks: Sequence[int] | None = None,
        flat: bool = False,
        render_mode: str | None = None,
    ) -> None:
        at_least("num_envs", num_envs, 1)
        self.terms = EpisodeTerms.of(scenario, rounds, V, quota_slack)
        self.networks = checked_networks(networks)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space, self.single_action_space = spaces(self.terms, flat=flat)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.episode: Episode | None = None
        self._streams = [np_random()[0] for _ in range(num_envs)]

    def seed_networks(self, seeds: Sequence[int]) -> None:
        """Let one seed per sub-environment decide which networks `reset` draws for it."""
        self._streams = [np_random(seed)[0] for seed in seeds]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start new episodes, on the networks ``seed``, ``seed`` + 1, ..., or one seed each; None draws at random."""
        seeds: Sequence[int | None] = [None] * self.num_envs if seed is None else seed  # type: ignore[assignment]
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + k for k in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise InputError(f"seed must be one number or {self.num_envs}, got {len(seeds)}")
        networks = []
        for k, network in enumerate(seeds):
            if network is not None:
                self._streams[k] = np_random(network)[0]
            networks.append(drawn_network(self._streams[k], self.networks) if network is None else network)
        self.episode = Episode(self.terms, networks)
        info = self._info({"seed": np.array(networks), "clock_s": np.zeros(self.num_envs)})
        return self._observed(self.episode), info

    def step(self, actions: Action) -> tuple[Observation, NDArray[Any], BoolVector, BoolVector, dict[str, Any]]:
        """Play one round in every network with the scores ``actions``: (num_envs, U, N), or vectors with ``flat``."""
        episode = self.episode
        if episode is None:
            raise gymnasium.error.ResetNeeded("call reset before the first step")
        never = np.zeros(self.num_envs, np.bool_)
        if episode.finished:
            observation, info = self.reset()
            return observation, np.zeros(self.num_envs), never, never.copy(), info
        scores = checked_action(actions, self.action_space.shape, (self.num_envs, *self.terms.shape))  # type: ignore[arg-type]
        outcome, reward = episode.step(scores)
        info = {
            "delay_s": outcome.delay_s,
            "clock_s": episode.rounds.clock_s,
            "assignment": outcome.orders.channel,
            "punctual": outcome.punctual,
            "seed": np.array(episode.seeds),
        }
        ended = np.full(self.num_envs, episode.finished)
        return self._observed(episode), reward, never, ended, self._info(info)

    def _observed(self, episode: Episode) -> Observation:
        return episode.observe().reshape(self.observation_space.shape)

    def _info(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return ``values`` with a mask for each, as Gymnasium's vector environments do."""
        return {**values, **{f"_{key}": np.ones(self.num_envs, np.bool_) for key in values}}
