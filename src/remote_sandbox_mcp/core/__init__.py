"""Values and decisions: pure, standard library only, no input or output."""
