use std::collections::BTreeMap;

use gradlane_core::error::{Error, Tensors};
use gradlane_core::reduce::Kernels;
use gradlane_core::types::{NodeId, RowAction, Shards, TableSpec};
use gradlane_core::wire::scan::{Begin, Front, Next};

use super::super::restore::SavedMark;
use super::super::tests::bounds;
use super::Rows;
use crate::random::Random;

const READER: NodeId = NodeId([1; 32]);
const LIFE: u64 = 77;

/// What is known of a row: the step of its last use, the bits of its score, and the bits of its numbers.
type Known = (u32, u32, Vec<u32>);

#[test]
fn a_reader_who_follows_the_changes_has_the_table_of_each_scan_whatever_is_written_meanwhile() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let specs = [
            "adagrad:lr=1;dim=2",
            "adam;dim=1,after=2",
            "sgd;dim=3,rows=24,full=evict",
            "paddleadam;dim=2,ttl=4",
            "adagrad:lr=0.3;dim=3,dtype=bf16",
            "sgd:lr=0.3;dim=2,dtype=fp16",
        ];
        let full = specs[seed as usize % specs.len()];
        let mut rows = Rows::new(full.parse().unwrap(), Shards::ALL, Kernels::detect());
        let (mut copy, mut since) = (BTreeMap::new(), None);
        for step in 0..40 {
            write(&mut rows, &mut random, step);
            if random.below(3) > 0 {
                continue;
            }
            let due = all(&rows);
            let bytes_max = RowAction::page_bytes_min(&rows.spec) + random.below(200);
            let wanted = Begin { life: LIFE, since, with_state: true };
            let mut page = match rows.begin_scan(&Tensors::Unknown, READER, wanted, bytes_max) {
                Err(Error::FullResyncNeeded { .. }) => {
                    since = None;
                    let wanted = Begin { since, ..wanted };
                    rows.begin_scan(&Tensors::Unknown, READER, wanted, bytes_max).unwrap()
                }
                page => page.unwrap(),
            };
            if since.is_none() {
                copy.clear();
            }
            let end = loop {
                let front = read(&rows.spec, &page, &mut copy);
                assert!(page.len() as u64 <= bytes_max, "seed {seed}");
                if front.next == 0 {
                    break front;
                }
                write(&mut rows, &mut random, step);
                let next = Next { life: LIFE, version: front.version, cursor: front.next };
                page = rows.next_page(READER, next, bytes_max).unwrap();
                write(&mut rows, &mut random, step);
                assert_eq!(rows.next_page(READER, next, bytes_max), Ok(page.clone()), "seed {seed}: a repeat");
            };
            let numbers = |of: &BTreeMap<u64, Known>| -> Vec<_> {
                of.iter().map(|(id, (.., numbers))| (*id, numbers.clone())).collect()
            };
            assert_eq!(numbers(&copy), numbers(&due), "seed {seed}, step {step}");
            if since.is_none() {
                assert_eq!(
                    copy, due,
                    "seed {seed}, step {step}: scores and last uses of a full scan are those of its moment"
                );
            }
            since = Some((LIFE, end.version));
            rows.end_scan(READER);
            assert_eq!(rows.scan_bytes(), 0, "seed {seed}");
        }
    }
}

#[test]
fn rows_that_are_put_back_are_what_they_were_and_train_on_alike() {
    for dtype in ["f32", "bf16", "fp16"] {
        let text = format!("adam:lr=0.1;dim=2,init=uniform,scale=1,dtype={dtype}");
        let mut rows = of(&text);
        let ids: Vec<u64> = (0..50).collect();
        for step in 0..5 {
            rows.push(&ids, step, &mut vec![0.5; 100]).unwrap();
        }
        let (mut copy, mut other) = (BTreeMap::new(), of(&text));
        let page = rows.begin_scan(&Tensors::Unknown, READER, begin(None), 1 << 20).unwrap();
        read(&rows.spec, &page, &mut copy);
        // It is removed, because its score says so.
        other.push(&[99], 0, &[1.0; 2]).unwrap();
        put_back(&mut other, &copy, &[99]);
        assert_eq!(all(&other), all(&rows));
        for of in [&mut rows, &mut other] {
            of.push(&ids, 5, &mut vec![-0.25; 100]).unwrap();
        }
        assert_eq!(all(&other), all(&rows), "to the bit, with what the rule keeps");
    }
}

