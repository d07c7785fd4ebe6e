"""The sections of a scenario file, one class per TOML table.

Numbered readings are explained in docs/reading-the-paper.md. Fields that take one value per client list them by client
index.
"""

import contextlib
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedlane.scenario.link_checks import check_links
from fedlane.validate import check_clip_norm, check_proximal

Finite = Annotated[float, Field(allow_inf_nan=False)]
Decibel = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
OneOrPerClient = Positive | Annotated[tuple[Positive, ...], Field(min_length=1)]
Epsilon = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Line = tuple[Finite, Finite]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
DataPath = Annotated[str, Field(pattern=r"[/.:]", max_length=1000)]
Rates = tuple[tuple[Positive, ...], ...]


class Section(BaseModel):
    """A frozen, strictly typed table that rejects unknown keys; attribute docstrings are the fields' descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class NetworkSettings(Section):
    """The radio network (paper, Sections II-A and VII)."""

    clients: Count = 10
    """Number of clients, U."""
    channels: Count = 4
    """Number of channels, N."""
    area_m: Positive = 2000.0
    """Side of the square area, in metres."""
    bandwidth_up_hz: Positive = 15e3
    """Uplink bandwidth of a channel, in Hz."""
    bandwidth_down_hz: Positive = 15e3
    """Downlink bandwidth of a channel, in Hz."""
    power_up_dbm: Decibel = 23.0
    """Transmit power of a client, in dBm."""
    power_down_dbm: Decibel = 23.0
    """Transmit power of an access point, in dBm."""
    noise_dbm: Decibel = -107.0
    """Noise power in a channel, in dBm."""
    path_loss_db: Decibel = 128.1
    """Path loss at 1 km, in dB."""
    path_loss_slope_db: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] = 37.6
    """Path loss per decade of distance, in dB."""
    min_distance_m: Positive = 10.0
    """Smallest distance used for the path loss, in metres."""
    fading: Literal["none", "rayleigh"] = "none"
    """Fast fading: "none", or "rayleigh" for exponentially distributed power. It is drawn anew in each round in the
    paper's network; in a network that changes with time, its coherence time follows from the speed and the carrier."""
    interference_db: tuple[Decibel, Decibel] = (-5.0, 10.0)
    """Range of the scale of the interference power, relative to the noise, in dB: [low, high] (reading 2)."""
    payload_bits: Positive | Literal["model"] = 5000.0
    """Size of the transmitted model, in bits; "model" for the model's own size (reading 4)."""
    deadline_s: Positive = 5.0
    """Deadline of a round, in seconds."""
    bits_per_weight: Annotated[float, Field(gt=0, le=64, allow_inf_nan=False)] = 32.0
    """Bits that a weight takes when payload_bits is "model"."""
    model: Literal["paper", "3gpp", "trace", "city", "fixed"] = "paper"
    """Links: the paper's path loss, urban cells of 3GPP TR 38.901, measured rates, ray-traced gains of a city, or given
    rates ("fixed", which is the default where rates_mbps is given)."""
    cell: Literal["umi", "uma"] = "umi"
    """Urban cell of 3GPP TR 38.901: street canyon (umi) or above the roofs (uma)."""
    carrier_hz: Positive = 3.5e9
    """Carrier frequency in Hz, for the path loss of "3gpp" and for fading that follows the time."""
    mobility: Literal["static", "waypoint", "streets"] = "static"
    """Movement of the clients: none, random waypoint walks in the area, in their steady state, or walks through the
    streets of a city."""
    speed_m_s: tuple[Positive, Positive] = (0.5, 2.0)
    """Range of the speed of clients that move, in metres per second: [low, high]."""
    shadowing_db: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    """Standard deviation of log-normal shadowing in dB; by default the report's for "3gpp", else none."""
    shadowing_distance_m: Positive | None = None
    """Correlation distance of the shadowing in metres; by default the report's for "3gpp", else 50."""
    drift_s: NotNegative = 0.0
    """Time in seconds after which every pair's interference scale is drawn anew; 0 for never."""
    trace: str | None = None
    """Measured rates for the model "trace": a set's name, a file or a folder."""
    map: str | None = None
    """Map for the model "city": a shipped map's name ("munich"), or a file that `fedlane city` wrote."""
    uplink_share: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Factor of a measured downlink that serves as uplink, at an independent offset, where no uplink was measured."""
    rates_mbps: Rates | tuple[Rates, ...] | None = None
    """Link rates in Mbit/s instead of a radio model: (clients, channels), or a list of such tables, used in turn."""
    floor_s: NotNegative | tuple[NotNegative, NotNegative] = 0.0
    """Software delay in seconds added to every delay on such links; two values for a uniform distribution."""

    @model_validator(mode="after")
    def _ordered(self) -> "NetworkSettings":
        if self.interference_db[0] > self.interference_db[1]:
            raise ValueError(
                f"interference_db must be [low, high] with low at most high, got {list(self.interference_db)}"
            )
        if isinstance(self.floor_s, tuple) and self.floor_s[0] > self.floor_s[1]:
            raise ValueError(f"floor_s must be [low, high] with low at most high, got {list(self.floor_s)}")
        if self.rates_mbps is not None and "model" not in self.model_fields_set:
            self.__dict__["model"] = "fixed"  # a default, which further changes may still override
        check_links(self)
        if self.rates_mbps is None:
            if self.floor_s != 0.0:
                raise ValueError("floor_s needs rates_mbps: radio links have no floor")
            return self
        table = np.empty((0, 0))
        with contextlib.suppress(ValueError):  # rows of different lengths
            table = np.array(self.rates_mbps, np.float64)
        if table.ndim not in (2, 3) or not table.size or table.shape[-2:] != (self.clients, self.channels):
            raise ValueError(
                f"rates_mbps must be clients x channels ({self.clients} x {self.channels}) numbers, or a list of those"
            )
        return self


class ComputeSettings(Section):
    """Local computation (paper, Section II-B).

    The processor frequency of client i (from 1) is uniform between two lines offset + slope * i.
    """

    model: Literal["paper", "devices"] = "paper"
    """Duration of local training: cycles over frequency as in the paper, or as measured on phones ("devices")."""
    frequency_low_hz: Line = (10e3, 10e3)
    """Lower end of client i's frequency range (i from 1): offset + slope * i, as [offset, slope] in Hz (reading 5)."""
    frequency_high_hz: Line = (30e3, 100e3)
    """Upper end of client i's frequency range (i from 1): offset + slope * i, as [offset, slope] in Hz (reading 5)."""
    cycles_per_sample: OneOrPerClient = 3.0
    """Processor cycles per record and step, Phi; one value, or one per client (reading 5)."""
    seconds: OneOrPerClient | None = None
    """Measured training time in seconds, instead of cycles over frequency; one value, or one per client."""

    @model_validator(mode="after")
    def _one_source(self) -> "ComputeSettings":
        if self.model == "devices" and self.seconds is not None:
            raise ValueError('seconds has no effect with model "devices": leave one of them out')
        return self


