"""From layers to a schedule: where tensors lie, which cycle every instruction issues in, and the words of the queues."""
