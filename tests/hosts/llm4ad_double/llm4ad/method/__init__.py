"""Methods of the stand-in."""
