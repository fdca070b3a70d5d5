"""What a training step keeps for its backward, within a memory budget."""
