"""Conformance with PyTorch: OpInfo, models, training and errors against eager."""
