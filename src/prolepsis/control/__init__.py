"""The control plane: policies as code, and what rollouts of them are judged by. Plain values in and out; no torch."""
