"""From layers to a schedule: where tensors lie, when every instruction issues, and the words of the queues."""