class DataSettings(Section):
    """The data set and its partition over the clients (reading 17)."""

    dataset: Literal["fashion-mnist", "cifar10", "fashion-mnist-mini", "shakespeare"] | DataPath = "fashion-mnist"
    """A built-in data set (see `fedlane list datasets`), or your own: an npz file, a folder, or module:function."""
    partition: Literal["dominant", "dirichlet", "shards", "iid", "natural"] = "dominant"
    """How records are divided: by a dominant class, a Dirichlet distribution, shards, uniformly (iid), or as they come
    (natural: the data set's own clients, a random choice of them if the network has fewer)."""
    noniid_degree: Share = 0.8
    """Label skew, from 0 (every client's labels are distributed like the whole data set) to 1."""
    samples_per_client: Count | Literal["all"] = "all"
    """Mean number of a client's training samples, |D|; "all" to divide the whole data set (reading 17)."""
    imbalance: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Spread of the clients' sizes, which are uniform in [1 - imbalance, 1 + imbalance] times their mean."""

    @model_validator(mode="after")
    def _natural_sizes(self) -> "DataSettings":
        if self.partition == "natural" and (self.samples_per_client != "all" or self.imbalance):
            raise ValueError('partition "natural" takes clients as they are: omit samples_per_client and imbalance')
        return self


