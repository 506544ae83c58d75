"""Former place of `take_given` and `ran_on`, which are in `ricnet.studies.runner` now."""

from ricnet.deprecated import moved

__getattr__ = moved(__name__, take_given="ricnet.studies.runner", ran_on="ricnet.studies.runner")
