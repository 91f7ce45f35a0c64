//! Between the corpus of the repository and the folders of libFuzzer: `gradlane-corpus unpack|pack FOLDER [TARGET...]`. Each target has a
//! folder below FOLDER. `gradlane-corpus names` prints all targets. `make fuzz` unpacks; see `fuzz/README.md` for packing.

use std::path::PathBuf;
use std::process::ExitCode;

use gradlane_tests::fuzz::{TARGETS, corpus};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (verb, folder) = (arguments.next().unwrap_or_default(), arguments.next().map(PathBuf::from));
    let Some(folder) = folder else {
        if verb == "names" {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            return ExitCode::SUCCESS;
        }
        return usage();
    };
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
    eprintln!("gradlane-corpus names, or gradlane-corpus unpack|pack FOLDER [TARGET...]");
    ExitCode::from(2)
}
