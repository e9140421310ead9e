"""C++ sources, and the code that compiles and loads them."""
