"""An app in the manner of Flower's quickstart for PyTorch: convolutions, shuffled minibatches, momentum. The
learning rate falls with the number of trips of a node, which the app keeps in the state of its context."""

PYPROJECT = """
[project]
name = "kept-state"
version = "1.0.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "kept_state.server_app:app"
clientapp = "kept_state.client_app:app"

[tool.flwr.app.config]
local-epochs = 1
batch-size = 64
"""

TASK = """
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.register_buffer("scale", torch.tensor([16]))
        self.output = nn.Linear(4 * 6 * 6, 10)

    def forward(self, images):
        images = torch.relu(self.convolution(images / self.scale))
        return self.output(images.flatten(1))


def loader(part, parts, batch_size):
    images, labels = load_digits(return_X_y=True)
    examples = TensorDataset(
        torch.tensor(images[part::parts], dtype=torch.float32).view(-1, 1, 8, 8),
        torch.tensor(labels[part::parts]),
    )
    return DataLoader(examples, batch_size=batch_size, shuffle=True)
"""

CLIENT_APP = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from kept_state.task import Net, loader

app = ClientApp()


def made(msg, context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    return model, loader(part, parts, context.run_config["batch-size"])


@app.train()
def train(msg, context):
    model, batches = made(msg, context)
    trips = context.state["trips"]["count"] if "trips" in context.state else 0
    context.state["trips"] = MetricRecord({"count": trips + 1})
    context.state["last"] = ArrayRecord({"bias": model.output.bias.detach()})
    lr = msg.content["config"]["lr"] / (1 + trips)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(context.run_config["local-epochs"]):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(batches.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg, context):
    model, batches = made(msg, context)
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in batches)
    metrics = MetricRecord({"eval_acc": right / len(batches.dataset), "num-examples": len(batches.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
"""


def write_app(folder):
    """Write the app into a new folder and return it."""
    package = folder / "kept_state"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("")
    (package / "task.py").write_text(TASK)
    (package / "client_app.py").write_text(CLIENT_APP)
    return folder
