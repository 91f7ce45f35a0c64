//! Which processes of a job have something in common, in words: what all have is said once, and who differs is named.

use std::collections::{BTreeMap, BTreeSet};

use super::{Report, Setup};

/// A process of a job, such as `worker 3`. The coordinator has index 0.
pub(super) type Process<'a> = (&'a str, u32);

/// The processes that have something in common.
pub(super) type Processes<'a> = BTreeSet<Process<'a>>;

/// The processes of a report that told what they run, with that.
pub(super) fn setups(report: &Report) -> BTreeMap<Process<'_>, &Setup> {
    let members = report.members.iter();
    let members = members.filter_map(|member| Some(((member.role.as_str(), member.index), member.setup.as_ref()?)));
    members.chain([(("coordinator", 0), &report.setup)]).collect()
}

/// What is said of processes, by who they are. What more processes have comes first, and the rest in the order of the input.
pub(super) fn by_processes<'a, T: Ord>(said: impl Iterator<Item = (T, Process<'a>)>) -> Vec<(Processes<'a>, Vec<T>)> {
    let mut who: BTreeMap<T, Processes<'a>> = BTreeMap::new();
    for (what, process) in said {
        who.entry(what).or_default().insert(process);
    }
    let mut what: BTreeMap<Processes<'a>, Vec<T>> = BTreeMap::new();
    who.into_iter().for_each(|(said, processes)| what.entry(processes).or_default().push(said));
    let mut sorted: Vec<_> = what.into_iter().collect();
    sorted.sort_by_key(|(processes, _)| std::cmp::Reverse(processes.len()));
    sorted
}

/// Processes among `all` in words, such as `all`, or `the coordinator, workers and server 1`.
pub(super) fn who(some: &Processes<'_>, all: &Processes<'_>) -> String {
    if some == all {
        return "all".to_owned();
    }
    let of = |role: &str| {
        let indices = |of: &Processes<'_>| -> Vec<u32> {
            of.iter().filter(|(other, _)| *other == role).map(|(_, index)| *index).collect()
        };
        let (some, all) = (indices(some), indices(all));
        match some.as_slice() {
            [] => None,
            [_] if role == "coordinator" => Some("the coordinator".to_owned()),
            [index] => Some(format!("{role} {index}")),
            some if some == all => Some(format!("{role}s")),
            some => {
                let named = some.iter().take(NAMED_MAX).map(u32::to_string).collect::<Vec<_>>().join(", ");
                let more = some.len().checked_sub(NAMED_MAX).filter(|more| *more > 0);
                Some(format!("{role}s {named}{}", more.map_or(String::new(), |more| format!(" and {more} more"))))
            }
        }
    };
    let roles = ["coordinator", "worker", "server"].into_iter().filter_map(of).collect::<Vec<_>>();
    match roles.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        roles => roles.concat(),
    }
}

/// Indices that are named.
const NAMED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_if_they_are_not_all_of_their_role() {
        let coordinator = [("coordinator", 0)];
        let of = |role: &'static str, indices: std::ops::Range<u32>| indices.map(move |index| (role, index));
        let all: Processes<'_> = of("worker", 0..20).chain(of("server", 0..2)).chain(coordinator).collect();
        for (some, words) in [
            (all.clone(), "all"),
            (of("worker", 0..20).collect(), "workers"),
            (of("worker", 0..20).chain(coordinator).collect(), "the coordinator and workers"),
            (
                of("server", 1..2).chain(of("worker", 0..20)).chain(coordinator).collect(),
                "the coordinator, workers and server 1",
            ),
            (of("worker", 3..5).collect(), "workers 3, 4"),
            (of("worker", 1..20).collect(), "workers 1, 2, 3, 4, 5, 6, 7, 8 and 11 more"),
        ] {
            assert_eq!(who(&some, &all), words);
        }
    }

    #[test]
    fn what_more_processes_have_comes_first() {
        let said = [("b", ("worker", 0)), ("a", ("worker", 1)), ("b", ("worker", 1)), ("c", ("worker", 1))];
        let sorted = by_processes(said.into_iter());
        let expected = [
            (Processes::from([("worker", 0), ("worker", 1)]), vec!["b"]),
            (Processes::from([("worker", 1)]), vec!["a", "c"]),
        ];
        assert_eq!(sorted, expected);
    }
}
