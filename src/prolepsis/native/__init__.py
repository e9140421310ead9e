"""C++ sources and the one place that builds and loads them."""
