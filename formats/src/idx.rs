//! IDX files, the format of MNIST.
