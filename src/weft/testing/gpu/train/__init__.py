"""What `weft bench gpu --suite train` measures: models, one contender's training in a process, and the race of all."""
