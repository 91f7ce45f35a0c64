//! Tables: what workers do to rows is there for all, once, whatever links do meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use gradlane_core::Error;
use gradlane_core::engine::{Engine, RowCounts, RowsUse, Scan};
use gradlane_core::error::Result;
use gradlane_core::types::{Priority, RowAction, ScanPoint, ShrinkBounds, TensorSpec};
use gradlane_tests::cluster::{Cluster, PATIENCE, all};
use gradlane_tests::matrix;
use gradlane_tests::over::Over;
use gradlane_tests::tap::{Fate, Tap};

const SPEC: &str = "sgd:lr=1;dim=3,init=uniform,scale=0.5,seed=7";

matrix! {
    [locally, over_shm, over_quic]:
        all_read_the_same_rows_whatever_servers_there_are,
        rows_of_half_precision_have_the_same_bits_whatever_servers_there_are,
        pushes_of_all_workers_are_all_there;
    [over_shm, over_quic]:
        a_push_is_done_once_though_links_are_cut_again_and_again,
        a_damaged_push_changes_nothing,
        who_follows_a_table_misses_nothing_though_links_are_cut_and_others_push,
        rows_are_put_back_once_though_links_are_cut,
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

fn rows_of_half_precision_have_the_same_bits_whatever_servers_there_are(over: Over) {
    let ids: Vec<u64> = (0..200).map(|id| id * id * 1_000_003).collect();
    for dtype in ["bf16", "fp16"] {
        let text = format!("adam:lr=0.01;dim=3,init=uniform,scale=0.5,seed=7,dtype={dtype},mode=sync");
        let table = || TensorSpec::table("rows", text.parse().unwrap());
        let mut of_one = None;
        for servers in [1, 3, 5] {
            let cluster = Cluster::start(over, 2, servers);
            let trained = all(&cluster.workers, |engine| {
                for step in 0..5 {
                    // Each worker has some ids that the other has not.
                    let first = 40 * engine.rank().0 as usize;
                    let some = &ids[first..first + 100 + step as usize];
                    let gradients: Vec<f32> = (0..3 * some.len()).map(|at| at as f32 * 1e-3 - 0.1).collect();
                    let push = RowsUse { tensor: table(), gradients: &gradients, step, ..used(RowAction::Push, some) };
                    engine.use_rows(push).unwrap().handle().wait(Some(PATIENCE)).unwrap();
                }
                let look = RowsUse { tensor: table(), ..used(RowAction::Look, &ids) };
                let looked = engine.use_rows(look).unwrap();
                looked.handle().wait(Some(PATIENCE)).unwrap();
                let mut rows = vec![0.0; 3 * ids.len()];
                looked.read_rows(&mut rows);
                rows.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            });
            for rows in trained {
                assert_eq!(*of_one.get_or_insert_with(|| rows.clone()), rows, "{dtype} of {servers} servers");
            }
        }
        // A bf16 that came as f32.
        assert!(dtype != "bf16" || of_one.unwrap().iter().all(|bits| bits & 0xffff == 0));
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

fn who_follows_a_table_misses_nothing_though_links_are_cut_and_others_push(over: Over) {
    let cut = |push| if push % 7 == 0 { Fate::Cut } else { Fate::Stay };
    let cluster = Cluster::tapped(over, 2, 1, &[], |transport| Arc::new(Tap::new(transport, cut)));
    let ids: Vec<u64> = (0..1500).collect();
    let push_all = |engine: &Engine| push_wide(engine, &ids).unwrap();
    push_all(&cluster.workers[0]);
    let mut copy = BTreeMap::new();
    all(&cluster.workers, |engine| {
        if engine.rank().0 == 1 {
            (0..10).for_each(|_| push_all(engine));
            return BTreeMap::new();
        }
        let (mut copy, mut since) = (BTreeMap::new(), Vec::new());
        for _ in 0..5 {
            let (pages, at) = followed(engine, &since, &mut copy);
            assert!(pages > 1, "more rows than one page of each part holds");
            // One moment of each part: all of its rows had as many pushes.
            let moments: BTreeSet<u32> = copy.values().copied().collect();
            assert!(moments.len() <= at.len(), "{moments:?} of {} parts", at.len());
            since = at;
            push_all(engine);
        }
        followed(engine, &since, &mut copy);
        copy
    })
    .into_iter()
    .for_each(|of_worker| copy.extend(of_worker));
    let (_, since) = followed(&cluster.workers[0], &[], &mut copy);
    assert!(copy.len() == ids.len() && copy.values().all(|value| *value == (-16_f32).to_bits()));
    let (pages, _) = followed(&cluster.workers[0], &since, &mut BTreeMap::new());
    assert_eq!(pages, 1, "nothing has changed");
}

fn rows_are_put_back_once_though_links_are_cut(over: Over) {
    let cut = |push| if push % 3 == 0 { Fate::Cut } else { Fate::Stay };
    let cluster = Cluster::tapped(over, 1, 2, &[], |transport| Arc::new(Tap::new(transport, cut)));
    let engine = &cluster.workers[0];
    for turn in 0..10_u64 {
        let ids: Vec<u64> = (0..100).collect();
        let gone = f32::NAN.to_bits();
        let marks: Vec<u64> = ids.iter().map(|id| if *id < turn { u64::from(gone) << 32 } else { 0 }).collect();
        let numbers = vec![turn as f32; 300];
        let restore = RowsUse { gradients: &numbers, marks: &marks, ..used(RowAction::Restore, &ids) };
        engine.use_rows(restore).unwrap().handle().wait(Some(PATIENCE)).unwrap();
        push(engine, &ids, &[1.0; 300]).unwrap();
        let found = rows(engine, RowAction::Look, &ids[turn as usize..]).unwrap();
        assert!(found.iter().all(|value| *value == turn as f32 - 1.0), "turn {turn}: {}", found[0]);
    }
}

/// Reads what has changed since then, and notes the bits of the first number of each row. Returns how many pages came from each part at most.
fn followed(engine: &Engine, since: &[ScanPoint], copy: &mut BTreeMap<u64, u32>) -> (u32, Vec<ScanPoint>) {
    let (mut action, mut points, mut pages) = (RowAction::Changed, since.to_vec(), 0);
    loop {
        let scan = Scan { life: 5, with_state: true, points: &points };
        let begun = engine.use_rows(RowsUse { scan, tensor: wide(), ..used(action, &[]) }).unwrap();
        begun.handle().wait(Some(PATIENCE)).unwrap();
        let came = begun.pages().unwrap();
        let words =
            |bytes: &[u8]| -> Vec<u32> { bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect() };
        for (id, numbers) in came.ids.as_chunks().0.iter().zip(words(&came.numbers).chunks_exact(512)) {
            copy.insert(u64::from_le_bytes(*id), numbers[0]);
        }
        pages += 1;
        (action, points) = (RowAction::Page, came.points);
        if points.iter().all(|point| point.cursor == 0) {
            break;
        }
    }
    let scan = Scan { life: 5, with_state: true, points: &[] };
    let ended = engine.use_rows(RowsUse { scan, tensor: wide(), ..used(RowAction::Page, &[]) }).unwrap();
    ended.handle().wait(Some(PATIENCE)).unwrap();
    (pages, points)
}

fn push_wide(engine: &Engine, ids: &[u64]) -> Result<()> {
    let gradients = vec![1.0; 256 * ids.len()];
    let begun = engine.use_rows(RowsUse { gradients: &gradients, tensor: wide(), ..used(RowAction::Push, ids) })?;
    begun.handle().wait(Some(PATIENCE))
}

/// Rows of more than a page of each part, each with as many numbers of the rule as values; a push of 1 subtracts 1.
fn wide() -> TensorSpec {
    TensorSpec::table("wide", "sgd:lr=1,momentum=1e-30;dim=256".parse().unwrap())
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
        marks: &[],
        scan: Scan::default(),
        bounds: ShrinkBounds::KEEP,
        priority: Priority::default(),
        timeout: None,
    }
}
