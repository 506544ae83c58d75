import importlib

import pytest

import ricnet


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("ricnet.training.classifier", "Classifier"),
        ("ricnet.training.classifier", "load"),
        ("ricnet.training.config", "Config"),
        ("ricnet.training.config", "Optimization"),
        ("ricnet.apps.onnx", "export_onnx"),
        ("ricnet.studies.given", "take_given"),
    ],
)
def test_an_old_path_leads_to_the_new_one_with_a_warning(module: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"{module}.{name} is now ricnet\.(models|studies)"):
        found = getattr(importlib.import_module(module), name)
    assert found is getattr(ricnet, name, found)


def test_an_old_path_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        importlib.import_module("ricnet.training.classifier").nothing  # noqa: B018
