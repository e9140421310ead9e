"""Scripts run by the Pythons of the peers; they import nothing of this package."""
