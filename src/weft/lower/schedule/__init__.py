"""Tiles and grids: schedules for processors and GPUs, and the model that dots are judged by."""
