//! What the fuzz targets check of private decoders.

use std::time::Duration;

use gradlane_core::pipeline::LayoutConfig;
use gradlane_core::types::{Address, Incarnation, LinkId, NodeId, Process, Role, Scheme, StepReport, StoreAsk, Time};
use gradlane_core::wire::Frame;
use gradlane_core::wire::frame::Join;

use crate::coordinator::driver::{journal as file, term};
use crate::coordinator::{Command, Coordinator, CoordinatorConfig, Policy, Record};
pub use crate::launch::fuzzing::{a_rendezvous, rendezvous};

/// The file with the term of a coordinator: terms only grow, and one that was written is read.
pub fn term(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(next) = term::after(text) {
        assert!(next > 0);
        let written = term::text(next);
        assert_eq!(term::after(&written), next.checked_add(1), "{written}");
    }
}

/// The journal of a coordinator: what is read was written so, and a coordinator goes on with it or says why not.
pub fn journal(bytes: &[u8]) {
    let Ok((records, whole)) = file::read(bytes) else { return };
    let written: Vec<u8> = records.iter().flat_map(|record| file::framed(&record.encode())).collect();
    assert_eq!([file::MAGIC, &written].concat(), bytes[..whole]);
    if let Ok((mut coordinator, now)) = Coordinator::recover(config(), records) {
        coordinator.handle_timeout(now);
        while coordinator.next_command().is_some() {}
    }
}

/// The journal of a small job.
pub fn a_journal() -> Vec<u8> {
    let mut coordinator = Coordinator::new(config(), 1, Time::ZERO);
    for (number, role) in [(9, Role::Server), (0, Role::Worker), (1, Role::Worker)] {
        let addresses = vec![Address::new(Scheme::Quic, "n:1")];
        let process = Process { addresses, ..Process::new(role, Incarnation(number.into())) };
        let join = Join { process, requested: None, epoch: None, workers: 0, servers: 0 };
        coordinator.handle_connected(LinkId(number.into()), NodeId([number; 32]), role);
        coordinator.handle_frame(Time(1), LinkId(number.into()), Frame::Join(join));
    }
    let said = [
        Frame::Barrier { request: 1, name: "b".to_owned(), timeout: Duration::from_secs(1) },
        Frame::Store { request: 2, ask: StoreAsk::Add { key: "n".to_owned(), amount: 1 } },
        Frame::Steps(StepReport { begun: 1, ..StepReport::default() }),
        Frame::Undeclare { request: 3, names: vec!["w".to_owned()] },
        Frame::Fail { cause: "c".to_owned() },
    ];
    for frame in said {
        coordinator.handle_frame(Time(2), LinkId(0), frame);
    }
    let commands = std::iter::from_fn(|| coordinator.next_command());
    let records = commands.filter_map(|command| match command {
        Command::Journal(record) => Some(file::framed(&Record::encode(&record))),
        _ => None,
    });
    [file::MAGIC.to_vec()].into_iter().chain(records).flatten().collect()
}

fn config() -> CoordinatorConfig {
    let second = Duration::from_secs(1);
    CoordinatorConfig {
        job: "fuzz".to_owned(),
        workers: 2,
        servers: 1,
        form_timeout: second,
        suspect_timeout: 2 * second,
        dead_timeout: 5 * second,
        boundary_timeout: 20 * second,
        workers_max: None,
        reform_timeout: 10 * second,
        leave_grace: 15 * second,
        end_grace: 3 * second,
        stall_interval: 10 * second,
        policy: Policy::CONTINUE,
        layout: LayoutConfig::default(),
        journals: true,
        defect: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_of_the_small_job_is_read_and_followed() {
        let (records, whole) = file::read(&a_journal()).unwrap();
        assert_eq!(whole, a_journal().len());
        assert_eq!(records.len(), 6, "{records:?}");
        let (coordinator, now) = Coordinator::recover(config(), records).unwrap();
        assert_eq!((now, coordinator.view().epoch.number), (Time(2), 2), "worker 0 gave up");
    }
}
