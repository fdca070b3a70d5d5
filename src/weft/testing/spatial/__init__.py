"""Random programs for spatial machines, and schedules that were tampered with."""
