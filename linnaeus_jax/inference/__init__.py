"""Using a trained model: bundles, predictions, the server and exports."""
