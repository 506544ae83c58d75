import subprocess
import sys


def test_reports_are_read_and_drawn_without_torch() -> None:
    """It takes two seconds to import, and `ric report` has no use for it."""
    script = "import sys, ricnet.report.page, ricnet.report.published; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
