"""The doors: command line, scikit-learn, ONNX, hub and server."""
