use super::*;

#[test]
fn ranks_are_shown_before_anything_was_counted_of_them() {
    let cell = Indexed::default();
    assert_eq!(cell.value(), Value::Family(Vec::new()));
    cell.show(2);
    cell.add(1, 5);
    cell.add(1, 2);
    let rows = [("0", 0), ("1", 7)].map(|(rank, value)| (vec![rank.to_owned()], value));
    assert_eq!(cell.value(), Value::Family(rows.to_vec()));
    cell.add(WorkerSet::WORKERS_MAX, 1);
    assert_eq!(cell.value(), Value::Family(rows.to_vec()), "there is no such rank");
}

#[test]
fn of_many_ranks_the_worst_are_shown_and_the_sum_of_the_others() {
    let cell = Indexed::default();
    (0..SHOWN_MAX).for_each(|rank| cell.add(rank, 1));
    let Value::Family(rows) = cell.value() else { panic!("a family") };
    assert_eq!(rows.len(), SHOWN_MAX);
    cell.add(4095, 10);
    cell.add(7, 10);
    let Value::Family(rows) = cell.value() else { panic!("a family") };
    assert_eq!(rows.len(), WORST + 1);
    for (rank, value) in [("7", 11), ("4095", 10), ("other", SHOWN_MAX as u64 + 20 - 21 - (WORST as u64 - 2))] {
        assert!(rows.contains(&(vec![rank.to_owned()], value)), "{rank} {value}: {rows:?}");
    }
}

#[test]
fn numbers_that_lanes_keep_are_read_when_somebody_asks() {
    let cell = NowByLane::default();
    assert_eq!(cell.value(), Value::Family(vec![]));
    let lanes = [3, 0].map(|number| Arc::new(AtomicUsize::new(number)));
    cell.show(lanes.to_vec());
    lanes[1].store(5, Ordering::Relaxed);
    let rows = [("0", 3), ("1", 5)].map(|(lane, number)| (vec![lane.to_owned()], number));
    assert_eq!(cell.value(), Value::Family(rows.to_vec()));
}

#[test]
fn a_rank_has_a_time_for_each_cause() {
    let cell = ByCause::default();
    cell.show(1);
    cell.add(0, Cause::Credit, Duration::from_nanos(3));
    cell.add(0, Cause::Credit, Duration::from_nanos(4));
    let Value::Family(rows) = cell.value() else { panic!("a family") };
    assert_eq!(rows.len(), Cause::ALL.len());
    assert!(rows.contains(&(vec!["0".to_owned(), "credit".to_owned()], 7)), "{rows:?}");
}

#[test]
fn of_the_ranks_of_a_machine_those_are_shown_that_were_late_or_last() {
    let (late, last) = (MachineLate::default(), MachineLast::default());
    let mut times = Late::default();
    late.add(6, &times);
    assert_eq!(late.value(), Value::Family(Vec::new()));
    times[Cause::Queue as usize] = Duration::from_nanos(3);
    late.add(7, &times);
    last.add(7, 1);
    let shown = Cause::ALL
        .map(|cause| (vec!["7".to_owned(), cause.name().to_owned()], if cause == Cause::Queue { 3 } else { 0 }));
    assert_eq!(late.value(), Value::Family(shown.to_vec()));
    assert_eq!(last.value(), Value::Family(vec![(vec!["7".to_owned()], 1)]));
}

#[test]
fn servers_of_which_nothing_is_known_are_not_shown() {
    let (counts, now, limits) = (ByServer::default(), NowByServer::default(), ByLimit::default());
    counts.clone().add(2, 0);
    counts.add(0, 7);
    now.set(2, Some(5));
    now.set(1, Some(5));
    now.set(2, None);
    limits.add(1, LinkLimit::Cwnd, 9);
    limits.add(2, LinkLimit::Cwnd, 0);
    let family = |rows: &[(&str, u64)]| {
        Value::Family(rows.iter().map(|(server, number)| (vec![(*server).to_owned()], *number)).collect())
    };
    assert_eq!(counts.value(), family(&[("0", 7), ("2", 0)]));
    assert_eq!(now.value(), family(&[("1", 5)]));
    let Value::Family(times) = limits.value() else { panic!("a family") };
    assert_eq!(times.len(), LinkLimit::ALL.len(), "of one server");
    assert!(times.contains(&(vec!["1".to_owned(), "cwnd".to_owned()], 9)), "{times:?}");
}

#[test]
fn a_number_is_shown_once_it_is_known() {
    let cell = Known::default();
    assert_eq!(cell.value(), Value::Family(vec![]));
    cell.set(0);
    assert_eq!(cell.value(), Value::Plain(0));
}

#[test]
fn of_many_members_those_with_the_least_numbers_are_shown() {
    let cell = ByMember::default();
    let label = |role: &str, index: u32| vec![role.to_owned(), index.to_string()];
    cell.set(vec![((Role::Worker, 1), 5), ((Role::Server, 0), 4)]);
    assert_eq!(cell.value(), Value::Family(vec![(label("worker", 1), 5), (label("server", 0), 4)]));
    cell.set((0..300).map(|index| ((Role::Worker, index), u64::from(1000 - index))).collect());
    let Value::Family(rows) = cell.value() else { panic!("a family") };
    assert_eq!((rows.len(), &rows[WORST - 1]), (WORST, &(label("worker", 299), 701)));
}

#[test]
fn no_sum_is_shown_of_what_cannot_be_added() {
    let now = NowByServer::default();
    (0..SERVERS_SHOWN_MAX + 1).for_each(|server| now.set(server, Some(1)));
    let Value::Family(rows) = now.value() else { panic!("a family") };
    assert_eq!(rows.len(), WORST);
}

#[test]
fn a_duration_is_counted_in_the_first_bucket_that_it_fits() {
    let cell = Durations::default();
    for duration in [Duration::ZERO, Duration::from_micros(16), Duration::from_micros(17), Duration::MAX] {
        cell.add(duration);
    }
    let Value::Histogram(Histogram { buckets, .. }) = cell.value() else { panic!("a histogram") };
    assert_eq!(buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
}
