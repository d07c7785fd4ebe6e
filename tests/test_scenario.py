"""Scenarios: presets, TOML round trips, and errors that name field, value and bound."""

import re
import tomllib
from importlib import resources

import numpy as np
import pytest

from fedlane.scenario import Scenario, presets
from fedlane.scheduling import make_policy
from fedlane.validate import InputError, ScenarioWarning


def test_the_documented_presets_exist():
    assert set(presets()) >= {
        *("paper-fmnist", "paper-cifar10", "paper-fmnist-literal", "paper-cifar10-literal", "quickstart"),
        "paper-cifar10-wide",
    }
    for name in presets():
        assert Scenario.load(name).name == name


def test_every_field_has_a_description():
    sections = [
        field.annotation for field in Scenario.model_fields.values() if hasattr(field.annotation, "model_fields")
    ]
    assert len(sections) == 5
    for model in (Scenario, *sections):
        assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_section_vii_constants():
    s = Scenario.load("paper-fmnist")
    n = s.network
    assert (n.clients, n.channels, n.area_m, n.deadline_s, s.rounds) == (10, 4, 2000, 5, 500)
    assert (n.bandwidth_up_hz, n.bandwidth_down_hz, n.power_up_dbm, n.noise_dbm) == (15e3, 15e3, 23, -107)
    assert (n.path_loss_db, n.path_loss_slope_db, n.interference_db, n.payload_bits) == (128.1, 37.6, (-5, 10), 5000)
    assert (s.compute.frequency_low_hz, s.compute.frequency_high_hz) == ((10e3, 10e3), (30e3, 100e3))
    assert (s.data.noniid_degree, s.learning.local_iterations) == (0.8, 5)
    assert (s.privacy.mechanism, s.privacy.epsilon, s.privacy.delta) == ("paper", 25, 1e-3)
    c = Scenario.load("paper-cifar10")
    assert (c.network.deadline_s, c.network.payload_bits, c.compute.cycles_per_sample) == (2, 2000, 1.44)
    first = Scenario.load("quickstart")
    assert (first.data.dataset, first.privacy.mechanism) == ("fashion-mnist-mini", "rigorous")
    literal = Scenario.load("paper-fmnist-literal")
    assert literal.policies["mamab-om"]["exploration"] == literal.policies["mamab-gmba"]["exploration"] == 1.0


def test_the_two_presets_are_one_network_scaled_by_two_fifths():
    from fedlane.simulation.setup import prepare

    small, large = (prepare(Scenario.load(name), [0]).network for name in ("paper-cifar10", "paper-fmnist"))
    assignment = np.array([[0, 1, 2, 3] + [-1] * 6])
    ratio = small.delays(0, assignment).total_s / large.delays(0, assignment).total_s
    np.testing.assert_allclose(ratio[0, :4], 0.4, rtol=1e-9)


def test_the_wide_preset_sends_the_whole_model_and_is_not_a_scaled_copy():
    from fedlane.simulation.setup import prepare

    scenario = Scenario.load("paper-cifar10-wide")
    assert (scenario.data.dataset, scenario.learning.model) == ("cifar10", "cnn")
    assert (scenario.network.payload_bits, scenario.privacy.epsilon, scenario.rounds) == ("model", 25, 500)
    wide, scaled = (prepare(Scenario.load(name), range(20)).network for name in ("paper-cifar10-wide", "paper-cifar10"))
    assert wide.radio.payload_bits == 32 * 930_826
    # 30 million cycles for each of the 64 samples of an iteration, five iterations
    np.testing.assert_allclose(wide.compute.cycles, 5 * 64 * 30e6)
    everybody = np.tile([0, 1, 2, 3] + [-1] * 6, (20, 1))
    ratio = wide.delays(0, everybody).total_s[:, :4] / scaled.delays(0, everybody).total_s[:, :4]
    assert ratio.max() / ratio.min() > 3


def test_presets_name_the_paper_s_section_and_what_is_ours():
    folder = resources.files("fedlane").joinpath("scenario", "presets")
    for name in presets():
        text = folder.joinpath(f"{name}.toml").read_text(encoding="utf-8")
        assert "Section VI)" not in text
        if name.startswith("paper-"):
            assert "(Section VII)" in text
            for key in ("payload_bits", "cycles_per_sample", "interference_db", "samples_per_client", "batch_size"):
                (line,) = [line for line in text.splitlines() if line.startswith(f"{key} =")]
                assert "# ours" in line, (name, key)


@pytest.mark.parametrize("name", presets())
def test_toml_round_trip(name, tmp_path):
    epsilon = list(range(1, Scenario.load(name).network.clients + 1))
    scenario = Scenario.load(name).with_values({"privacy.epsilon": epsilon, "policies.lane.V": 3})
    path = tmp_path / f"{name}.toml"
    path.write_text(scenario.to_toml())
    assert Scenario.load(path) == scenario


