//! Between the corpus of the repository and the folders of libFuzzer: `gradlane-corpus unpack|pack FOLDER [TARGET...]`. Each target has a
//! folder below FOLDER. `make fuzz` unpacks; see `fuzz/README.md` for packing.

use std::path::PathBuf;
use std::process::ExitCode;

use gradlane_tests::fuzz::{TARGETS, corpus};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(verb), Some(folder)) = (arguments.next(), arguments.next().map(PathBuf::from)) else { return usage() };
    let named: Vec<String> = arguments.collect();
    for target in TARGETS.iter().filter(|target| named.is_empty() || named.iter().any(|name| name == target.name)) {
        let folder = folder.join(target.name);
        let outcome = match verb.as_str() {
            "unpack" => corpus::unpack(target, &folder),
            "pack" => corpus::pack(target, &folder).map(|count| println!("{}: {count} inputs", target.name)),
            _ => return usage(),
        };
        if let Err(error) = outcome {
            eprintln!("{}: {error}", folder.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("gradlane-corpus unpack|pack FOLDER [TARGET...]");
    ExitCode::from(2)
}
