import ricnet


def test_names_that_are_not_fetched_yet_are_listed() -> None:
    assert {"train", "load", *ricnet.__all__} <= set(dir(ricnet))
