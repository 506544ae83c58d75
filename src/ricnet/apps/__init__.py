"""Interfaces for users: command line, scikit-learn estimators and server."""
