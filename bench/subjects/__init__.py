"""One file per subject; each has `rows`, which takes the measurements and says what came of them."""
