import pytest

from ricnet.report.page import page_html
from ricnet.report.runs import RunGroup


@pytest.fixture(scope="session")
def comparison_page(systems: list[RunGroup]) -> str:
    return page_html(systems)
