"""The report page of runs that learn numbers, whose unit may be small, and of runs on sequences of tokens."""

import json

import numpy as np
import pytest

from support.browsing import Tab, page_of, save_run

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]

PLAIN = ["network.clients=4", "network.channels=2", "privacy.mechanism=none", "data.partition=iid"]


def page_of_data(folder, arrays, settings):
    """Address of the page of a run on the data, and the run's summary."""
    np.savez(folder / "my.npz", **arrays)
    save_run(folder / "run", settings=[*PLAIN, f"data.dataset={folder / 'my.npz'}", *settings])
    return page_of(folder, [folder / "run"]), json.loads((folder / "run" / "summary.json").read_text())


@pytest.mark.parametrize("unit", [1e-4, 0.03, 1e3])
def test_losses_and_errors_are_readable_in_any_unit(browser, tmp_path, unit):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = (unit * (x.sum(axis=1) + 0.1 * rng.normal(size=400))).astype(np.float32)
    arrays = {"x_train": x[:300], "y_train": y[:300], "x_test": x[300:], "y_test": y[300:]}
    address, summary = page_of_data(tmp_path, arrays, ["learning.model=softmax", "learning.learning_rate=0.1"])
    with Tab(browser, address) as tab:
        assert tab.errors == []
        card = tab.page.locator("#overview").inner_text()
        assert "Final RMSE" in card
        assert "Final accuracy" not in card
        figure = tab.page.locator("#learning figure").first
        assert "test loss (squared error)" in figure.inner_text()
        shown = card[card.index("Final RMSE") :].split()[2].replace("\N{MINUS SIGN}", "-").replace(",", "")
        assert float(shown) == pytest.approx(summary["final_rmse"]["mean"], rel=0.006)
        for k in range(2):
            texts = tab.page.locator("#learning figure").nth(k).locator("svg text[text-anchor=end]").all_text_contents()
            ticks = [text for text in texts if text and text[0].isdigit()]
            assert len(ticks) == len(set(ticks)) > 2


def test_a_run_on_tokens_has_its_accuracy(browser, tmp_path):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 20, (400, 5))
    arrays = {"x_train": tokens[:300], "y_train": tokens[:300, 4] % 4, "x_test": tokens[300:]}
    arrays["y_test"] = tokens[300:, 4] % 4
    address, summary = page_of_data(tmp_path, arrays, ["learning.model=sequence", "learning.learning_rate=1.0"])
    with Tab(browser, address) as tab:
        assert tab.errors == []
        accuracy = f"{100 * summary['final_accuracy']['mean']:.1f}%"
        assert accuracy in tab.page.locator("#overview").inner_text()
        assert "Accuracy against rounds" in tab.page.locator("#learning").inner_text()
        assert "\N{MINUS SIGN}0.0 s" not in tab.page.locator("#rounds").inner_text()
