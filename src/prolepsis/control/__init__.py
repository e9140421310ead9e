"""The control plane: policies as code. Facts of a request go in, terms of its speculation come out; no torch."""
