//! The C interface in a job of one.
#![expect(unsafe_code, reason = "the functions under test take pointers")]

mod caller;

mod misuse;
mod parameters;
mod steps;
mod tables;
