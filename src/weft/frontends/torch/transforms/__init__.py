"""Derivatives and batches of compiled functions, as torch asks for them: by `torch.func`, duals and `create_graph`."""
