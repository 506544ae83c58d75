"""The doors: command line (later scikit-learn, ONNX, hub and server too)."""
