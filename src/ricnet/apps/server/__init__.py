"""A trained model behind HTTP, and a page on which to watch it think. Needs the extra [serve]."""
