"""Local training of any torch.nn.Module on one flat vector: models, heads, transforms and evaluation."""
