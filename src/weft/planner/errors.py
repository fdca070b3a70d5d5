"""What can be wrong with what the planner is given, and plans that there are not."""

from __future__ import annotations

from weft.errors import WeftError


class PlanError(WeftError):
    """Base of the planner's errors."""


class TableError(PlanError):
    """A kernel table that cannot be read, or lacks a column."""


class HardwareError(PlanError):
    """A description of hardware that is not one; the message names the field."""


class TrafficError(PlanError):
    """A description of traffic that is not one; the message names the field."""


class ModelError(PlanError):
    """A model's configuration that the planner cannot read; the message names the field."""


class FleetError(PlanError):
    """A description of a fleet that is not one; the message names the field."""


class CalibrationError(PlanError):
    """Measured runs that cannot be read, or that do not fit what is planned; the message names the field."""


class CapacityError(PlanError):
    """A model that fits nowhere: by how much, and what would fit."""
