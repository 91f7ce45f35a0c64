//! What the dumps of servers say of the contributions for which they wait, in sentences.

use std::collections::BTreeSet;

use gradlane_core::types::TensorKey;

use super::head::PartOfRound;
use super::members::{Members, Told};
use super::server::{Server, Sight};
use super::words::{all, begin, named};
use super::worker::{HandedOver, Round, Worker};
use crate::look::words::seconds;

/// The workers of which servers have nothing in a round of a tensor.
pub(super) fn missed(members: &Members<'_>, round: &Round) -> impl Iterator<Item = u32> {
    let key = TensorKey::of(&round.tensor).0;
    let sums = members.servers.values().flat_map(|told| &told.of.sums);
    sums.filter(move |(part, _)| (part.key, part.round) == (key, round.round))
        .flat_map(|(_, sum)| sum.due.iter().copied())
}

/// The workers for which a server has waited longest.
pub(super) fn longest(members: &Members<'_>) -> Option<Vec<u32>> {
    let waiting = members.servers.values().filter_map(|told| Some((told.head, told.of.longest()?.1)));
    waiting.max_by_key(|(head, sum)| head.ago(sum.began_ns)).map(|(_, sum)| sum.missing())
}

/// For which contributions each server waits, and since when.
pub(super) fn waits(members: &Members<'_>) -> Vec<String> {
    members.servers.iter().filter_map(|(index, told)| waits_at(members, *index, *told)).collect()
}

fn waits_at(members: &Members<'_>, index: u32, Told { head, of }: Told<'_, Server>) -> Option<String> {
    let (part, sum) = of.longest()?;
    let (called, began) = (members.called(*part), seconds(head.ago(sum.began_ns)));
    let mut words =
        format!("Server {index} waits for {} in {called}, which began {began} before its dump.", named(&sum.missing()));
    let listed = |workers: &BTreeSet<u32>| named(&workers.iter().copied().collect::<Vec<_>>());
    if !sum.begun.is_empty() {
        words += &format!(" The contribution of {} has begun, and is not whole.", listed(&sum.begun));
    }
    if !sum.whole.is_empty() {
        words += &format!(" It has all of {}.", listed(&sum.whole));
    }
    let waiting = of.sums.values().filter(|sum| sum.waits()).count();
    if waiting > 1 {
        words += &format!(" Of its sums, {waiting} wait.");
    }
    Some(words)
}

/// What workers say that they have handed over, and servers have not seen.
pub(super) fn never_came(members: &Members<'_>) -> Vec<String> {
    let mut sentences: Vec<String> =
        members.workers.iter().flat_map(|(rank, told)| never_came_of(members, *rank, *told)).collect();
    let others = sentences.len().saturating_sub(SENTENCES_MAX);
    sentences.truncate(SENTENCES_MAX);
    if others > 0 {
        sentences.push(format!("Further such parts: {others}."));
    }
    sentences
}

fn never_came_of(members: &Members<'_>, rank: u32, Told { head, of }: Told<'_, Worker>) -> Vec<String> {
    let sentence = |(part, HandedOver { at_ns, server }): (&PartOfRound, &HandedOver)| {
        let index = u32::try_from(*server).ok()?;
        let told = members.servers.get(&index)?;
        let has = match told.of.sight(*part, rank) {
            Sight::Never => "has never seen any of it",
            Sight::Begun => "has only its beginning",
            Sight::Whole => return None,
        };
        let (called, ago, server) = (members.called(*part), seconds(head.ago(*at_ns)), all("server", &[index]));
        let older = format!("the dump of {server} is older, so it does not tell what became of that");
        let says = told.head.says(format!("{server} {has}"), older, (head, *at_ns));
        Some(format!("{} handed {called} over to {server}, {ago} before its dump, and {says}.", begin(&named(&[rank]))))
    };
    of.handed_over.iter().filter_map(sentence).collect()
}

/// Sentences about single parts.
const SENTENCES_MAX: usize = 4;
