"""The graph dialect: whole-tensor ops, one class each. Importing this package fills the registry."""
