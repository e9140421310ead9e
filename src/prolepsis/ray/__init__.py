"""Engine replicas on Ray Serve; `serve` alone imports ray, an extra."""
