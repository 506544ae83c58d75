import sys
from pathlib import Path

# Benchmarks are scripts beside the package; they find each other as scripts do.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
