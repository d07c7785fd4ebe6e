"""The panels of every figure, drawn from stored results."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fedlane.experiments.labels import (
    ALL_POLICIES,
    FASHION_MNIST,
    LINE_STYLES,
    OM_AND_RANDOM,
    OM_POLICIES,
    PAPER_POLICIES,
    REPRESENTATIVE_POLICIES,
    TASK_NAMES,
    V_FIGURE_POLICIES,
    policy_label,
    task_title,
)
from fedlane.experiments.regret_and_timing import complexity_panels, regret_panels
from fedlane.experiments.reproduce import SENSITIVITY, TIME_BUDGETS, ReproductionPlan
from fedlane.experiments.store import Experiment, ResultStore
from fedlane.experiments.theorems import convergence_panels
from fedlane.learning.schedule import Curves
from fedlane.privacy.paper import PaperLeakage, composed_classical, composed_gaussian, formula_6
from fedlane.records import FloatArray
from fedlane.report.paper_figures import Line, Panel
from fedlane.simulation.optimal_delays import optimal_delays
from fedlane.simulation.setup import prepare

Measure = Callable[[Experiment, int], FloatArray]
"""Function that computes a quantity for one seed of an experiment."""


class Drawer:
    """Draws the panels of a plan's figures from a store; method `fig_v` draws figure `fig-v`, and so on."""

    def __init__(self, plan: ReproductionPlan, store: ResultStore) -> None:
        self.plan, self.store = plan, store

    def over_seeds(self, experiment: Experiment, of: Measure, learned: bool = False) -> FloatArray:
        """(S, ...): a quantity for every seed with a schedule, or with learning curves if ``learned``."""
        seeds = self.plan.learned_seeds if learned else self.plan.seeds(experiment)
        return np.stack([of(experiment, seed) for seed in seeds])

    def delay(self, experiment: Experiment, seed: int) -> FloatArray:
        """(T,): accumulated delay."""
        return np.cumsum(self.store.result(experiment, seed).delay_s)

    def curves(self, experiment: Experiment, seed: int) -> Curves:
        """Learning curves of one seed."""
        learned = self.store.result(experiment, seed).learned
        assert learned is not None
        return learned

    def accuracy(self, experiment: Experiment, seed: int) -> FloatArray:
        """(K,): accuracy at the tested rounds."""
        return self.curves(experiment, seed).accuracy[0]

    def _line(self, experiment: Experiment, of: Measure, x: FloatArray, learned: bool = False) -> Line:
        colour, dash = LINE_STYLES.get(experiment.policy, (5, 0))
        return Line(x, self.over_seeds(experiment, of, learned), colour, dash)

    def accuracy_panel(self, task: str, policies: Sequence[str], setting: str, reading: str = "calibrated") -> Panel:
        """Test accuracy against rounds."""
        experiments = [Experiment(task, policy, setting, _reading(policy, reading)) for policy in policies]
        lines = {}
        for experiment in experiments:
            tested = self.curves(experiment, 0).round + 1
            lines[policy_label(experiment.policy)] = self._line(
                experiment, self.accuracy, tested.astype(np.float64), learned=True
            )
        return Panel(task_title(task, reading), "round", "test accuracy", lines)

    def delay_panel(self, task: str, policies: Sequence[str], setting: str, reading: str = "calibrated") -> Panel:
        """Accumulated delay against rounds."""
        x = np.arange(1, self.store.rounds + 1, dtype=np.float64)
        lines = {
            policy_label(policy): self._line(
                Experiment(task, policy, setting, _reading(policy, reading)), self.delay, x
            )
            for policy in policies
        }
        return Panel(task_title(task, reading), "round", "accumulated delay (s)", lines)

    def fig_v(self) -> list[Panel]:
        """Accuracy and delay at every V, under both readings."""
        return self._both_readings("base")

    def fig_private(self) -> list[Panel]:
        """Accuracy and delay at every V under stronger privacy, and the leakage of the uploads."""
        return [*self._both_readings("private"), *(leakage_panel(task, self.store.rounds) for task in self.plan.tasks)]

    def _both_readings(self, setting: str) -> list[Panel]:
        literal = (*PAPER_POLICIES, "random")
        panels = []
        for task in self.plan.tasks:
            panels += [
                self.accuracy_panel(task, V_FIGURE_POLICIES, setting),
                self.delay_panel(task, V_FIGURE_POLICIES, setting),
                self.accuracy_panel(task, literal, setting, "literal"),
                self.delay_panel(task, literal, setting, "literal"),
            ]
        return panels

    def fig_accuracy(self) -> list[Panel]:
        """Test accuracy of all policies."""
        return [self.accuracy_panel(task, ALL_POLICIES, "base") for task in self.plan.tasks]

    def fig_delay(self) -> list[Panel]:
        """Accumulated delay of all policies, and of the optimum.

        The CNN is also shown on a network with constants of its own.
        """
        settings = [(task, "base") for task in self.plan.tasks]
        if "cifar10" in self.plan.tasks:
            settings.append(("cifar10", "wide"))
        panels = []
        for task, setting in settings:
            panel = self.delay_panel(task, ALL_POLICIES, setting)
            wide = ", whole model over a wide carrier" if setting == "wide" else ""
            lines = {**panel.lines, **self._optimum_line(Experiment(task, "random", setting))}
            panels.append(replace(panel, title=panel.title + wide, lines=lines))
        return panels

    def _optimum_line(self, base: Experiment) -> dict[str, Line]:
        """Accumulated delay at the optimum's mean, over the seeds whose lowered quotas can be served."""
        seeds = self.plan.seeds(base)
        round_s = optimal_delays(prepare(base.scenario(self.store.rounds), seeds))
        if round_s is None or np.isnan(round_s).all():
            return {}
        x = np.arange(1.0, self.store.rounds + 1)
        served = round_s[~np.isnan(round_s)]
        seeds_text = "" if len(served) == len(seeds) else f" ({len(served)} of {len(seeds)} seeds)"
        return {f"optimum{seeds_text}": Line(x, served[:, None] * x, 5, 2)}

    def fig_rounds(self) -> list[Panel]:
        """Aggregation rounds completed within a time budget."""
        panels = []
        for task in self.plan.tasks:
            whole = self.over_seeds(Experiment(task, "random"), self.delay)[:, -1].mean()
            budgets = np.round(np.array(TIME_BUDGETS) * whole, -1)
            lines = {}
            for policy in V_FIGURE_POLICIES:
                colour, dash = LINE_STYLES[policy]
                delays = self.over_seeds(Experiment(task, policy), self.delay)
                counts = np.stack([np.searchsorted(row, budgets, side="right") for row in delays]).astype(np.float64)
                lines[policy_label(policy)] = Line(budgets, counts, colour, dash)
            panels.append(Panel(TASK_NAMES[task], "time budget (s)", "aggregation rounds", lines))
        return panels

    def selection_panel(self, task: str, setting: str, title: str, by_quota: bool = False) -> Panel:
        """Share of rounds in which each client was selected, and its quota; in the order of quotas if ``by_quota``."""
        lines: dict[str, Line] = {}
        quotas: dict[str, FloatArray] = {}
        for policy in (*OM_POLICIES, "lane"):
            experiment = Experiment(task, policy, setting)
            colour, dash = LINE_STYLES[policy]
            shares, quota = (self.over_seeds(experiment, of) for of in (self._assigned_share, self._quota))
            if by_quota:
                order = np.argsort(quota, axis=1, kind="stable")
                shares, quota = (np.take_along_axis(array, order, axis=1) for array in (shares, quota))
            lines[policy_label(policy)] = Line(np.arange(1.0, shares.shape[1] + 1), shares, colour, dash)
            if not quotas:  # the paper's policies have the same quotas
                quotas["quota"] = quota.mean(axis=0)
        x_label = "client, in the order of quotas" if by_quota else "client"
        return Panel(f"{TASK_NAMES[task]}, {title}", x_label, "share of rounds chosen", lines, True, quotas)

    def fig_selection(self) -> list[Panel]:
        """Share of rounds in which each client was selected, and its quota."""
        return [
            self.selection_panel(task, setting, title)
            for task in self.plan.tasks
            for setting, title in (("base", "equal epsilon"), ("nonuniform", "non-uniform epsilon"))
        ]

    def fig_data(self) -> list[Panel]:
        """What depends on the clients' data: quotas in both readings of the noise, and the price of privacy."""
        if FASHION_MNIST not in self.plan.tasks:
            return []
        panels = []
        for setting, title in (("samples-800-nonuniform", "non-uniform epsilon"), ("various", "various data")):
            for noise, reading in (("", "noise as printed"), ("-sqrt_d", "noise times sqrt(d)")):
                name = f"800 samples,\n{title}, {reading}"
                panels.append(self.selection_panel(FASHION_MNIST, setting + noise, name, by_quota=setting == "various"))
        return [*panels, self._privacy_panel("800 samples", "samples-800-"), self._privacy_panel("6,000 samples", "")]

    def _privacy_panel(self, title: str, prefix: str) -> Panel:
        """Accuracy that epsilon 0.8 costs against epsilon 25 and b = 64, paired by seed; mean of all rounds so far."""
        lines = {}
        for dash, policy in enumerate(OM_AND_RANDOM):
            base, *stricter = (
                Experiment(FASHION_MNIST, policy, (prefix + setting).removesuffix("-base"))
                for setting in ("base", "epsilon-0.8", "private")
            )
            x = (self.curves(base, self.plan.first_learning_seed).round + 1).astype(np.float64)
            for colour, (experiment, batch) in enumerate(zip(stricter, (64, 10), strict=True)):
                before, after = (self.over_seeds(run, self.accuracy, learned=True) for run in (base, experiment))
                values = np.cumsum(before - after, axis=1) / np.arange(1.0, len(x) + 1)
                lines[f"{policy_label(policy)}, b = {batch}"] = Line(x, values, colour, dash)
        return Panel(f"{TASK_NAMES[FASHION_MNIST]}, {title}", "round", "accuracy lost at epsilon 0.8", lines)

    def _assigned_share(self, experiment: Experiment, seed: int) -> FloatArray:
        return self.store.result(experiment, seed).share("assigned")

    def _quota(self, experiment: Experiment, seed: int) -> FloatArray:
        return self.store.result(experiment, seed).quota

    def fig_regret(self) -> list[Panel]:
        """Cumulative pseudo-regret."""
        return regret_panels(self.plan, self.store)

    def fig_convergence(self) -> list[Panel]:
        """Losses and gradients next to the bounds of Theorems 5 and 6."""
        return convergence_panels(self.plan, self.store)

    def fig_complexity(self) -> list[Panel]:
        """Measured decision times."""
        return complexity_panels()

    def fig_queues(self) -> list[Panel]:
        """The largest queue over time: the livelock of the additive rule, and the fix."""
        if FASHION_MNIST not in self.plan.tasks:
            return []
        x = np.arange(1.0, self.store.rounds + 1)
        lines = {}
        for number, experiment in enumerate(self.plan.figures["fig-queues"].scheduled):
            values = self.over_seeds(experiment, lambda run, seed: self.store.result(run, seed).queue.max(axis=1))
            lines[policy_label(experiment.policy)] = Line(x, values, number * 2, 0)
        return [Panel(TASK_NAMES[FASHION_MNIST], "round", "largest virtual queue", lines)]

    def fig_sensitivity(self) -> list[Panel]:
        """Final accuracy and delay along each axis, including the base setting."""
        if FASHION_MNIST not in self.plan.tasks:
            return []
        base = {"tau": 5.0, "deadline": 1.0, "clients": 10.0, "channels": 4.0, "degree": 0.8}
        names = {
            "tau": "local iterations",
            "deadline": "deadline, times the preset's",
            "clients": "clients",
            "channels": "channels",
            "degree": "degree of non-IID",
        }
        panels = []
        for axis, middle in base.items():
            points = sorted([float(s.split("-")[1]) for s in SENSITIVITY if s.startswith(f"{axis}-")] + [middle])
            settings = ["base" if point == middle else f"{axis}-{point:g}" for point in points]
            for what, of in (("test accuracy", self._final), ("accumulated delay (s)", self._total)):
                lines = {}
                for policy in REPRESENTATIVE_POLICIES:
                    experiments = [Experiment(FASHION_MNIST, policy, setting) for setting in settings]
                    values = np.stack(
                        [self.over_seeds(experiment, of, learned=True) for experiment in experiments], axis=1
                    )
                    lines[policy_label(policy)] = Line(np.array(points), values, *LINE_STYLES[policy])
                panels.append(Panel("", names[axis], what, lines))
        return panels

    def _final(self, experiment: Experiment, seed: int) -> FloatArray:
        return self.accuracy(experiment, seed)[-1]

    def _total(self, experiment: Experiment, seed: int) -> FloatArray:
        return self.delay(experiment, seed)[-1]


