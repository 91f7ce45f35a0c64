//! What the links of a worker say together: what holds them, how far their servers are, and what the network loses.

use std::collections::BTreeMap;
use std::time::Duration;

use gradlane_core::types::LinkLimit;

/// What is known of the links of one worker.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Links {
    /// What held the worst link for most of the time. The worst is the one that was held longest by anything else than that the worker had
    /// nothing to send.
    pub(crate) limit: Option<LinkLimit>,
    /// The longest round trip.
    pub(crate) rtt: Option<Duration>,
    /// The highest share of the packets of a link that was lost.
    pub(crate) loss: Option<f64>,
}

/// A number of a family, by its labels.
type Number<'a> = (&'a [String], u64);

impl Links {
    /// `limited`, `sent` and `lost` say how much the metrics of these names have grown, and `rtt` what they are in nanoseconds.
    pub(super) fn of(limited: &[Number<'_>], rtt: &[Number<'_>], sent: &[Number<'_>], lost: &[Number<'_>]) -> Self {
        let lost: BTreeMap<&[String], u64> = lost.iter().copied().collect();
        let share = |(server, sent): &Number<'_>| {
            let lost = lost.get(server).copied().unwrap_or_default();
            if *sent > 0 { lost as f64 / *sent as f64 } else { 0.0 }
        };
        Self {
            limit: limit(limited),
            rtt: rtt.iter().map(|(_, nanoseconds)| Duration::from_nanos(*nanoseconds)).max(),
            loss: sent.iter().map(share).max_by(f64::total_cmp),
        }
    }
}

fn limit(limited: &[Number<'_>]) -> Option<LinkLimit> {
    let mut servers: BTreeMap<&str, [u64; LinkLimit::ALL.len()]> = BTreeMap::new();
    for (labels, time) in limited {
        let [server, by] = labels else { continue };
        if let Some(by) = LinkLimit::ALL.into_iter().find(|known| known.name() == by) {
            servers.entry(server).or_default()[by as usize] += time;
        }
    }
    let held = |times: &[u64; LinkLimit::ALL.len()]| times.iter().sum::<u64>() - times[LinkLimit::App as usize];
    let worst = servers.into_values().max_by_key(held)?;
    // Of equal ones the first, so that a link on which nothing happened has nothing to send.
    LinkLimit::ALL.into_iter().rev().max_by_key(|by| worst[*by as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_link_is_the_one_that_is_held_longest_while_there_is_something_to_send() {
        for (times, limit) in [
            (&[][..], None),
            (&[("0", "app", 0), ("0", "cwnd", 0)], Some(LinkLimit::App)),
            (&[("0", "app", 90), ("0", "cwnd", 10)], Some(LinkLimit::App)),
            (&[("0", "app", 90), ("0", "cwnd", 10), ("1", "app", 30), ("1", "flow", 60)], Some(LinkLimit::Flow)),
            (&[("0", "socket", 20), ("0", "credit", 50), ("other", "app", 900)], Some(LinkLimit::Credit)),
            (&[("0", "weather", 20)], None),
        ] {
            let labels: Vec<[String; 2]> =
                times.iter().map(|(server, by, _)| [(*server).to_owned(), (*by).to_owned()]).collect();
            let limited: Vec<Number<'_>> =
                labels.iter().zip(times).map(|(labels, (.., time))| (labels.as_slice(), *time)).collect();
            assert_eq!(Links::of(&limited, &[], &[], &[]).limit, limit, "{times:?}");
        }
    }

    #[test]
    fn round_trip_and_loss_are_those_of_the_worst_link() {
        let servers = [["0".to_owned()], ["1".to_owned()], ["2".to_owned()]];
        let of = |numbers: [u64; 3]| -> Vec<Number<'_>> {
            servers.iter().map(<[String; 1]>::as_slice).zip(numbers).collect()
        };
        let links = Links::of(&[], &of([5, 210, 7]), &of([100, 400, 0]), &of([2, 4, 0]));
        assert_eq!((links.rtt, links.loss), (Some(Duration::from_nanos(210)), Some(0.02)));
        assert_eq!(Links::of(&[], &[], &[], &[]), Links::default());
    }
}
