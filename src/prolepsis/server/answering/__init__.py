"""From a prepared request to the answer, its stream and its account."""
