//! Where cargo puts the library that it builds for the crates that depend on it.

use std::path::PathBuf;

/// Cargo builds the library of a dependency into the folder of the test programs (`target/debug/deps`); programs and examples lie one
/// folder above or beside that one.
pub(crate) fn beside_this_program(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a program knows where it lies");
    let folders = program.ancestors().skip(1).take(2);
    let places: Vec<PathBuf> = folders.flat_map(|folder| [folder.join(name), folder.join("deps").join(name)]).collect();
    places.iter().find(|place| place.is_file()).unwrap_or_else(|| panic!("{name} is at none of {places:?}")).clone()
}