def leakage_panel(task: str, rounds: int) -> Panel:
    """Leakage of a client against its uploads at epsilon 0.8 and b = 10: formula (6) and tight bounds."""
    scenario = Experiment(task, "random", "private").scenario()
    setup = prepare(scenario, [0])
    epsilon, delta = float(scenario.epsilon[0]), float(scenario.per_client(scenario.privacy.delta)[0])
    spec = setup.mechanism
    noise, rate = float(spec.upload_noise[0, 0]), float(spec.sample_rate[0, 0])
    uploads = np.unique(np.geomspace(1, rounds, 9).round()).astype(np.int64)
    noised = PaperLeakage(noise, rate, spec.local_iterations)
    lines = {
        "formula (6)": formula_6(epsilon, delta, uploads),
        "classical noise, composed tightly": [composed_classical(epsilon, delta, int(count)) for count in uploads],
        "exactly calibrated noise, composed tightly": [
            composed_gaussian(epsilon, delta, int(count)) for count in uploads
        ],
        "the paper's noise, at least": [noised.epsilon(delta, int(count)) for count in uploads],
    }
    drawn = {
        name: Line(uploads.astype(np.float64), np.array(values, np.float64)[None], 5 + number % 2, number)
        for number, (name, values) in enumerate(lines.items())
    }
    title = f"{TASK_NAMES[task]}\n250 uploads by formula (6): {float(formula_6(epsilon, delta, 250)):.2f}"
    return Panel(title, "uploads of a client", f"epsilon at delta {delta:g}", drawn, log=True)


def _reading(policy: str, reading: str) -> str:
    """Reading of an experiment: only the paper's policies have a literal variant."""
    return reading if policy.startswith("mamab") else "calibrated"