#[test]
fn a_restore_that_is_wrong_changes_nothing_and_rows_that_are_not_admitted_come_back() {
    let mut rows = of("sgd;dim=1,share=0.5,after=3,rows=4");
    let shut = (0..).find(|id| !rows.spec.admits(*id)).unwrap();
    let mark = SavedMark { touched: 3, score: 2.0 };
    rows.restore(&[shut, 5], 0, &[mark; 2], &[1.0, 2.0]).unwrap();
    let before = (all(&rows), rows.version());
    assert_eq!((before.0.len(), rows.step), (2, 3));
    for (ids, score, named) in [
        (&[1, 1][..], 1.0, "comes twice"),
        (&[1, 2], -1.0, "is -1"),
        (&[1, 2], f32::INFINITY, "is inf"),
        (&[1, 2, 3], 1.0, "the table is full"),
    ] {
        let marks = vec![SavedMark { score, ..mark }; ids.len()];
        let error = rows.restore(ids, 0, &marks, &vec![0.0; ids.len()]).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        assert_eq!((all(&rows), rows.version()), before);
    }
}

#[test]
fn a_scan_that_fits_one_page_freezes_nothing_and_one_that_does_not_is_booked_until_its_end() {
    let mut rows = of("sgd;dim=4");
    rows.push(&(0..1000).collect::<Vec<u64>>(), 1, &mut vec![1.0; 4000]).unwrap();
    rows.begin_scan(&Tensors::Unknown, READER, begin(None), 1 << 20).unwrap();
    assert_eq!(rows.scan_bytes(), 0);
    let page = rows.begin_scan(&Tensors::Unknown, READER, begin(None), 200).unwrap();
    let version = read(&rows.spec, &page, &mut BTreeMap::new()).version;
    assert_eq!(rows.scan_bytes(), rows.arena.bytes());
    let other = NodeId([2; 32]);
    rows.begin_scan(&Tensors::Unknown, other, begin(None), 200).unwrap();
    assert_eq!(rows.scan_bytes(), 2 * rows.arena.bytes(), "each has its own copy");
    let next = Next { life: LIFE, version, cursor: 9 };
    let end = Next { cursor: RowAction::END, ..next };
    assert_eq!(rows.next_page(READER, end, 200).unwrap().len() as u64, RowAction::PAGE_FRONT_BYTES);
    assert_eq!(rows.scan_bytes(), rows.arena.bytes());
    let over = rows.next_page(READER, next, 200).unwrap_err();
    assert!(matches!(over, Error::FailedPrecondition { .. }) && over.to_string().contains("begin again"), "{over}");
    rows.end_scan(other);
    assert_eq!(rows.scan_bytes(), 0);
    assert!(matches!(rows.begin_scan(&Tensors::Unknown, READER, begin(None), 40), Err(Error::Protocol { .. })));
    assert_eq!(rows.scan_bytes(), 0);
}

#[test]
fn versions_that_say_nothing_here_are_refused_with_the_reason() {
    let mut rows = of("sgd;dim=1");
    let asked = |rows: &mut Rows, life, version| {
        let wanted = Begin { life: LIFE + 1, since: Some((life, version)), with_state: false };
        rows.begin_scan(&Tensors::Unknown, READER, wanted, 200).map(|page| page.len())
    };
    rows.begin_scan(&Tensors::Unknown, READER, begin(None), 200).unwrap();
    rows.push(&[1], 1, &[1.0]).unwrap();
    assert_eq!(asked(&mut rows, LIFE, 0), Ok(32 + 8 + 4), "the first life stays");
    let other = asked(&mut rows, LIFE + 1, 0).unwrap_err();
    assert!(matches!(other, Error::FullResyncNeeded { .. }) && other.to_string().contains("another server"), "{other}");
    let future = asked(&mut rows, LIFE, 2).unwrap_err();
    assert!(matches!(future, Error::TensorArgument { .. }) && future.to_string().contains("at version 1"), "{future}");
    rows.clear();
    let cleared = asked(&mut rows, LIFE, 1).unwrap_err();
    assert!(matches!(cleared, Error::FullResyncNeeded { .. }), "{cleared}");
    assert_eq!(asked(&mut rows, LIFE, 2), Ok(32), "nothing has changed since it was cleared");
    let ids: Vec<u64> = (0..70_000).collect();
    rows.push(&ids, 2, &mut vec![1.0; ids.len()]).unwrap();
    rows.shrink(bounds(1.0, 5.0, 9));
    let forgotten = asked(&mut rows, LIFE, 3).unwrap_err();
    assert!(forgotten.to_string().contains("removals before version 4"), "{forgotten}");
    assert_eq!(asked(&mut rows, LIFE, 4), Ok(32));
    rows.version += 1 << 32;
    assert!(matches!(asked(&mut rows, LIFE, 5), Err(Error::FullResyncNeeded { .. })), "too far back to tell");
}

