"""Deprecated: these names are in `ricnet.models`."""

from ricnet.deprecated import moved

__getattr__ = moved(__name__, Config="ricnet.models.config", Optimization="ricnet.models.config")
