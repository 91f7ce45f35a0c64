//! Jobs that go on without servers that are killed.

use gradlane_server::coordinator::CoordinatorConfig;
use gradlane_server::coordinator::driver::CoordinatorNode;
use gradlane_tests::cluster::config;
use gradlane_tests::matrix;
use gradlane_tests::over::Over;

use crate::actors::{repetitions, server, worker};

matrix! {
    [over_shm, over_quic]:
        a_job_goes_on_without_the_servers_that_are_killed_and_loses_no_sum;
}

/// Kills one of three servers while a sum of many parts is under way, and then another one.
fn a_job_goes_on_without_the_servers_that_are_killed_and_loses_no_sum(over: Over) {
    // So patient that silence cannot be what is heard of.
    let settings = &[("on_server_loss", "continue"), ("dead_timeout", "1h")];
    for repetition in 0..repetitions(2) {
        let config = config(over, settings);
        let machine = CoordinatorConfig::from_config(&config, 3, 3);
        let coordinator = CoordinatorNode::start(machine, &config, None).unwrap();
        let join = coordinator.join_string();
        let mut servers = [0, 1, 2].map(|index| server(over, join, index, settings));
        let mut workers = [0, 1, 2].map(|rank| worker(over, &["puppet"], join, Some(rank), 3, settings));
        for (rank, worker) in workers.iter_mut().enumerate() {
            assert_eq!(worker.line(), format!("joined {rank}"));
        }
        for round in 0..12 {
            // The last worker comes before the kill, or after it.
            let (first, last) = workers.split_at_mut(2);
            let order = format!("{} weight {round}", ["large", "beside"][repetition as usize % 2]);
            first.iter_mut().for_each(|worker| worker.order(&order));
            let kills = if round % 4 == 3 { servers.get_mut(round / 4) } else { None }.filter(|_| round < 8);
            if round == 3 {
                last[0].order(&order);
            }
            if let Some(server) = kills {
                server.signal("KILL");
                // The workers that share memory with it see its end.
                if over != Over::Shm {
                    coordinator.report_death(server.pid(), "killed by signal 9".to_owned());
                }
            }
            if round != 3 {
                last[0].order(&order);
            }
            for worker in &mut workers {
                assert_eq!(worker.line(), "sum of [0, 1, 2]", "{over}, round {round}");
                assert_eq!(worker.line(), "ok");
            }
        }
        workers.iter_mut().for_each(|worker| worker.order("shutdown 10000"));
        workers.iter_mut().for_each(|worker| assert_eq!(worker.line(), "ok"));
        assert_eq!(servers[2].end().code, Some(0));
    }
}
