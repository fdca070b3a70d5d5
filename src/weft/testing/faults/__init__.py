"""What befalls programs in the world: `python -m weft.testing.faults` does it to Weft and compares with eager."""