class LearningSettings(Section):
    """Local training (reading 16), and the server's step."""

    model: str = "mlp"
    """A built-in model ("mlp", "cnn", "softmax"; for tokens: "sequence"), or module:name of a PyTorch module's class or
    function."""
    learning_rate: Positive = 0.1
    """Step size of local training, eta."""
    clip_norm: Positive = 1.0
    """Largest norm of a record's gradient, C, from 1e-6 to 1e12."""
    batch_size: Count | Annotated[tuple[Count, ...], Field(min_length=1)] = 64
    """Records in a step's sample, b; one value, or one per client."""
    local_iterations: Count = 5
    """Training steps per upload, tau."""
    momentum: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Momentum of the local steps; every upload starts without velocity."""
    proximal: NotNegative = 0.0
    """Strength mu of FedProx's term, which pulls local steps towards the global model; at most 1 / learning_rate."""
    learning_rate_schedule: Literal["constant", "inverse_sqrt", "cosine"] = "constant"
    """Local learning rate in round t (from 0) of T: eta, eta / sqrt(1 + t), or eta (1 + cos(pi t / T)) / 2."""
    aggregation: Literal["size", "unbiased"] = "size"
    """Weights of a round's uploads: the clients' data sizes, or these divided by the clients' share of punctual rounds
    so far, so that clients with fast links do not pull the model towards their data."""
    server_optimizer: Literal["sgd", "momentum", "adam", "yogi"] = "sgd"
    """Optimiser of the server, whose gradient is the model minus the average of the uploads (Reddi et al., 2021)."""
    server_learning_rate: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None
    """Learning rate of the server; by default 1 for "sgd" and "momentum", and 0.01 for "adam" and "yogi"."""
    server_momentum: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.9
    """Momentum of the server's optimiser, beta_1; "sgd" has none."""
    server_decay: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.99
    """Decay of the mean squared update of "adam" and "yogi", beta_2."""
    server_adaptivity: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] = 1e-3
    """Constant in the denominator of "adam" and "yogi", tau: a smaller one adapts more to each weight."""
    evaluate_every: Count = 10
    """Rounds between two evaluations of the model."""
    target_accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Test accuracy whose time is reported: when the mean of three successive evaluations first reaches it."""

    @model_validator(mode="after")
    def _clip_norm_in_range(self) -> "LearningSettings":
        check_clip_norm("clip_norm", self.clip_norm)
        return self

    @model_validator(mode="after")
    def _proximal_in_range(self) -> "LearningSettings":
        check_proximal(self.proximal, self.learning_rate)
        return self


class PrivacySettings(Section):
    """The privacy that each client agreed to. A scenario without this table has the mechanism "none"."""

    mechanism: Literal["none", "paper", "rigorous"] = "rigorous"
    """Privacy mechanism: "rigorous" guarantees the agreed epsilon for the whole run, "paper" reproduces the paper and
    guarantees nothing, "none" adds no noise. Without a [privacy] table it is "none"."""
    epsilon: Epsilon | Annotated[tuple[Epsilon, ...], Field(min_length=1)] | Literal["nonuniform"] = 25.0
    """Agreed epsilon, per round (paper) or per run (rigorous); "nonuniform" for the paper's list; or one per client."""
    delta: OneOrPerClient = 1e-3
    """Agreed delta, less than 1; one value, or one per client."""
    max_uploads: Count | Annotated[tuple[Count, ...], Field(min_length=1)] | Literal["rounds"] = "rounds"
    """Largest number of uploads of a client; "rounds" for one per round; or one value per client."""
    theta_noise: Literal["paper", "sqrt_d"] = "paper"
    """Noise term of the model divergence: the paper's, or that of a vector with d weights (reading 21)."""
    histogram_noise: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 10.0
    """Noise of the label-histogram release, in records (rigorous); 0 for none."""
    least_noise: Positive = 0.5
    """Smallest noise multiplier of a step that is accepted (rigorous)."""
    loss_clip: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 4.0
    """Largest loss of a record in the losses that clients report to policies that require them (rigorous); with float
    targets it is a squared error, so it depends on their unit."""
    loss_noise: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 4.0
    """Noise multiplier of these losses, greater than that of a step; the first step is noisier in turn (rigorous)."""

    @model_validator(mode="after")
    def _delta_below_one(self) -> "PrivacySettings":
        if np.max(self.delta) >= 1:
            raise ValueError(f"delta must be less than 1, got {np.max(self.delta):g}")
        return self
