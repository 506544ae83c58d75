"""Deprecated: these names are in `ricnet.models`."""

from ricnet.deprecated import moved

__getattr__ = moved(__name__, Classifier="ricnet.models.classifier", load="ricnet.models.loading")
