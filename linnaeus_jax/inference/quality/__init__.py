"""How good a model is: calibration, the card, evaluation on labelled data, explanations."""
