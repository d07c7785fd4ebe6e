"""A client that returns the message's content."""

from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
