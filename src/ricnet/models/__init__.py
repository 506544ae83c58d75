"""A trained model in memory and on disk: settings, run folder, loading, inference, sharing and export."""
