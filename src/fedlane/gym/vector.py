"""Many networks as one Gymnasium vector environment: its sub-environments are FedLane's replicas."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from fedlane.gym.environment import Action, Observation, checked_action, checked_networks, drawn_network, spaces
from fedlane.gym.rounds import Episode, EpisodeTerms
from fedlane.scenario import Scenario
from fedlane.validate import InputError, at_least

BoolVector = NDArray[np.bool_]


class SchedulingVectorEnv(VectorEnv[Observation, Action, NDArray[Any]]):
    """``num_envs`` networks in step, each as `SchedulingEnv` would play it.

    ``reset(seed=s)`` is the networks s, s + 1, ...; a list names each. All episodes end together, and the step after
    that begins the next ones, whatever its action (Gymnasium's NEXT_STEP).
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
        render_mode: str | None = None,
    ) -> None:
        at_least("num_envs", num_envs, 1)
        self.terms = EpisodeTerms.of(scenario, rounds, V, quota_slack)
        self.networks = checked_networks(networks)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space, self.single_action_space = spaces(self.terms)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.episode: Episode | None = None
        self._streams = [np_random()[0] for _ in range(num_envs)]

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        seeds: Sequence[int | None] = [None] * self.num_envs if seed is None else seed  # type: ignore[assignment]
        if isinstance(seed, int | np.integer):
            seeds = [int(seed) + k for k in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise InputError(f"seed must be one number or {self.num_envs}, got {len(seeds)}")
        networks = []
        for k, one in enumerate(seeds):
            if one is not None:
                self._streams[k] = np_random(one)[0]
            networks.append(drawn_network(self._streams[k], self.networks) if one is None else one)
        self.episode = Episode(self.terms, networks)
        return self.episode.observe(), self._info({"seed": np.array(networks), "clock_s": np.zeros(self.num_envs)})

    def step(self, actions: Action) -> tuple[Observation, NDArray[Any], BoolVector, BoolVector, dict[str, Any]]:
        episode = self.episode
        if episode is None:
            raise gymnasium.error.ResetNeeded("call reset before the first step")
        never = np.zeros(self.num_envs, np.bool_)
        if episode.finished:
            observation, info = self.reset()
            return observation, np.zeros(self.num_envs), never, never.copy(), info
        outcome = episode.play(checked_action(actions, (self.num_envs, *self.terms.shape)))
        info = {
            "delay_s": outcome.delay_s,
            "clock_s": episode.clock_s.copy(),
            "assignment": outcome.assignment,
            "punctual": outcome.punctual,
            "seed": np.array(episode.seeds),
        }
        ended = np.full(self.num_envs, episode.finished)
        return episode.observe(), outcome.reward, never, ended, self._info(info)

    def _info(self, values: dict[str, Any]) -> dict[str, Any]:
        """As Gymnasium's own vector environments do: beside each value, which sub-environments gave one."""
        return {**values, **{f"_{key}": np.ones(self.num_envs, np.bool_) for key in values}}