#[test]
fn versions_are_told_apart_across_the_end_of_their_lowest_bits() {
    let mut rows = of("sgd;dim=1");
    rows.begin_scan(&Tensors::Unknown, READER, begin(None), 200).unwrap();
    rows.version = (1 << 32) - 2;
    for id in 0..4 {
        rows.push(&[id], 1, &[1.0]).unwrap();
    }
    for (since, due) in [(4, vec![]), (3, vec![3]), (1, vec![1, 2, 3]), (0, vec![0, 1, 2, 3])] {
        let since = Some((LIFE, (1 << 32) - 2 + since));
        let page = rows.begin_scan(&Tensors::Unknown, READER, begin(since), 400).unwrap();
        let mut found = BTreeMap::new();
        read(&rows.spec, &page, &mut found);
        assert!(found.into_keys().eq(due));
    }
}

fn of(text: &str) -> Rows {
    Rows::new(text.parse().unwrap(), Shards::ALL, Kernels::detect())
}

fn begin(since: Option<(u64, u64)>) -> Begin {
    Begin { life: LIFE, since, with_state: true }
}

/// Some use of rows, as the numbers say.
fn write(rows: &mut Rows, random: &mut Random, step: u64) {
    let mut ids: Vec<u64> = (0..random.below(12)).map(|_| random.below(64)).collect();
    ids.sort_unstable();
    ids.dedup();
    let dim = rows.dim();
    match random.below(12) {
        0..=3 => drop(rows.pull(&ids, true, step).unwrap()),
        4..=8 => {
            let gradients: Vec<f32> = (0..ids.len() * dim).map(|_| random.below(9) as f32 - 4.0).collect();
            rows.push(&ids, step, &gradients).unwrap();
        }
        9 => drop(rows.shrink(bounds(0.9, -1.0, 3 + random.below(5)))),
        10 if random.below(6) == 0 => rows.clear(),
        _ => {
            let score = |random: &mut Random| if random.below(3) == 0 { f32::NAN } else { random.below(5) as f32 };
            let marks: Vec<SavedMark> = ids
                .iter()
                .map(|_| SavedMark { touched: random.below(step + 1) as u32, score: score(random) })
                .collect();
            let numbers: Vec<f32> = (0..ids.len() * rows.rule.len()).map(|_| random.below(9) as f32).collect();
            rows.restore(&ids, step, &marks, &numbers).unwrap();
        }
    }
}

/// All rows, as they are.
fn all(rows: &Rows) -> BTreeMap<u64, Known> {
    let places = (0..rows.arena.places()).filter(|place| rows.arena.is_taken(*place));
    let known = |place| {
        let mark = rows.arena.mark(place);
        let mut numbers = vec![0.0; rows.rule.len()];
        rows.stored.read(rows.arena.row(place), &mut numbers);
        let numbers = numbers.iter().map(|number| number.to_bits()).collect();
        (mark.id, (mark.touched, mark.score.to_bits(), numbers))
    };
    places.map(known).collect()
}

/// Changes a copy of a table as a page with state says.
fn read(spec: &TableSpec, page: &[u8], copy: &mut BTreeMap<u64, Known>) -> Front {
    let (front, body) = Front::decode(page, spec, true).unwrap();
    let ids = |bytes: &[u8]| -> Vec<u64> { bytes.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)).collect() };
    let words =
        |bytes: &[u8]| -> Vec<u32> { bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect() };
    for id in ids(body.gone) {
        copy.remove(&id);
    }
    let (marks, numbers) = (words(body.marks), words(body.numbers));
    let rows = marks.chunks_exact(2).zip(numbers.chunks_exact(spec.row_len() as usize));
    for (id, (mark, numbers)) in ids(body.ids).into_iter().zip(rows) {
        copy.insert(id, (mark[0], mark[1], numbers.to_vec()));
    }
    front
}

fn put_back(rows: &mut Rows, copy: &BTreeMap<u64, Known>, gone: &[u64]) {
    let (mut ids, mut marks, mut numbers) = (gone.to_vec(), Vec::new(), Vec::new());
    marks.resize(gone.len(), SavedMark { touched: 0, score: f32::NAN });
    numbers.resize(gone.len() * rows.rule.len(), 0.0);
    for (id, (touched, score, of_row)) in copy {
        ids.push(*id);
        marks.push(SavedMark { touched: *touched, score: f32::from_bits(*score) });
        numbers.extend(of_row.iter().map(|number| f32::from_bits(*number)));
    }
    rows.restore(&ids, 0, &marks, &numbers).unwrap();
}
