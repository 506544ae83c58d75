"""Deprecated: `take_given` and `ran_on` are in `ricnet.studies.runner`."""

from ricnet.deprecated import moved

__getattr__ = moved(__name__, take_given="ricnet.studies.runner", ran_on="ricnet.studies.runner")