def test_strings_survive_toml(tmp_path):
    scenario = Scenario().with_values(
        {"learning.model": 'pkg:"Net\\n"\u00e9', "policies.mamab-om.queue_weight": "success"}
    )
    (tmp_path / "a.toml").write_text(scenario.to_toml())
    assert Scenario.load(tmp_path / "a.toml") == scenario


def test_settings_are_read_as_toml_or_text():
    s = Scenario().with_settings(
        ["network.clients=20", "network.fading=rayleigh", "network.interference_db=[0, 3.5]", "policies.lane.V=2"]
    )
    assert (s.network.clients, s.network.fading, s.network.interference_db) == (20, "rayleigh", (0, 3.5))
    assert s.policies == {"lane": {"V": 2}}
    assert Scenario().with_values({"network.clients": np.int64(7)}).network.clients == 7


@pytest.mark.parametrize(
    "changes",
    [{"privacy": {"epsilon": 3}}, {"privacy.epsilon": 3}],
    ids=["table", "dotted"],
)
def test_nested_values_are_merged(changes):
    """A changed epsilon changes neither the mechanism nor the delta."""
    before, after = Scenario.load("quickstart"), Scenario.load("quickstart").with_values(changes)
    assert after.privacy == before.privacy.model_copy(update={"epsilon": 3.0})
    assert after == before.with_settings(["privacy={epsilon=3.0}"])


def test_tables_of_several_settings_add_up():
    s = Scenario.load("quickstart").with_settings(
        ["privacy={epsilon=3.0}", "privacy={delta=1e-6}", "privacy.delta=1e-7"]
    )
    assert (s.privacy.mechanism, s.privacy.epsilon, s.privacy.delta) == ("rigorous", 3.0, 1e-7)
    s = Scenario.load("paper-fmnist").with_settings(["policies.mamab-om={V=7}", "policies={lane={V=2}}"])
    assert s.policies["mamab-om"] == {"exploration": 0.1, "T0": 100, "V": 7}
    assert set(s.policies) == {"mamab-om", "mamab-gmba", "lane"}


def test_without_a_privacy_table_the_mechanism_is_none(tmp_path):
    (tmp_path / "mine.toml").write_text("rounds = 7\n")
    mine = Scenario.load(tmp_path / "mine.toml")
    assert mine.privacy.mechanism == Scenario().privacy.mechanism == "none"
    assert mine.with_values({"network.clients": 3}).privacy.mechanism == "none"
    assert Scenario.from_values(tomllib.loads(mine.to_toml())) == mine


@pytest.mark.parametrize("table", ["", "epsilon = 2.0\n"])
def test_a_privacy_table_without_a_mechanism_is_rigorous_and_says_so_once(table, tmp_path):
    (tmp_path / "mine.toml").write_text(f"[privacy]\n{table}")
    with pytest.warns(
        ScenarioWarning, match=r'mine has \[privacy\] without a mechanism, so "rigorous" is used'
    ) as said:
        mine = Scenario.load(tmp_path / "mine.toml")
    assert mine.with_values({"rounds": 3}).privacy.mechanism == mine.privacy.mechanism == "rigorous"
    assert [warning.filename for warning in said] == [__file__]


def test_a_first_privacy_value_makes_a_scenario_rigorous():
    with pytest.warns(ScenarioWarning, match="rigorous"):
        assert Scenario().with_values({"privacy.epsilon": 3}).privacy.mechanism == "rigorous"


def test_a_privacy_value_without_effect_is_mentioned():
    plain = Scenario().with_values({"privacy.mechanism": "none"})
    with pytest.warns(ScenarioWarning, match=r'privacy.epsilon has no effect, because privacy.mechanism is "none"'):
        assert plain.with_values({"privacy.epsilon": 3}).privacy.mechanism == "none"


def test_scenarios_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Scenario().rounds = 3


def test_per_client_values():
    s = Scenario().with_values({"network.clients": 2, "privacy": {"mechanism": "paper", "epsilon": [1, 2.5]}})
    np.testing.assert_array_equal(s.epsilon, [1.0, 2.5])
    np.testing.assert_array_equal(s.per_client(s.privacy.delta), [1e-3, 1e-3])
    assert s.max_uploads.tolist() == [s.rounds] * 2
    assert s.with_values({"privacy.max_uploads": 9}).max_uploads.tolist() == [9, 9]
    assert s.with_values({"privacy.max_uploads": [9, 3]}).max_uploads.tolist() == [9, 3]


