"""A run of learning, as a job: from a rule's examples to a head that was tried on later ones."""
