"""What `weft bench gpu` measures: a file a suite, how a case is run, and the child process in which it runs."""
