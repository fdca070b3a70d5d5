"""`triton.language.extra.libdevice`."""

from weft.frontends.triton.libdevice import *  # noqa: F403
