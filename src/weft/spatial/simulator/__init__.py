"""The simulator: it runs the words of the queues, cycle by cycle and bit by bit, and knows nothing of the compiler."""
