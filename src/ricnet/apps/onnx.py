"""Deprecated: these names are in `ricnet.models`."""

from ricnet.deprecated import moved

__getattr__ = moved(__name__, export_onnx="ricnet.models.onnx", compare="ricnet.models.onnx")
