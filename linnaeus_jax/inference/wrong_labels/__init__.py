"""Labels of a data set that are probably wrong, and how well features tell its taxa apart."""
