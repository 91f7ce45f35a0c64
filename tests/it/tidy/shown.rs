//! The exporter's thread waits for nobody: what it shows is in files that take no lock.

use super::source::Source;
use super::{everything, report};

#[test]
fn what_the_exporter_shows_is_read_without_a_lock() {
    const LOCKS: [&str; 6] = [".lock(", ".try_lock(", ".read()", ".write()", "Mutex", "RwLock"];
    let shows = |source: &Source| source.code.contains("impl Shown for");
    let shown: Vec<Source> = everything().into_iter().filter(|source| !source.is_test && shows(source)).collect();
    assert_eq!(shown.len(), 4, "of a worker, a worker alone, a server and a coordinator");
    let mut wrong = Vec::new();
    for source in shown {
        for word in LOCKS {
            wrong.extend(source.lines_with(word).map(|line| format!("{}:{line}: {word}", source.path)));
        }
    }
    report("locks beside what the exporter shows", wrong);
}
