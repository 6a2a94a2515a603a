"""The ClientApp: what a SuperNode does with a message."""

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import load_data, make_model
from digits_app.task import test as test_model
from digits_app.task import train as train_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the node's own examples."""
    torch.set_num_threads(1)
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    examples, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    time.sleep(float(context.node_config.get("slow-seconds", 0)))  # a slow device
    loss = train_model(
        model, examples, int(context.run_config.get("local-epochs", 1)), msg.content["config"]["lr"]
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(examples)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on examples that the node does not train on."""
    model = make_model()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, examples = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = test_model(model, examples)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(examples)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
