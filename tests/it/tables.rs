//! Tables: what workers do to rows is there for all, once, whatever links do meanwhile.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use gradlane_core::Error;
use gradlane_core::engine::{Engine, RowCounts, RowsUse};
use gradlane_core::error::Result;
use gradlane_core::types::{Priority, RowAction, ShrinkBounds, TensorSpec};
use gradlane_tests::cluster::{Cluster, PATIENCE, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::tap::{Fate, Tap};

const SPEC: &str = "sgd:lr=1;dim=3,init=uniform,scale=0.5,seed=7";

matrix! {
    [locally, over_shm, over_quic]:
        all_read_the_same_rows_whatever_servers_there_are,
        pushes_of_all_workers_are_all_there;
    [over_shm, over_quic]:
        a_push_is_done_once_though_links_are_cut_again_and_again,
        a_damaged_push_changes_nothing,
        counts_are_told_once_though_links_are_cut;
}

fn all_read_the_same_rows_whatever_servers_there_are(over: Over) {
    let ids: Vec<u64> = (0..500).map(|id| id * id * 1_000_003).collect();
    let mut of_one = None;
    for servers in [1, 3, 5] {
        let cluster = Cluster::start(over, 2, servers);
        for rows in all(&cluster.workers, |engine| rows(engine, RowAction::Pull, &ids).unwrap()) {
            assert_eq!(*of_one.get_or_insert_with(|| rows.clone()), rows, "{servers} servers");
        }
        assert_eq!(counts(&cluster.workers[0], RowAction::Stats).unwrap().rows, 500);
    }
}

fn pushes_of_all_workers_are_all_there(over: Over) {
    let cluster = Cluster::start(over, 3, 2);
    pushes_add_up(&cluster.workers, 20);
}

fn a_push_is_done_once_though_links_are_cut_again_and_again(over: Over) {
    let cut = |push| if push % 5 == 0 { Fate::Cut } else { Fate::Stay };
    let cluster = Cluster::tapped(over, 3, 2, &[], |transport| Arc::new(Tap::new(transport, cut)));
    pushes_add_up(&cluster.workers, 20);
}

/// Each worker pushes a digit of its own to rows that all share, and pulls in between.
fn pushes_add_up(workers: &[Engine], rounds: u32) {
    let ids: Vec<u64> = (0..200).collect();
    let before = rows(&workers[0], RowAction::Pull, &ids).unwrap();
    all(workers, |engine| {
        let digit = 32_f32.powi(engine.rank().0.cast_signed());
        for _ in 0..rounds {
            push(engine, &ids, &vec![digit; 3 * ids.len()]).unwrap();
            rows(engine, RowAction::Pull, &ids[..20]).unwrap();
        }
    });
    // Exact: numbers below 2^20 with a part that the first values have.
    let due = rounds as f32 * (1.0 + 32.0 + 1024.0);
    for engine in workers {
        let found = rows(engine, RowAction::Look, &ids).unwrap();
        let is_right = |(before, found): (&f32, &f32)| (before - found - due).abs() < 0.01;
        assert!(before.iter().zip(&found).all(is_right), "{} and {} instead of {due}", before[0], found[0]);
    }
}

fn a_damaged_push_changes_nothing(over: Over) {
    let is_damaged = Arc::new(AtomicBool::new(false));
    let cluster = Cluster::tapped(over, 1, 1, &[("checksum", "true")], |transport| {
        let damages = Arc::clone(&is_damaged);
        Arc::new(Tap::new(transport, move |_| if damages.load(Relaxed) { Fate::Damage } else { Fate::Stay }))
    });
    let engine = &cluster.workers[0];
    let before = rows(engine, RowAction::Pull, &[1, 2]).unwrap();
    is_damaged.store(true, Relaxed);
    let refused = push(engine, &[1, 2], &[1.0; 6]).unwrap_err();
    is_damaged.store(false, Relaxed);
    assert!(matches!(&refused, Error::Checksum { tensor, .. } if *tensor == "rows".into()), "{refused}");
    assert_eq!(rows(engine, RowAction::Look, &[1, 2]).unwrap(), before);
}

fn counts_are_told_once_though_links_are_cut(over: Over) {
    let cut = |push| if push % 3 == 0 { Fate::Cut } else { Fate::Stay };
    let cluster = Cluster::tapped(over, 1, 2, &[], |transport| Arc::new(Tap::new(transport, cut)));
    let engine = &cluster.workers[0];
    for turn in 0..10 {
        let ids: Vec<u64> = (100 * turn..100 * turn + 100).collect();
        push(engine, &ids, &[1.0; 300]).unwrap();
        // Each push has a score of 1, of which half is left.
        let shrunk = counts(engine, RowAction::Shrink).unwrap();
        assert_eq!((shrunk.scanned, shrunk.evicted, shrunk.rows), (100, 100, 0), "turn {turn}");
    }
    assert_eq!(counts(engine, RowAction::Stats).unwrap().evicted, 1000);
}

fn push(engine: &Engine, ids: &[u64], gradients: &[f32]) -> Result<()> {
    engine.use_rows(RowsUse { gradients, ..used(RowAction::Push, ids) })?.handle().wait(Some(PATIENCE))
}

fn rows(engine: &Engine, action: RowAction, ids: &[u64]) -> Result<Vec<f32>> {
    let begun = engine.use_rows(used(action, ids))?;
    begun.handle().wait(Some(PATIENCE))?;
    let mut rows = vec![0.0; 3 * ids.len()];
    begun.read_rows(&mut rows);
    Ok(rows)
}

fn counts(engine: &Engine, action: RowAction) -> Result<RowCounts> {
    let bounds = ShrinkBounds { decay: 0.5, min_score: 0.75, ..ShrinkBounds::KEEP };
    let begun = engine.use_rows(RowsUse { bounds, ..used(action, &[]) })?;
    begun.handle().wait(Some(PATIENCE))?;
    Ok(begun.counts())
}

fn used(action: RowAction, ids: &[u64]) -> RowsUse<'_> {
    RowsUse {
        tensor: TensorSpec::table("rows", SPEC.parse().unwrap()),
        action,
        step: 0,
        ids,
        gradients: &[],
        bounds: ShrinkBounds::KEEP,
        priority: Priority::default(),
        timeout: None,
    }
}
