"""How the pages below `docs/reference` are made from the code; `make reference` writes them."""
