"""A model and clients of one's own: three hospitals of different size and speed, one linear-ish task."""

import torch

import tardigrad as td

generator = torch.Generator().manual_seed(0)
x = torch.randn(1200, 20, generator=generator)
y = (x[:, :5].sum(dim=1) > 0).long()
clients = {"north": (x[:100], y[:100]), "south": (x[100:400], y[100:400]), "west": (x[400:1000], y[400:1000])}
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

result = td.run(
    model=model, clients=clients, test=(x[1000:], y[1000:]),
    algorithm=td.FedBuff(lr=1.0), buffer=td.Buffer(size=2), delay=td.LogNormal(spread=1.0),
    local=td.Local(epochs=1, lr=0.1), stop=td.Stop(trips=60),
)  # fmt: skip
model.load_state_dict(result.model)
print(f"{result.accuracy:.1%} after {result.client_trips} trips, {result.virtual_time:.1f} units of time")
