"""A trained model, in memory and on disk: its settings, its run folder, how it is loaded, asked, shared, exported."""
