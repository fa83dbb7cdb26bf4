//! PNG images: encoder and decoder for small pictures.
