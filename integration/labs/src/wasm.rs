//! Building the shipped policies to WebAssembly.
