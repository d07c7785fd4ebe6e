"""The few privacy terms that tests share, so that each is accounted for once per test run.

Epsilons are kept in the run's cache, by terms. Terms that a test only passes on should be those of `unsampled_terms`,
which cost nothing.
"""

from fedlane.privacy import Terms


def terms(**changes):
    """Terms with Poisson samples: composing them takes about a tenth of a second. 30 uploads spend epsilon 0.9."""
    values = {
        "mechanism": "rigorous",
        "sample_rate": 0.1,
        "local_iterations": 3,
        "step_noise": 4.0,
        "upload_noise": 0.0,
        "epsilon": 2.0,
        "delta": 1e-5,
        "max_uploads": 30,
        "histogram_noise": 20.0,
    }
    return Terms.from_values({**values, **changes})


def unsampled_terms(**changes):
    """Terms with every record in every sample: epsilon has a closed form. 300 uploads spend epsilon 5.3."""
    values = {"sample_rate": 1.0, "local_iterations": 2, "step_noise": 20.0, "epsilon": 8.0, "max_uploads": 300}
    return terms(**{**values, **changes})


def paper_terms(**changes):
    """Terms of the paper's mechanism, whose epsilon is a lower bound and is not compared with the agreed one."""
    values = {"mechanism": "paper", "upload_noise": 0.5, "step_noise": 0.0, "epsilon": 0.8, "delta": 1e-3}
    return terms(**{"histogram_noise": 0.0, **values, **changes})
