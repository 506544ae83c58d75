"""An HTTP server for a trained model, with a demo page. Needs the extra [serve]."""
