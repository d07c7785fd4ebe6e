"""Real clients whose records are sequences of tokens."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord

from fedlane.flower import evaluate_arrays, first_arrays, new_ledger
from fedlane.flower.client.reply import CLIENT_ERROR
from fedlane.flower.protocol import LossReport
from fedlane.validate import InputError
from support.lane_clients import make_client, message, order, reply_of, report_of, uploads_on_disk

TOKENS, LENGTH = 9, 6


def records(context=None):
    """Sequences whose class is the first token, modulo 3."""
    tokens = np.random.default_rng(2).integers(0, TOKENS, (300, LENGTH))
    return tokens, tokens[:, 0] % 3


class Words(torch.nn.Module):
    """A user's own module for tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(TOKENS, 4), torch.nn.Linear(4 * LENGTH, 3)

    def forward(self, tokens):
        return self.head(self.table(tokens).flatten(1))


@pytest.mark.parametrize("model", ["sequence", Words])
def test_a_private_client_trains_on_tokens(tmp_path, model):
    ledger = new_ledger(tmp_path / "ledger", "anna")
    sent = first_arrays(model, (LENGTH,), 3, tokens=TOKENS)
    reply = reply_of(make_client(tmp_path, model=model, data=records, tokens=TOKENS), order(sent))
    assert report_of(reply).status == "trained"
    assert uploads_on_disk(ledger) == {"data": 1}
    assert all(not np.array_equal(array.numpy(), sent[name].numpy()) for name, array in reply.content["arrays"].items())


@pytest.mark.parametrize("model", ["sequence", Words])
def test_a_client_without_privacy_learns_from_tokens(tmp_path, model):
    client = make_client(
        tmp_path, model=model, data=records, tokens=TOKENS, epsilon=None, learning_rate=0.5, local_iterations=80
    )
    sent = first_arrays(model, (LENGTH,), 3, tokens=TOKENS)
    reply = reply_of(client, order(sent, iterations=80))
    update = reply.content["arrays"]
    request = message("evaluate", arrays=update, config=ConfigRecord())
    assert reply_of(client, request).content["metrics"]["accuracy"] > 0.9


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_losses_of_tokens_are_reported(tmp_path, epsilon):
    """Without privacy, a sample of all records has the loss that the server's model has on them."""
    ledger = new_ledger(tmp_path / "ledger", "anna")
    sent = first_arrays("sequence", (LENGTH,), 3, tokens=TOKENS)
    client = make_client(
        tmp_path,
        model="sequence",
        data=records,
        tokens=TOKENS,
        epsilon=epsilon,
        report_losses=True,
    )
    losses = LossReport.read(reply_of(client, order(sent)).content)
    assert losses.protected == (epsilon is not None)
    assert uploads_on_disk(ledger) == ({} if epsilon is None else {"data": 1})
    if epsilon is None:
        assert losses.mean == pytest.approx(evaluate_arrays("sequence", sent, *records(), 3, TOKENS)["loss"], rel=1e-5)


@pytest.mark.parametrize(
    "inputs", [np.full((5, LENGTH), TOKENS), np.zeros((5, LENGTH)), np.full((5, LENGTH), -1)], ids=["9", "float", "-1"]
)
def test_wrong_tokens_are_logged_and_not_sent(tmp_path, caplog, inputs):
    new_ledger(tmp_path / "ledger", "anna")
    client = make_client(tmp_path, model="sequence", data=lambda c: (inputs, np.zeros(5, int)), tokens=TOKENS)
    report = report_of(reply_of(client, order(first_arrays("sequence", (LENGTH,), 3, tokens=TOKENS))))
    assert (report.status, report.reason) == ("failed", CLIENT_ERROR)
    assert "inputs must be tokens, whole numbers from 0 to 8" in caplog.text


def test_invalid_numbers_of_tokens_are_refused(tmp_path):
    with pytest.raises(InputError, match="tokens must be at least 1, got 0"):
        make_client(tmp_path, tokens=0)
    with pytest.raises(InputError, match="model mlp takes numbers, but the data set has tokens"):
        first_arrays("mlp", (LENGTH,), 3, tokens=TOKENS)
