"""The ServerApp: which nodes train when, and how their models become one."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model on the nodes of the grid."""
    strategy = FedAvg(min_available_nodes=4)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model().state_dict()),
        train_config=ConfigRecord({"lr": context.run_config["lr"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
    print(result)
