"""The sections of a scenario that say who is there, and what a round costs in energy."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedlane.scenario.sections import NotNegative, Positive, Section

Duration = Annotated[float, Field(ge=1e-3, le=1e12, allow_inf_nan=False)]


class AvailabilitySettings(Section):
    """Whether clients come and go."""

    model: Literal["always", "markov", "trace"] = "always"
    """Presence of the clients: always, in exponential times on and off ("markov"), or as recorded ("trace")."""
    mean_on_s: Duration = 600.0
    """Mean duration of a client's presence in seconds, for "markov"."""
    mean_off_s: Duration = 200.0
    """Mean duration of a client's absence in seconds, for "markov"."""
    trace: str | None = None
    """A CSV file with the columns client, start_s and end_s, for "trace"."""

    @model_validator(mode="after")
    def _with_its_trace(self) -> "AvailabilitySettings":
        if (self.model == "trace") != (self.trace is not None):
            reason = 'model "trace" needs trace' if self.trace is None else 'trace needs model = "trace"'
            raise ValueError(reason)
        return self


class EnergySettings(Section):
    """The energy of a client's round: computing, and transmitting."""

    kappa: NotNegative = 1e-28
    """Effective switched capacitance in farads: computing takes kappa x cycles x frequency^2."""
    device_w: NotNegative = 3.0
    """Power of a device while it computes, where its computing time was measured, in watts."""
    efficiency: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.35
    """Share of the transmitter's power that is radiated."""
    idle_w: NotNegative = 0.0
    """Power of a client during its download, in watts."""
    battery_j: Positive | None = None
    """Energy of a full battery in joules; a client whose battery is empty stays away. By default there is no limit."""
