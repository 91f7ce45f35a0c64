//! How an error travels.
