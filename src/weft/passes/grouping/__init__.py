"""Which ops become one kernel."""
