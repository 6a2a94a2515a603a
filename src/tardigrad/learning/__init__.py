"""What happens on a client: local training of any torch.nn.Module on one flat vector."""
