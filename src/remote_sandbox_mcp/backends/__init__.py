"""Places that commands run in, several ways behind one protocol."""
