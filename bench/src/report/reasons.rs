//! What a user must know to read the ratios: which transport training would choose, and why a contender of ours is slower than a peer.

use gradlane_core::config::units::print_bytes;

use super::figures::{OneMachine, Place, Report, Row};

/// A line for each contender of ours and each peer that is faster somewhere, and one for each peer that says how the transport of training
/// compares.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let Some(setting) = &report.one_machine else { return Vec::new() };
    let mut lines = Vec::new();
    let mut ours: Vec<&str> = Vec::new();
    for row in report.rows.iter().filter(|row| row.ours) {
        if !ours.contains(&row.contender.as_str()) {
            ours.push(&row.contender);
        }
    }
    for peer in report.peers() {
        for contender in &ours {
            let ratios = ratios(report, contender, &peer);
            if ratios.is_empty() {
                continue;
            }
            if *contender == setting.training {
                let least = ratios.iter().map(|(_, ratio)| *ratio).fold(f64::INFINITY, f64::min);
                let most = ratios.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
                lines.push(format!("{contender}, which training uses here: {least:.2} to {most:.2} x {peer}"));
            }
            let slower: Vec<&(String, f64)> = ratios.iter().filter(|(_, ratio)| *ratio < 1.0).collect();
            let Some((at, least)) = slower.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            lines.push(format!(
                "{contender} is slower than {peer} in {} of {} cases ({least:.2} x at {at}): {}",
                slower.len(),
                ratios.len(),
                reason(setting, contender, &peer)
            ));
        }
    }
    lines
}

/// The ratio to `peer` in each case of `contender`, with the size and, where it is not `sum`, more of the case.
fn ratios(report: &Report, contender: &str, peer: &str) -> Vec<(String, f64)> {
    let case = |row: &Row| format!("{} {}", print_bytes(row.bytes), row.variant).trim_end().to_owned();
    let rows = report.rows.iter().filter(|row| row.ours && row.contender == contender);
    rows.flat_map(|row| [Place::Out, Place::In].map(|place| (row, place)))
        .filter_map(|(row, place)| Some((case(row), report.ratio(row, peer, place)?.median())))
        .collect()
}

/// Why it may be slower: what its way of working costs, and what to compare instead if training would not use it here.
fn reason(setting: &OneMachine, contender: &str, peer: &str) -> String {
    let OneMachine { training, workers, cores } = setting;
    match contender {
        "quic" => format!(
            "every byte is encrypted and decrypted, once to a server and once back, and the server shares {cores} cores with the \
             workers, while {peer} sends plain bytes from rank to rank; it is the way to other machines, and on one machine \
             training uses {training}: compare that"
        ),
        "shm" if contender != *training => format!(
            "every byte is copied to a server and back, and the server shares {cores} cores with the workers; on one machine \
             training uses {training}: compare that"
        ),
        _ if spins(peer) && *workers as usize <= *cores => format!(
            "ranks of {peer} keep a core busy while they wait; ours look for some microseconds and then sleep, so that other \
             threads of training get the core, and to wake up costs time"
        ),
        _ if spins(peer) => format!(
            "{workers} ranks share {cores} cores, so what counts is how often the running rank changes; ranks of {peer} yield \
             the core without sleeping, and ours sleep"
        ),
        _ => "that is not expected; other programs may have had the cores, so try again on an idle machine".to_owned(),
    }
}

/// Whether ranks of this peer spin while they wait: all but those of Gloo and plain streams do.
fn spins(peer: &str) -> bool {
    !["gloo", "tcp", "tls"].contains(&peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures::tests::{report, row};

    fn of(rows: Vec<Row>) -> Vec<String> {
        let one_machine = Some(OneMachine { training: "local", workers: 2, cores: 2 });
        lines(&Report { one_machine, ..report(rows) })
    }

    #[test]
    fn a_ratio_below_one_is_explained_in_a_sentence_that_says_what_to_compare() {
        let said = of(vec![row("local", true, 4096, 3.0), row("quic", true, 4096, 0.5), row("gloo", false, 4096, 1.0)]);
        assert_eq!(said[0], "local, which training uses here: 3.00 to 3.00 x gloo");
        assert!(
            said[1].starts_with("quic is slower than gloo in 1 of 1 cases (0.50 x at 4 KiB): every byte is encrypted")
        );
        assert!(said[1].ends_with("on one machine training uses local: compare that"), "{said:?}");
        assert_eq!(said.len(), 2);
    }

    #[test]
    fn nothing_is_explained_where_we_are_faster_or_nothing_is_compared() {
        let said = of(vec![row("quic", true, 4096, 2.0), row("gloo", false, 4096, 1.0)]);
        assert!(said.is_empty(), "{said:?}");
        assert!(of(vec![row("quic", true, 4096, 2.0)]).is_empty());
    }

    #[test]
    fn ranks_that_spin_are_the_reason_where_training_s_transport_is_slower() {
        let said = of(vec![row("local", true, 4096, 0.5), row("impi", false, 4096, 1.0)]);
        assert!(said[1].contains("ranks of impi keep a core busy"), "{said:?}");
        assert!(!said[1].contains("compare that"));
    }
}
