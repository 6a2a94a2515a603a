"""The model, the data and the training of the app. The data comes with scikit-learn, without a download."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    """Return the model with its first weights, which are always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition_id, num_partitions):
    """Return the examples of a node for training and for evaluation."""
    images, labels = load_digits(return_X_y=True)
    examples = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    own = torch.utils.data.Subset(examples, range(partition_id, len(examples), num_partitions))
    share = len(own) // 5
    return torch.utils.data.Subset(own, range(share, len(own))), torch.utils.data.Subset(own, range(share))


def train(model, examples, epochs, lr):
    """Train the model and return its mean loss in the last epoch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        total = 0.0
        for images, labels in DataLoader(examples, batch_size=32):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(labels)
    return total / len(examples)


def test(model, examples):
    """Return the loss and the accuracy of the model."""
    images, labels = next(iter(DataLoader(examples, batch_size=len(examples))))
    with torch.no_grad():
        outputs = model(images)
    accuracy = (outputs.argmax(dim=1) == labels).float().mean().item()
    return nn.functional.cross_entropy(outputs, labels).item(), accuracy