def test_the_paper_s_non_uniform_epsilons():
    """eps_i = 5 (floor((i - 1) / 2) + 3), i from 1."""
    s = Scenario().with_values({"privacy.mechanism": "paper", "privacy.epsilon": "nonuniform"})
    assert s.epsilon.tolist() == [15, 15, 20, 20, 25, 25, 30, 30, 35, 35]
    assert Scenario.from_values(tomllib.loads(s.to_toml())) == s


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("network.bandwidth_up_hz=nan", "network.bandwidth_up_hz must be a finite number, got nan"),
        ("network.bandwidth_up_hz=-1", "network.bandwidth_up_hz must be greater than 0, got -1"),
        ("network.channels=0", "network.channels must be at least 1, got 0"),
        ("network.channels=2.5", "network.channels must be a whole number, got 2.5"),
        ("network.channels=abc", "network.channels must be a whole number, got 'abc'"),
        ("network.clients=true", "network.clients must be a whole number, got True"),
        ("network.deadline_s=0", "network.deadline_s must be greater than 0, got 0"),
        ("network.deadline_s=inf", "network.deadline_s must be a finite number, got inf"),
        ("network.payload_bits=-3", "network.payload_bits must be greater than 0 or 'model', got -3"),
        (
            "network.payload_bits=modle",
            "network.payload_bits must be a number or 'model', got 'modle' (did you mean 'model'?)",
        ),
        ("network.fading=no", "network.fading must be 'none' or 'rayleigh', got 'no' (did you mean 'none'?)"),
        (
            "network.interference_db=[3, 1]",
            "network.interference_db must be [low, high] with low at most high, got [3.0, 1.0]",
        ),
        ("network.interference_db=5", "network.interference_db must be a list, got 5"),
        ("network.chanels=3", "unknown key 'network.chanels' (did you mean 'channels'?)"),
        ("netwrk.channels=3", "unknown key 'netwrk' (did you mean 'network'?)"),
        ("rounds.x=3", "unknown key 'rounds.x': 'rounds' has no keys below it"),
        ("rounds=0", "rounds must be at least 1, got 0"),
        ("network=3", "network must be a table, got 3"),
        ("data.noniid_degree=1.5", "data.noniid_degree must be at most 1, got 1.5"),
        ("data.imbalance=1", "data.imbalance must be less than 1, got 1"),
        (
            "compute.cycles_per_sample=[1, 2]",
            "compute.cycles_per_sample must be one value or one per client (10), got 2 values",
        ),
        ("privacy.epsilon=[1, -2]", "privacy.epsilon must be greater than 0 or 'nonuniform', got -2"),
        ("privacy.delta=1", "privacy.delta must be less than 1, got 1"),
        ("privacy.max_uploads=0", "privacy.max_uploads must be at least 1 or 'rounds', got 0"),
        ("policies.lane.V=nan", "policies.lane.V must be a finite number, got nan"),
        ("foo", "'foo' must have the form key=value"),
    ],
)
def test_a_wrong_value_gets_one_clear_line(setting, message):
    with pytest.raises(InputError) as error:
        Scenario.load("paper-fmnist").with_settings([setting])
    assert str(error.value) == message


def test_frequencies_must_be_positive_for_every_client():
    with pytest.raises(InputError, match=r"greater than 0 .* for client 10"):
        Scenario().with_values({"compute.frequency_low_hz": [15e3, -2e3]})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("paper-fmnst", r"unknown scenario 'paper-fmnst' \(did you mean 'paper-fmnist'\?\)"),
        ("nowhere/x.toml", "scenario file nowhere/x.toml does not exist"),
    ],
)
def test_unknown_scenarios(name, message):
    with pytest.raises(InputError, match=message):
        Scenario.load(name)


def test_broken_toml(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(InputError, match="scenario bad is not valid TOML"):
        Scenario.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        Scenario.load(path)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("clients=5", "unknown key 'clients' (did you mean 'network.clients'?)"),
        ("batch_size=5", "unknown key 'batch_size' (did you mean 'learning.batch_size'?)"),
        ("network.epsilon=5", "unknown key 'network.epsilon' (did you mean 'privacy.epsilon'?)"),
        ("network.Clients=5", "unknown key 'network.Clients' (did you mean 'clients'?)"),
        ("network.clientz=5", "unknown key 'network.clientz' (did you mean 'clients'?)"),
        ("round=5", "unknown key 'round' (did you mean 'rounds'?)"),
    ],
)
def test_a_key_in_the_wrong_table_is_suggested_with_its_table(setting, hint):
    with pytest.raises(InputError, match=re.escape(hint)):
        Scenario().with_settings([setting])


def test_a_parameter_in_small_letters_is_suggested():
    with pytest.raises(InputError, match=re.escape("policy lane has no parameter 'v' (did you mean 'V'?)")):
        make_policy("lane:v=10")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.tml", "scenario file x.tml does not exist; scenario files end in .toml"),
        ("mine.tml", "scenario file mine.tml does not exist (did you mean 'mine.toml'?)"),
        ("mine", "scenario file mine does not exist (did you mean 'mine.toml'?)"),
        ("x.toml", "scenario file x.toml does not exist"),
        ("folder", "scenario file folder does not exist (did you mean 'folder/scenario.toml'?)"),
    ],
)
def test_a_missing_file_says_how_scenario_files_end(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("mine.toml", "folder/scenario.toml"):
        (tmp_path / file).write_text("")
    with pytest.raises(InputError) as error:
        Scenario.load(name)
    assert str(error.value) == message
