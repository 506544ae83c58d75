from count_walks import walk


def test_a_request_crosses_at_most_ten_files() -> None:
    files = walk("serve")
    assert len(files) <= 10, files
    assert any(file.endswith("apps/server/application.py") for file in files)
